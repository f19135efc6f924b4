"""Attach recovery to a TorchRec job of one's own: trackers, priority saves, the ledger, and one shard's return.

Nothing of Recoup's reader or model is needed: a DistributedModelParallel with fused tables, a store and a policy. The
job calls `step_done` after every step; everything else is asked for. On many ranks every rank attaches, and calls
`save`, `save_first` and `recover` at the same steps as the others.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from recoup.checkpoint import (
    CheckpointError,
    CheckpointStore,
    FileGather,
    Manifest,
    PendingSave,
    Restored,
    SaveRequest,
    TableView,
    start_save_together,
)
from recoup.checkpoint.policies import SAVE_FRACTION, RowPolicy
from recoup.core import EventLog
from recoup.model import observe_lookups, table_views
from recoup.recovery.errors import RecoveryError
from recoup.recovery.guard import GuardConfig
from recoup.recovery.ledger import Ledger
from recoup.recovery.restore import POSITION, FailureNotice, Recovered, recover

REPORT_SECONDS = 300.0
"""How long a save waits for the slowest rank's report; a rank that is dead is named after that."""


class Attached:
    """A user's job with a store, a policy and a ledger."""

    def __init__(
        self,
        model: DistributedModelParallel,
        store: CheckpointStore,
        policy: RowPolicy | None,
        total_samples: int,
        *,
        guard: GuardConfig | None = None,
        events: EventLog | None = None,
    ) -> None:
        """Watch the model's look-ups; nothing is saved yet. Many ranks: this is one collective (see `attach`)."""
        self.store = store
        self.policy = policy
        self.ledger = Ledger(store.plan.num_shards, total_samples)
        self.step = 0
        self.num_samples = 0
        self.views: dict[str, TableView] = table_views(model)
        self._guard = guard or GuardConfig()
        self._events = events or EventLog()
        self._pending: tuple[PendingSave, Mapping[str, Tensor]] | None = None
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._shards = held_shards(store, self.views)
        token = [uuid.uuid4().hex]
        if self._world_size > 1:
            dist.broadcast_object_list(token, src=0)
        self._gather = FileGather(
            store.storage, token[0], rank=self._rank, world_size=self._world_size, timeout_seconds=REPORT_SECONDS
        )
        if policy is not None:
            observe_lookups(model, self.views, policy)

    def step_done(self, num_samples: int) -> None:
        """Count a step of `num_samples` samples (over all ranks)."""
        self.step += 1
        self.num_samples += num_samples

    def save(self, dense: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None) -> Manifest:
        """Save every row, the dense tensors (rank 0's) and the plain state; returns when it is committed.

        Raises:
            CheckpointError: this save failed, or the priority save before it did; older checkpoints are intact.
        """
        self.wait()
        manifest = self._start(dense, extra, None).result()
        for table, view in self.views.items():
            if self.policy is not None:
                self.policy.saved(table, torch.arange(view.first_row, view.first_row + view.weight.shape[0]))
        self.ledger.saved(self.num_samples)
        return manifest

    def save_first(
        self, dense: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None, fraction: float = SAVE_FRACTION
    ) -> None:
        """Save the rows that the policy puts first, `fraction` of each table's rows here, in the background.

        Raises:
            RecoveryError: the job was attached without a policy.
            CheckpointError: the priority save before this one failed; its rows are first again, and nothing is lost:
                training may go on, and the next call saves.
        """
        if self.policy is None:
            raise RecoveryError("expected a policy for a priority save, got none: attach with one, or call save")
        self.wait()
        rows = {
            table: self.policy.select(table, max(1, int(view.weight.shape[0] * fraction)))
            for table, view in self.views.items()
        }
        self._pending = self._start(dense, extra, rows), rows
        for table, chosen in rows.items():
            self.policy.saved(table, chosen)

    def wait(self) -> None:
        """Wait for the priority save in flight.

        Raises:
            CheckpointError: it failed; its rows are first again.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        save, rows = pending
        try:
            save.result()
        except CheckpointError:
            for table, chosen in rows.items():
                if self.policy is not None:
                    self.policy.unsaved(table, chosen)
            raise

    def recover(self, shards: Sequence[int], *, staleness_seconds: float = 0.0) -> Recovered:
        """Set the failed shards' rows back as the guard decides, and count the loss; a save in flight ends first.

        After a full recovery the caller loads the dense tensors and goes on from the plain state that are returned.
        """
        try:
            self.wait()
        except CheckpointError as err:
            self._events.emit("save_failed", step=self.step, reason=str(err))
        notice = FailureNotice(
            shards=tuple(shards),
            position=self.num_samples,
            staleness_seconds=staleness_seconds,
            num_dense_replicas=max(1, self._world_size - len(set(shards))),
        )
        done = recover(self.store, self.views, notice, self.ledger, self._guard, self._events)
        if done.extra is not None:
            self._go_on(done.extra, done.manifest)
        return done

    def restore(self) -> Restored:
        """Set every row to the newest checkpoint (a restart of the whole job); return dense tensors and state."""
        restored = self.store.restore(self.views)
        self._go_on(restored.extra, restored.manifest)
        return restored

    def close(self) -> None:
        """Wait for the save in flight, and close the store.

        Raises:
            CheckpointError: that save failed.
        """
        try:
            self.wait()
        finally:
            self.store.close()

    def _go_on(self, extra: Mapping[str, Any], manifest: Manifest) -> None:
        self.num_samples = int(extra[POSITION])
        self.step = manifest.step

    def _start(
        self, dense: Mapping[str, Tensor], extra: Mapping[str, Any] | None, rows: Mapping[str, Tensor] | None
    ) -> PendingSave:
        state = {**(extra or {}), POSITION: self.num_samples}
        request = SaveRequest(step=self.step, views=self.views, rows=rows, dense=dense, extra=state)
        if self._world_size == 1:
            return self.store.start_save(request)
        return start_save_together(self.store, request, rank=self._rank, shards=self._shards, gather=self._gather)


def attach(
    model: DistributedModelParallel,
    store: CheckpointStore,
    policy: RowPolicy | None = None,
    *,
    total_samples: int,
    guard: GuardConfig | None = None,
    events: EventLog | None = None,
) -> Attached:
    """Attach recovery to a user's sharded model and return the handle.

    On many ranks every rank calls this (one small broadcast); the plan's shards must lie whole on one rank each, as
    `ShardPlan.by_table` with TorchRec's table-wise placement gives it.

    Args:
        model: tables with fused optimizers, whatever else.
        store: where to save; its plan says which shard holds which rows. The same URL, run and plan on every rank.
        policy: which rows priority saves take; it tracks the tables of this rank. None = whole saves only.
        total_samples: samples of the whole run over all ranks, for PLS.
        guard: limits of partial recovery.
        events: decisions, recoveries and failed saves are written to it.
    Raises:
        RecoveryError: a shard of the plan lies on more than one rank.
    Cost: with a policy, its `observe` on the row numbers of every look-up.
    """
    return Attached(model, store, policy, total_samples, guard=guard, events=events)


def held_shards(store: CheckpointStore, views: Mapping[str, TableView]) -> tuple[int, ...]:
    """Return the shards of the store's plan whose rows are all in memory here; none of theirs lies elsewhere.

    Raises:
        RecoveryError: a shard lies here in part.
    """
    plan = store.plan
    held: list[int] = []
    for shard in range(plan.num_shards):
        here = total = 0
        for table in plan.num_rows:
            rows = plan.rows_of(table, shard)
            total += rows.numel()
            view = views.get(table)
            if view is not None:
                last = view.first_row + view.weight.shape[0]
                here += int(((rows >= view.first_row) & (rows < last)).sum())
        if here == total and (total or dist.get_rank() == 0):  # a shard without rows is rank 0's
            held.append(shard)
        elif here:
            raise RecoveryError(
                f"expected every shard of the plan whole on one rank, got {here} of {total} rows of shard {shard} on "
                f"rank {dist.get_rank()}: make the plan by table, with the owners that the sharding plan names"
            )
    return tuple(held)
