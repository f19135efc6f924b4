"""The event machine: one job on a virtual clock, with saves that stall or run behind, and failures by trace.

Data in: how long the job trains, what each part costs, when shards fail, and a workload to act on. Data out: where the
time went. The same machine drives real training and a clock-only job many MTBFs long.

Rules. Progress is training time in seconds; a save begins when progress has grown by the save interval, stalls
training, may go on in the background, and is complete only at its end; the next one waits for it. A failure drops the
save under way. Then: partial recovery waits for a replacement, loads the failed shards and goes on where it was; full
recovery loads all shards and goes back to the last complete save of everything. A failure during recovery begins the
recovery again and adds its shards. A dropped save is due again at once.
Law: wall time = useful + save + load + lost + reschedule, to rounding.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from recoup.failures import Failure
from recoup.planner import Overhead


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTimes:
    """What the job takes, in seconds of the virtual clock."""

    useful: float
    """Training time without any failure or save."""
    save_interval: float
    """Progress between the starts of saves; infinity = never."""
    stall: float
    """Training stands still this long for each save."""
    background: float
    """After the stall the save is written for this long while training goes on."""
    load: float
    """Loading all shards."""
    shard_load: float
    """Loading one shard; several take their sum, at most `load`."""
    reschedule: float
    """From the failure until a replacement is ready to load, under full recovery."""
    partial_reschedule: float
    """The same under partial recovery: shorter with a hot spare."""


@dataclass(slots=True)
class Account:
    """Where the time went, in seconds, and what happened."""

    useful: float = 0.0
    save: float = 0.0
    load: float = 0.0
    lost: float = 0.0
    reschedule: float = 0.0
    wall: float = 0.0
    num_saves: int = 0
    """Complete ones."""
    num_failures: int = 0
    num_partial: int = 0
    """Partial recoveries."""
    num_full: int = 0

    @property
    def overhead(self) -> Overhead:
        """Each part over the useful time."""
        return Overhead(
            save=self.save / self.useful,
            load=self.load / self.useful,
            lost=self.lost / self.useful,
            reschedule=self.reschedule / self.useful,
        )


class Workload(Protocol):
    """What the machine acts on."""

    def train_to(self, progress: float) -> None:
        """Train until `progress` seconds of training are done, whole steps only."""
        ...

    def begin_save(self, progress: float) -> None:
        """Take a snapshot of what is to be saved now."""
        ...

    def complete_save(self) -> float:
        """Make the snapshot the newest save; return the progress that a full recovery now goes back to."""
        ...

    def drop_save(self) -> None:
        """Forget the snapshot: a failure came before it was complete."""
        ...

    def choose(self, shards: tuple[int, ...], progress: float) -> Literal["partial", "full"]:
        """Decide how to recover these failed shards."""
        ...

    def recover_partial(self, events: list[tuple[int, ...]], progress: float) -> None:
        """Set the shards of each failure back to their last save; everything else stays."""
        ...

    def recover_full(self, progress: float) -> None:
        """Set everything back to the last complete save of everything, which is at `progress`."""
        ...


@dataclass(slots=True)
class Machine:
    """Run one job to its end."""

    times: JobTimes
    failures: Iterator[Failure]
    workload: Workload
    account: Account = field(default_factory=Account)
    _progress: float = 0.0
    _safe: float = 0.0
    _next_save: float = 0.0
    _complete_at: float = float("inf")
    _failure: Failure | None = None

    def run(self) -> Account:
        """Run until all training is done; return where the time went. Cost: O(saves + failures) beside training."""
        times, account = self.times, self.account
        self._next_save = times.save_interval
        self._failure = next(self.failures, None)
        while self._progress < times.useful:
            due = account.wall + max(self._next_save - self._progress, 0.0)
            if self._complete_at < float("inf"):
                due = max(due, self._complete_at)
            end = account.wall + times.useful - self._progress
            until = min(due, end, self._complete_at)
            if self._fails_before(until):
                self._train_until(self._failure_time(), end)
                self._recover()
            else:
                self._train_until(until, end)
                if self._complete_at <= until:
                    self._complete()
                elif due <= until and until < end:
                    self._save()
        account.useful = times.useful
        return account

    def _failure_time(self) -> float:
        return float("inf") if self._failure is None else max(self._failure.seconds, self.account.wall)

    def _fails_before(self, moment: float) -> bool:
        return self._failure_time() < moment

    def _train_until(self, moment: float, end: float) -> None:
        progress = self.times.useful if moment >= end else self._progress + moment - self.account.wall
        self._progress = min(progress, self.times.useful)
        self.account.wall = max(moment, self.account.wall)
        self.workload.train_to(self._progress)

    def _save(self) -> None:
        """Stall for a save, unless a failure comes first."""
        account, stall = self.account, self.times.stall
        self.workload.begin_save(self._progress)
        self._next_save = self._progress + self.times.save_interval
        stalled_until = account.wall + stall
        if self._fails_before(stalled_until):
            moment = self._failure_time()
            account.save += moment - account.wall
            account.wall = moment
            self._drop()
            self._recover()
            return
        account.save += stall
        account.wall = stalled_until
        self._complete_at = stalled_until + self.times.background
        if self.times.background == 0:
            self._complete()

    def _complete(self) -> None:
        self._complete_at = float("inf")
        self._safe = self.workload.complete_save()
        self.account.num_saves += 1

    def _drop(self) -> None:
        self._complete_at = float("inf")
        self.workload.drop_save()
        self._next_save = self._progress

    def _recover(self) -> None:
        """Recover from the failure at the current moment, and from those that come while recovering."""
        account, times = self.account, self.times
        if self._complete_at < float("inf"):
            self._drop()
        events: list[tuple[int, ...]] = []
        recovery: Literal["partial", "full"] = "partial"
        while True:
            assert self._failure is not None
            events.append(self._failure.shards)
            self._failure = next(self.failures, None)
            account.num_failures += 1
            shards = tuple(sorted({shard for event in events for shard in event}))
            if recovery == "partial":
                recovery = self.workload.choose(shards, self._progress)
            waits = times.partial_reschedule if recovery == "partial" else times.reschedule
            loads = min(times.shard_load * len(shards), times.load) if recovery == "partial" else times.load
            ready = account.wall + waits + loads
            if not self._fails_before(ready):
                break
            spent = self._failure_time() - account.wall
            self._spend(min(spent, waits), max(spent - waits, 0.0))
        self._spend(waits, loads)
        if recovery == "partial":
            account.num_partial += 1
            self.workload.recover_partial(events, self._progress)
        else:
            account.num_full += 1
            account.lost += self._progress - self._safe
            self._progress = self._safe
            self._next_save = self._safe + times.save_interval
            self.workload.recover_full(self._safe)

    def _spend(self, waits: float, loads: float) -> None:
        self.account.reschedule += waits
        self.account.load += loads
        self.account.wall += waits + loads
