"""Partial and full recovery: live rows set back from the checkpoint store, the ledger kept, the facts written down.

Law: a partial recovery changes the failed shards' rows and nothing else; survivors' rows and the dense part stay
bit-equal. A full recovery sets everything to one checkpoint. Neither needs a collective.
A checkpoint that cannot be trusted is passed over before the first row is changed, and the ledger then counts from the
older one that was used.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from torch import Tensor

from recoup.checkpoint import CheckpointStore, Manifest, TableView
from recoup.core import EventLog
from recoup.recovery.errors import RecoveryError
from recoup.recovery.guard import Decision, FailureFacts, GuardConfig, decide
from recoup.recovery.ledger import Ledger, Loss

POSITION = "num_samples"
"""Key of a checkpoint's plain state (`SaveRequest.extra`) that holds its position: samples trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureNotice:
    """What the one who noticed a failure knows."""

    shards: tuple[int, ...]
    position: int
    """Samples trained when it happened."""
    staleness_seconds: float
    """Age of the newest checkpoint."""
    num_dense_replicas: int
    """Survivors that hold the dense part."""
    planned: Literal["partial", "full"] = "partial"
    """The planner's recommendation."""
    lost_accesses: Mapping[int, float] | None = None
    """By failed shard, if they are counted (`RowAccesses`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """What a recovery did."""

    recovery: Literal["partial", "full"]
    manifest: Manifest
    """The checkpoint restored."""
    losses: tuple[Loss, ...] = ()
    """Of a partial recovery, by shard."""
    dense: Mapping[str, Tensor] | None = None
    """Of a full recovery: the dense tensors to load; None after a partial one (survivors hold newer ones)."""
    extra: Mapping[str, Any] | None = None
    """Of a full recovery: the plain state to go on from; None after a partial one."""
    seconds: float
    decision: Decision | None = None


def recover(
    store: CheckpointStore,
    views: Mapping[str, TableView],
    notice: FailureNotice,
    ledger: Ledger,
    config: GuardConfig,
    events: EventLog | None = None,
) -> Recovered:
    """Let the guard decide, then recover partially or fully.

    Args:
        store: the run's checkpoints, with the position in their plain state.
        views: live rows in this process; all of the failed shards' rows that are to be set back.
        notice: what happened.
        ledger: kept.
        config: of the guard.
        events: `recovery_decided` and `recovery_finished` are written to it.
    Returns:
        What was done; after a full recovery the caller loads `dense` and goes on from `extra`.
    Raises:
        RecoveryError: there is no complete checkpoint.
    """
    decision = decide(facts_of(notice, ledger, store.latest()), config, events)
    if decision.recovery == "partial":
        return recover_partial(store, views, notice, ledger, events, decision=decision)
    return recover_full(store, views, ledger, events, decision=decision)


def recover_partial(
    store: CheckpointStore,
    views: Mapping[str, TableView],
    notice: FailureNotice,
    ledger: Ledger,
    events: EventLog | None = None,
    *,
    decision: Decision | None = None,
) -> Recovered:
    """Set the failed shards' rows back to their newest intact checkpoint; count the loss. Arguments as `recover`."""
    began = perf_counter()
    restored = store.restore(views, shards=notice.shards)
    since = _older_position(notice.shards, ledger, restored.manifest)
    losses = ledger.lost(notice.shards, notice.position, since=since, accesses=notice.lost_accesses)
    result = Recovered(
        recovery="partial",
        manifest=restored.manifest,
        losses=losses,
        seconds=perf_counter() - began,
        decision=decision,
    )
    _emit(events, result, ledger)
    return result


def recover_full(
    store: CheckpointStore,
    views: Mapping[str, TableView],
    ledger: Ledger,
    events: EventLog | None = None,
    *,
    decision: Decision | None = None,
) -> Recovered:
    """Set all live rows back to the newest intact checkpoint; return the dense tensors and state that go with it.

    With priority saves the rows of one checkpoint are of different ages: what was lost of them stays lost, and only the
    ledger's losses after the checkpoint's position are taken back.
    """
    began = perf_counter()
    restored = store.restore(views)
    ledger.rewound(position_of(restored.manifest))
    result = Recovered(
        recovery="full",
        manifest=restored.manifest,
        dense=restored.dense,
        extra=restored.extra,
        seconds=perf_counter() - began,
        decision=decision,
    )
    _emit(events, result, ledger)
    return result


def facts_of(notice: FailureNotice, ledger: Ledger, manifest: Manifest | None) -> FailureFacts:
    """Return the guard's facts: PLS by the ledger, completeness by the newest complete checkpoint (None = none)."""
    held = set() if manifest is None else {entry.shard for entry in manifest.entries}
    since = None if manifest is None else _older_position(notice.shards, ledger, manifest)
    return FailureFacts(
        failed_shards=notice.shards,
        pls_before=ledger.pls,
        pls_after=ledger.preview(notice.shards, notice.position, since),
        staleness_seconds=notice.staleness_seconds,
        num_dense_replicas=notice.num_dense_replicas,
        shards_without_checkpoint=tuple(shard for shard in notice.shards if shard not in held),
        full_checkpoint=manifest is not None,
        planned=notice.planned,
    )


def position_of(manifest: Manifest) -> int:
    """Return the position of a checkpoint.

    Raises:
        RecoveryError: it was saved without one.
    """
    position = json.loads(manifest.extra).get(POSITION)
    if not isinstance(position, int):
        raise RecoveryError(
            f"checkpoint '{manifest.name}': expected {POSITION!r} in its plain state, got {position!r}: "
            "save with extra={'num_samples': ...}"
        )
    return position


def _older_position(shards: tuple[int, ...], ledger: Ledger, manifest: Manifest) -> int | None:
    """Return the checkpoint's position if it is older than the ledger takes the shards' saves to be, else None."""
    position = position_of(manifest)
    return position if position < min(ledger.last_saved(shard) for shard in shards) else None


def _emit(events: EventLog | None, result: Recovered, ledger: Ledger) -> None:
    if events is not None:
        events.emit(
            "recovery_finished",
            recovery=result.recovery,
            checkpoint=result.manifest.name,
            checkpoint_step=result.manifest.step,
            pls=ledger.pls,
            seconds=result.seconds,
        )
