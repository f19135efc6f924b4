"""A workload without training: the same machine, thousands of MTBFs long, for overheads and PLS with small errors."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from recoup.emulate.machine import Account, JobTimes, Machine
from recoup.failures import Failure


@dataclass(slots=True)
class ClockOnly:
    """Count lost progress by shard and train nothing."""

    num_shards: int
    recovery: Literal["partial", "full"]
    savings_per_cycle: int = 1
    """Saves that together hold the volume of all rows: 1 / r with priority saves; PLS counts from their last."""
    lost_shard_seconds: float = 0.0
    """Sum over failures and shards of progress since the last whole cycle of saves."""
    _saved: float = 0.0
    _pending: float = 0.0
    _savings: int = 0

    def train_to(self, progress: float) -> None:
        """Do nothing."""

    def begin_save(self, progress: float) -> None:
        """Note the progress."""
        self._pending = progress

    def complete_save(self) -> float:
        """Count the save."""
        self._savings += 1
        if self._savings % self.savings_per_cycle == 0:
            self._saved = self._pending
        return self._saved

    def drop_save(self) -> None:
        """Do nothing."""

    def choose(self, shards: tuple[int, ...], progress: float) -> Literal["partial", "full"]:
        """Recover as configured."""
        del shards, progress
        return self.recovery

    def recover_partial(self, events: list[tuple[int, ...]], progress: float) -> None:
        """Add up what was lost, as the paper's PLS does."""
        self.lost_shard_seconds += sum(len(event) for event in events) * (progress - self._saved)

    def recover_full(self, progress: float) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockResult:
    """Mean and standard error over parts of one long clock-only run, or over runs."""

    overhead: float
    overhead_error: float
    pls: float
    """Portion of lost samples, the paper's count."""
    account: Account
    """Of all parts together."""
    num_runs: int = 1
    extra: dict[str, float] = field(default_factory=dict)


def run_clock_only(
    times: JobTimes, workloads: Iterator[ClockOnly], traces: Iterator[Iterator[Failure]], num_runs: int
) -> ClockResult:
    """Run `num_runs` independent jobs and return their mean overhead with its standard error.

    Args:
        times: of each job.
        workloads: a fresh workload for every job.
        traces: an independent failure trace for every job.
        num_runs: at least 2.
    Cost: about 2 us an event; nothing is stored.
    """
    overheads: list[float] = []
    total, lost = Account(), 0.0
    for _ in range(num_runs):
        workload = next(workloads)
        account = Machine(times=times, failures=next(traces), workload=workload).run()
        overheads.append(account.overhead.total)
        lost += workload.lost_shard_seconds / (times.useful * workload.num_shards)
        for name in Account.__slots__:
            setattr(total, name, getattr(total, name) + getattr(account, name))
    return ClockResult(
        overhead=float(np.mean(overheads)),
        overhead_error=float(np.std(overheads, ddof=1) / np.sqrt(num_runs)),
        pls=lost / num_runs,
        account=total,
        num_runs=num_runs,
    )
