"""Tell a priority policy which rows training looks up on this rank: hooks on the fused look-ups."""

from collections.abc import Mapping
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from typing_extensions import override

from recoup.checkpoint import TableView
from recoup.checkpoint.policies import RowPolicy
from recoup.model.fused import Watcher, fused_lookups


def observe_lookups(model: nn.Module, views: Mapping[str, TableView], policy: RowPolicy) -> None:
    """Let `policy` see the rows of every look-up of `model` that has a gradient; evaluation is not seen.

    Args:
        model: sharded; its look-ups on this rank are hooked.
        views: the rows that this rank holds, as `table_views` gives them.
        policy: its `observe` is called with row numbers of the whole table; tables it does not track are ignored.
    Cost a step: `observe`, and a slice of the IDs by feature.
    """
    watcher = _PolicyWatcher(views, policy)
    for lookup in fused_lookups(model):
        lookup.register_forward_pre_hook(watcher, with_kwargs=True)


class _PolicyWatcher(Watcher):
    def __init__(self, views: Mapping[str, TableView], policy: RowPolicy) -> None:
        self._views = views
        self._policy = policy

    @override
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for table, rows in looked_up(module, args, kwargs, self._views).items() if torch.is_grad_enabled() else ():
            self._policy.observe(table, rows)

    @override
    def see(self, table: str, rows: Tensor) -> None:
        if torch.is_grad_enabled():
            self._policy.observe(table, rows + self._views[table].first_row)


def looked_up(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], views: Mapping[str, TableView]
) -> dict[str, Tensor]:
    """Return the table's row numbers that a call of a fused look-up reads, by table name."""
    assert isinstance(module, SplitTableBatchedEmbeddingBagsCodegen)
    indices: Tensor = kwargs["indices"] if "indices" in kwargs else args[0]
    offsets: Tensor = kwargs["offsets"] if "offsets" in kwargs else args[1]
    num_features = len(module.feature_table_map)
    stride = (offsets.numel() - 1) // num_features
    bounds = [int(offsets[feature * stride]) for feature in range(num_features + 1)]
    names = {view.weight.data_ptr(): name for name, view in views.items()}
    result: dict[str, Tensor] = {}
    for feature, table in enumerate(module.feature_table_map):
        weight = module.split_embedding_weights()[table]
        name = names[weight.data_ptr()]
        rows = indices[bounds[feature] : bounds[feature + 1]].long() + views[name].first_row
        result[name] = torch.cat([result[name], rows]) if name in result else rows
    return result
