"""Saves of a whole run: tables, dense parameters with their optimizer, reader position, counters, random state.

One rank: the copy stops training, the writing goes on beside it. Several ranks: each writes its own shard's entry, the
first commits the manifest after all have reported; a rank that cannot write stops all of them with one error.
With a policy, saves of the rows that it puts first are written in the background on any number of ranks: they meet
through files of the store, and agree at the next save that the one before is done.
"""

import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from recoup.checkpoint import (
    CheckpointError,
    CheckpointStore,
    FileGather,
    PendingSave,
    SaveRequest,
    ShardPlan,
    StoreConfig,
    remove_reports,
    save_together,
    start_save_together,
)
from recoup.checkpoint.policies import make_policy, priority_rows
from recoup.core import EventLog, RecoupError
from recoup.model import DLRMConfig, observe_lookups
from recoup.train.errors import TrainError
from recoup.train.ranks import Ranks
from recoup.train.run_config import CheckpointConfig
from recoup.train.sharding import table_ranks
from recoup.train.trainer import Trainer

RUN_ID = "run"
_RNG = "random/torch"
_REPORT_SECONDS = 600.0  # a slow storage is not a dead rank; a dead one is noticed by training's own exchanges
_POLL_SECONDS = 0.02


class RunSaves:
    """The checkpoints of one run's folder."""

    def __init__(
        self, url: str, trainer: Trainer, config: CheckpointConfig | None = None, *, events: EventLog | None = None
    ) -> None:
        """Open the store; nothing is written."""
        self._trainer = trainer
        self._config = config or CheckpointConfig()
        self._pending: PendingSave | None = None
        self._rows: dict[str, Tensor] = {}
        self._gather: FileGather | None = None
        self._events = events if events is not None and trainer.ranks.rank == 0 else EventLog()
        self._store = CheckpointStore(
            url,
            RUN_ID,
            shard_plan(trainer.model_config, trainer.ranks),
            config=StoreConfig(keep=self._config.keep),
            events=self._events,
        )
        views = trainer.table_views()
        self._policy = make_policy(self._config.policy, views, fraction=self._config.fraction, seed=trainer.config.seed)
        if self._policy is not None:
            observe_lookups(trainer.model, views, self._policy)

    @property
    def by_priority(self) -> bool:
        """Whether rows are saved by a policy between saves of everything."""
        return self._policy is not None

    @property
    def saves_a_cycle(self) -> int:
        """How many saves of rows count as one save of everything: 1 / r, as in the paper (CPR, arXiv 2011.02999)."""
        return max(1, round(1 / self._config.fraction))

    def due(self, step: int) -> Literal["nothing", "rows", "everything"]:
        """Return what to save after `step`: rows by priority, or everything."""
        every = self._config.every_steps
        if every is None or step == 0:
            return "nothing"
        if self._policy is None:
            return "nothing" if step % every else "everything"
        return "nothing" if step % max(1, round(every * self._config.fraction)) else "rows"

    def regroup(self) -> None:
        """Let the ranks agree on a new token to meet under; a save in flight is given up. Nothing without a policy.

        All ranks call this once before the first save of rows, and after every change of the process group.
        """
        if self._policy is None:
            return
        ranks = self._trainer.ranks
        token = ranks.gather(uuid.uuid4().hex)[0]
        if self._gather is not None:
            self._gather.give_up()
        if self._pending is not None:
            self._outcome(self._pending)
        if ranks.rank == 0:
            remove_reports(self._store.storage, keep=token)
        self._gather = FileGather(
            self._store.storage, token, rank=ranks.rank, world_size=ranks.world_size, timeout_seconds=_REPORT_SECONDS
        )

    def save(self, extra: Mapping[str, Any]) -> None:
        """Save everything of this step; `extra` is plain state that travels along.

        Raises:
            TrainError: the model holds NaN or infinity; nothing was saved.
            CheckpointError: an earlier save failed, or this one did (on any rank).
        """
        self.settle()
        ranks = self._trainer.ranks
        problem: RecoupError | None = None
        try:
            self._trainer.check_finite()
        except TrainError as err:
            problem = err
        ranks.agree(problem, [], self._trainer.device)
        request = self._request(extra, None)
        if ranks.world_size == 1:
            self._pending = self._store.start_save(request)
        else:
            rank = ranks.rank
            save_together(self._store, request, rank=rank, shards=[rank], gather=ranks.gather)
        self.all_saved()

    def save_rows(self, extra: Mapping[str, Any]) -> None:
        """Save the rows that the policy puts first, the small tables and the dense part, in the background.

        What is not finite is found while it is written: this save then fails, and `settle` says so.

        Raises:
            CheckpointError: the save before this one failed.
        """
        assert self._policy is not None
        self.settle()
        ranks = self._trainer.ranks
        views = self._trainer.table_views()
        request = self._request(extra, priority_rows(self._policy, views, fraction=self._config.fraction))
        if ranks.world_size == 1:
            self._pending = self._store.start_save(request)
        else:
            assert self._gather is not None, "regroup was not called"
            self._pending = start_save_together(
                self._store, request, rank=ranks.rank, shards=[ranks.rank], gather=self._gather
            )
        self._rows = dict(request.rows or {})
        for table, rows in self._rows.items():
            self._policy.saved(table, rows)

    def settle(self) -> None:
        """Wait until the save in flight is done on every rank.

        Raises:
            CheckpointError: it failed on some rank; its rows are first again, and older checkpoints are intact.
            RuntimeError: a rank died meanwhile (its exchange failed).
        """
        if not self.by_priority:
            return  # one rank: the store itself waits, and raises what failed
        ranks = self._trainer.ranks
        while True:
            pending = self._pending
            if all(ranks.gather(pending is None or pending.done)):
                break
            time.sleep(_POLL_SECONDS)
        problem = self._outcome(pending) if pending is not None else ""
        first = next((found for found in ranks.gather(problem) if found), "")
        if first:
            raise CheckpointError(first)

    def all_saved(self) -> None:
        """Take note that every row here is as it was saved: everything was saved just now, or restored."""
        if self._policy is not None:
            for table, view in self._trainer.table_views().items():
                self._policy.saved(table, torch.arange(view.first_row, view.first_row + view.weight.shape[0]))

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
        self.all_saved()
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

    def _request(self, extra: Mapping[str, Any], rows: Mapping[str, Tensor] | None) -> SaveRequest:
        trainer = self._trainer
        return SaveRequest(
            step=trainer.num_steps,
            views=trainer.table_views(),
            rows=rows,
            dense={**trainer.dense_state(), _RNG: torch.get_rng_state()},
            extra={"trainer": trainer.state_dict(), **extra},
        )

    def _outcome(self, pending: PendingSave) -> str:
        """Return why a save failed, "" if it did not; the rows of a failed one come first again."""
        rows, self._rows, self._pending = self._rows, dict[str, Tensor](), None
        try:
            pending.result()
        except CheckpointError as err:
            self._events.emit("save_failed", step=self._trainer.num_steps, reason=str(err))
            if self._policy is not None:
                for table, chosen in rows.items():
                    self._policy.unsaved(table, chosen)
            return str(err)
        return ""


def shard_plan(model: DLRMConfig, ranks: Ranks) -> ShardPlan:
    """Return the checkpoint's shards: whole tables, where the ranks hold them."""
    num_rows = {table.name: table.num_embeddings for table in model.tables}
    return ShardPlan.by_table(num_rows, ranks.world_size, table_ranks(model, ranks.world_size))


def _taken(dense: dict[str, Tensor], name: str) -> Tensor:
    if name not in dense:
        raise TrainError(f"expected {name!r} in the checkpoint, got {sorted(dense)[:5]}...: it is not of a run")
    return dense.pop(name)
