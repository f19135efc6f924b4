"""After a failure: agree on the step, decide partial or full, restore, go on. Every rank calls this in the new group.

    marks        every rank tells what it has; the target is the last step that all survivors can go back to
    decision     the lowest survivor asks the guard; all take its word
    partial      survivors take the interrupted step back; a new rank reads its own shard from the store, without a
                 collective, and takes dense parameters, counters, reader position and ledger from the lowest survivor
    full         all ranks read the newest checkpoint whole

A failure while this runs raises RuntimeError: the caller meets the others again in a newer generation and calls again.
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist

from recoup.recovery import Decision, FailureNotice, GuardConfig, decide, facts_of
from recoup.recovery.restore import position_of
from recoup.runtime.errors import JobError
from recoup.runtime.job import LiveJob, Mark


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank brings into a new generation."""

    rank: int
    survivor: bool
    """It holds its shard as it was after a step."""
    steps: tuple[int, ...]
    """Steps it can be at: after its last completed step, and after the one before."""


def reconfigure(
    job: LiveJob, *, survivor: bool, generation: int, guard: GuardConfig, resume: bool, verify: bool = False
) -> str:
    """Bring all ranks to one state; return "start", "resume", "partial" or "full".

    Args:
        job: this rank's part.
        survivor: whether it was in an earlier generation.
        generation: the newest; the store refuses commits of older ones.
        guard: limits of partial recovery.
        resume: whether a run whose ranks are all new goes on from the newest checkpoint.
        verify: hash survivors' rows before and after.
    """
    began = time.perf_counter()
    job.heartbeat.enter("recovering", job.trainer.num_steps)
    job.saves.store.generation = generation
    ranks = job.trainer.ranks
    mine = Report(ranks.rank, survivor, tuple(mark.step for mark in job.marks))
    reports = ranks.gather(mine)
    survivors = [report for report in reports if report.survivor]
    if not survivors:
        return _from_nothing(job, resume=resume)
    failed = tuple(report.rank for report in reports if not report.survivor)
    target = min(report.steps[-1] for report in survivors)
    if survivor:
        job.back_to(target)
    before = job.rows_digest() if verify and survivor else ""
    leader = min(report.rank for report in survivors)
    shared = _share(job, leader, failed, guard)
    agreed = time.perf_counter()
    if shared["recovery"] == "full":
        _full(job)
    elif not survivor:
        job.trainer.load_dense_state(shared["dense"])
        job.take(Mark(**shared["mark"]))
        job.saves.store.restore(job.trainer.table_views(), manifest=shared["manifest"], shards=[ranks.rank])
    ranks.gather(0)  # nobody trains, and nothing is counted, before everyone is ready
    if before and shared["recovery"] == "partial":
        if job.rows_digest() != before:
            raise JobError(f"rank {ranks.rank}: a survivor's rows changed in the recovery of generation {generation}")
        job.events.emit("survivor_verified", generation=generation, digest=before)
    if shared["recovery"] == "partial":
        job.ledger.load_state_dict(shared["mark"]["ledger"])
        if failed:
            job.ledger.lost(failed, job.num_samples)
        job.marks[-1].ledger = job.ledger.state_dict()
    if ranks.rank == leader:
        job.events.emit(
            "recovered",
            generation=generation,
            step=job.trainer.num_steps,
            checkpoint_step=shared["manifest"].step if shared["manifest"] is not None else None,
            failed=list(failed),
            recovery=shared["recovery"],
            reason=shared["reason"],
            position=job.num_samples,
            checkpoint_position=position_of(shared["manifest"]) if shared["manifest"] is not None else None,
            pls_before=shared["pls_before"],
            pls_after=job.ledger.pls,
            agree_seconds=agreed - began,
            restore_seconds=time.perf_counter() - agreed,
        )
    return str(shared["recovery"])


def _from_nothing(job: LiveJob, *, resume: bool) -> str:
    if resume:
        _full(job)
        return "resume"
    job.save()
    return "start"


def _full(job: LiveJob) -> None:
    extra = job.saves.restore()
    extra["trainer"] = job.trainer.state_dict()
    job.restart_from(extra)
    job.ledger.rewound(job.num_samples)
    job.ledger.saved(job.num_samples)


def _share(job: LiveJob, leader: int, failed: tuple[int, ...], guard: GuardConfig) -> dict[str, Any]:
    """Return what the lowest survivor decided and gives to the new ranks."""
    ranks = job.trainer.ranks
    box: list[Any] = [None]
    if ranks.rank == leader:
        box[0] = _decide(job, failed, guard)
    dist.broadcast_object_list(box, src=dist.get_global_rank(ranks.group, leader), group=ranks.group)
    assert isinstance(box[0], dict)
    return box[0]


def _decide(job: LiveJob, failed: tuple[int, ...], guard: GuardConfig) -> dict[str, Any]:
    world = job.trainer.ranks.world_size
    mark = job.marks[-1]
    if not failed:  # everyone lived: the exchange failed, or a rank came back before it was missed
        return {
            "recovery": "partial",
            "reason": "no shard was lost",
            "pls_before": job.ledger.pls,
            "manifest": None,
            "mark": asdict(mark),
            "dense": {},
        }
    manifest = job.saves.store.latest()
    notice = FailureNotice(
        shards=failed,
        position=job.num_samples,
        staleness_seconds=0.0,
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
