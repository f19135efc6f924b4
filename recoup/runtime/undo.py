"""Take an interrupted step back: the rows it touched, as they were before it, and the dense parameters.

A rank dies in the middle of a step; some survivors may have applied a part of it, some all of it, some nothing. Before
a table's rows are updated they are copied here (they have just been looked up, so they are in cache), and the copy
is dropped when the next step begins. So any survivor can go back to the state before the step it was in, bit for bit.
Cost: one gather of the rows that this rank looks up in a step, and a copy of the dense parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn

from recoup.train import Trainer


@dataclass(frozen=True, slots=True)
class _Touched:
    part: Tensor
    rows: Tensor
    before: Tensor


class UndoLog:
    """Copies of what one step changes on this rank."""

    def __init__(self, trainer: Trainer) -> None:
        """Watch the look-ups of the trainer's model."""
        self._trainer = trainer
        self._touched: list[_Touched] = []
        self._dense: Mapping[str, Tensor] = {}
        self._num_steps = 0
        self._recording = False
        for module in trainer.model.modules():
            if isinstance(module, SplitTableBatchedEmbeddingBagsCodegen):
                module.register_forward_pre_hook(self._look_up, with_kwargs=True)

    def begin(self) -> None:
        """A step begins: forget the step before, copy the dense part."""
        self._touched.clear()
        self._dense = self._trainer.dense_state()
        self._num_steps = self._trainer.num_steps
        self._recording = True

    def end(self) -> None:
        """The step's look-ups are over (evaluation may follow); it can still be undone until the next begins."""
        self._recording = False

    def undo_to(self, step: int) -> None:
        """Set everything back to after `step`, if the step that began last is the one after it."""
        self._recording = False
        if not self._dense or self._num_steps != step:
            return
        with torch.no_grad():
            for touched in reversed(self._touched):
                touched.part.index_copy_(0, touched.rows, touched.before)
        self._touched.clear()
        self._trainer.load_dense_state(self._dense)
        self._trainer.load_state_dict({"version": 1, "num_steps": self._num_steps})
        self._dense = {}

    def _look_up(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._recording or not torch.is_grad_enabled():
            return
        assert isinstance(module, SplitTableBatchedEmbeddingBagsCodegen)
        indices: Tensor = kwargs["indices"] if "indices" in kwargs else args[0]
        offsets: Tensor = kwargs["offsets"] if "offsets" in kwargs else args[1]
        weights = module.split_embedding_weights()
        states = module.split_optimizer_states()
        tables = module.feature_table_map
        stride = (offsets.numel() - 1) // len(tables)
        bounds = offsets[:: max(1, stride)].tolist() if stride else [0] * (len(tables) + 1)
        for feature, table in enumerate(tables):
            rows = indices[bounds[feature] : bounds[feature + 1]].long()
            for part in (weights[table], *states[table]):
                self._touched.append(_Touched(part.detach(), rows, part.detach().index_select(0, rows)))
