"""After a failure: agree on the step, decide partial or full, restore, go on. Every rank calls this in the new group.

    reports      every rank tells what it has; the leader is the survivor that is farthest
    decision     the leader asks the guard; all take its word
    partial      survivors finish the interrupted step if the leader has finished it, else drop it; a new rank reads its
                 own shard from the store, without a collective, and takes dense parameters, counters, reader position
                 and ledger from the leader
    full         all ranks read the newest checkpoint whole

A failure while this runs raises RuntimeError: the caller meets the others again in a newer generation and calls again.
A rank counts as a survivor of the newer generation only if its state is whole: see `LiveJob.recovered`.
"""

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from recoup.checkpoint import Manifest
from recoup.recovery import Decision, FailureNotice, GuardConfig, decide, facts_of
from recoup.runtime.errors import JobError
from recoup.runtime.job import SAVED_AT, LiveJob, Mark


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank brings into a new generation."""

    rank: int
    recovered: int
    """Generation in which its state was last made whole; -1: it is new, or a full recovery of it was interrupted."""
    step: int
    """The last step that it has finished."""

    @property
    def survivor(self) -> bool:
        """Whether it holds its shard as it was after a step."""
        return self.recovered >= 0


def reconfigure(job: LiveJob, *, generation: int, guard: GuardConfig, resume: bool, verify: bool = False) -> str:
    """Bring all ranks to one state; return "start", "resume", "partial" or "full".

    Args:
        job: this rank's part.
        generation: the newest; the store refuses commits of older ones.
        guard: limits of partial recovery.
        resume: whether a run whose ranks are all new goes on from the newest checkpoint.
        verify: hash survivors' rows before and after.
    """
    began = time.perf_counter()
    job.heartbeat.enter("recovering", job.trainer.num_steps)
    job.saves.store.generation = generation
    ranks = job.trainer.ranks
    job.saves.regroup()
    reports = ranks.gather(Report(ranks.rank, job.recovered, job.trainer.num_steps))
    survivors = [report for report in reports if report.survivor]
    if not survivors:
        how = _from_nothing(job, resume=resume)
        job.recovered = generation
        return how
    failed = tuple(report.rank for report in reports if not report.survivor)
    leader = max(survivors, key=lambda report: (report.step, report.recovered, -report.rank))
    behind = [report.rank for report in survivors if report.step < leader.step]
    shared = _share(job, leader.rank, failed, guard, behind=bool(behind))
    agreed = time.perf_counter()
    before = ""
    if shared["recovery"] == "full":
        job.recovered = -1  # until all are back at the checkpoint
        _full(job)
    elif ranks.rank in failed:
        job.trainer.load_dense_state(shared["dense"])
        job.take(Mark(**shared["mark"]))
        job.saves.store.restore(job.trainer.table_views(), manifest=shared["manifest"], shards=[ranks.rank])
        job.saves.all_saved()
    else:
        _settle(job, shared, behind=ranks.rank in behind)
        before = job.rows_digest() if verify else ""
    ranks.gather(0)  # nobody trains, and nothing is counted, before everyone is ready
    job.recovered = generation
    if before:
        if job.rows_digest() != before:
            raise JobError(f"rank {ranks.rank}: a survivor's rows changed in the recovery of generation {generation}")
        job.events.emit("survivor_verified", generation=generation, digest=before)
    if shared["recovery"] == "partial":
        _count_loss(job, shared, failed)
    if ranks.rank == leader.rank:
        job.events.emit(
            "recovered",
            generation=generation,
            step=job.trainer.num_steps,
            checkpoint_step=shared["manifest"].step if shared["manifest"] is not None else None,
            failed=list(failed),
            recovery=shared["recovery"],
            reason=shared["reason"],
            position=job.num_samples,
            checkpoint_position=job.saved_position if shared["manifest"] is not None else None,
            pls_before=shared["pls_before"],
            pls_after=job.ledger.pls,
            agree_seconds=agreed - began,
            restore_seconds=time.perf_counter() - agreed,
        )
    return str(shared["recovery"])


def _count_loss(job: LiveJob, shared: dict[str, Any], failed: tuple[int, ...]) -> None:
    job.ledger.load_state_dict(shared["mark"]["ledger"])
    if shared["manifest"] is not None:
        # The store knows better than the ranks: one may die after the commit and before the others hear of it.
        job.go_on_from(shared["manifest"])
    if failed:
        job.ledger.lost(failed, job.num_samples)
    assert job.mark is not None
    job.mark.ledger = job.ledger.state_dict()


def _from_nothing(job: LiveJob, *, resume: bool) -> str:
    """Begin, or go on from the newest checkpoint: of an earlier launch, or of this one if every rank died."""
    if any(job.trainer.ranks.gather(resume or job.saves.store.latest() is not None)):
        _full(job)
        return "resume"
    job.save()
    return "start"


def _settle(job: LiveJob, shared: dict[str, Any], *, behind: bool) -> None:
    """Bring a survivor to the leader's step: nothing of the interrupted step, or all of it."""
    if behind:
        job.finish_step(Mark(**shared["mark"]), shared["dense"])
    else:
        job.drop_step()


def _full(job: LiveJob) -> None:
    extra = job.saves.restore()
    extra["trainer"] = job.trainer.state_dict()
    job.restart_from(extra)
    job.ledger.rewound(job.num_samples)
    job.ledger.saved(job.saved_position)


def _share(job: LiveJob, leader: int, failed: tuple[int, ...], guard: GuardConfig, *, behind: bool) -> dict[str, Any]:
    """Return what the leader decided, and gives to new ranks and to survivors that are behind."""
    ranks = job.trainer.ranks
    box: list[Any] = [None]
    if ranks.rank == leader:
        box[0] = _decide(job, failed, guard, behind=behind)
    dist.broadcast_object_list(box, src=dist.get_global_rank(ranks.group, leader), group=ranks.group)
    assert isinstance(box[0], dict)
    return box[0]


def _decide(job: LiveJob, failed: tuple[int, ...], guard: GuardConfig, *, behind: bool) -> dict[str, Any]:
    world = job.trainer.ranks.world_size
    mark = job.mark
    assert mark is not None
    if not failed:  # everyone lived: the exchange failed, or a rank came back before it was missed
        return {
            "recovery": "partial",
            "reason": "no shard was lost",
            "pls_before": job.ledger.pls,
            "manifest": job.saves.store.latest(),
            "mark": asdict(mark),
            "dense": job.trainer.dense_state() if behind else {},
        }
    manifest = job.saves.store.latest()
    notice = FailureNotice(
        shards=failed,
        position=job.num_samples,
        staleness_seconds=_age_seconds(manifest),
        num_dense_replicas=world - len(failed),
    )
    decision: Decision = decide(facts_of(notice, job.ledger, manifest), guard, job.events)
    return {
        "recovery": decision.recovery,
        "reason": decision.reason,
        "pls_before": job.ledger.pls,
        "manifest": manifest,
        "mark": asdict(mark),
        "dense": job.trainer.dense_state(),
    }


def _age_seconds(manifest: Manifest | None) -> float:
    """Return how long ago a checkpoint was saved; 0 where it does not say, or there is none."""
    saved_at = json.loads(manifest.extra).get(SAVED_AT) if manifest is not None else None
    return 0.0 if saved_at is None else max(0.0, time.time() - saved_at)
