"""Saves of a whole run: tables, dense parameters with their optimizer, reader position, counters, random state.

One rank: the copy stops training, the writing goes on beside it. Several ranks: each writes its own shard's entry, the
first commits the manifest after all have reported; a rank that cannot write stops all of them with one error.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from recoup.checkpoint import (
    CheckpointStore,
    PendingSave,
    SaveRequest,
    ShardPlan,
    StoreConfig,
    save_together,
)
from recoup.core import EventLog, RecoupError
from recoup.model import DLRMConfig
from recoup.train.errors import TrainError
from recoup.train.ranks import Ranks
from recoup.train.sharding import table_ranks
from recoup.train.trainer import Trainer

RUN_ID = "run"
_RNG = "random/torch"


class RunSaves:
    """The checkpoints of one run's folder."""

    def __init__(self, url: str, trainer: Trainer, *, keep: int = 2, events: EventLog | None = None) -> None:
        """Open the store; nothing is written."""
        self._trainer = trainer
        self._pending: PendingSave | None = None
        self._store = CheckpointStore(
            url,
            RUN_ID,
            shard_plan(trainer.model_config, trainer.ranks),
            config=StoreConfig(keep=keep),
            events=events if trainer.ranks.rank == 0 else None,
        )

    def save(self, extra: Mapping[str, Any]) -> None:
        """Save everything of this step; `extra` is plain state that travels along.

        Raises:
            TrainError: the model holds NaN or infinity; nothing was saved.
            CheckpointError: an earlier save failed, or this one did (on any rank).
        """
        trainer = self._trainer
        ranks = trainer.ranks
        problem: RecoupError | None = None
        try:
            trainer.check_finite()
        except TrainError as err:
            problem = err
        ranks.agree(problem, [], trainer.device)
        request = SaveRequest(
            step=trainer.num_steps,
            views=trainer.table_views(),
            dense={**trainer.dense_state(), _RNG: torch.get_rng_state()},
            extra={"trainer": trainer.state_dict(), **extra},
        )
        if ranks.world_size == 1:
            self._pending = self._store.start_save(request)
        else:
            rank = ranks.rank
            save_together(self._store, request, rank=rank, shards=[rank], gather=ranks.gather)

    def restore(self) -> dict[str, Any]:
        """Set the trainer to the newest intact checkpoint and return the plain state saved with it.

        Raises:
            NoCheckpointError: there is none.
            CheckpointError: it does not fit this model; nothing was changed.
            TrainError: the dense state is of another model or optimizer.
        """
        restored = self._store.restore(self._trainer.table_views())
        dense = dict(restored.dense)
        torch.set_rng_state(_taken(dense, _RNG))
        self._trainer.load_dense_state(dense)
        extra = dict(restored.extra)
        self._trainer.load_state_dict(extra.pop("trainer"))
        return extra

    @property
    def store(self) -> CheckpointStore:
        """The checkpoints themselves."""
        return self._store

    def close(self) -> None:
        """Wait for the save in flight.

        Raises:
            CheckpointError: it failed; older checkpoints are intact.
        """
        self._store.close()
        if self._pending is not None:
            self._pending.result()


def shard_plan(model: DLRMConfig, ranks: Ranks) -> ShardPlan:
    """Return the checkpoint's shards: whole tables, where the ranks hold them."""
    num_rows = {table.name: table.num_embeddings for table in model.tables}
    return ShardPlan.by_table(num_rows, ranks.world_size, table_ranks(model, ranks.world_size))


def _taken(dense: dict[str, Tensor], name: str) -> Tensor:
    if name not in dense:
        raise TrainError(f"expected {name!r} in the checkpoint, got {sorted(dense)[:5]}...: it is not of a run")
    return dense.pop(name)
