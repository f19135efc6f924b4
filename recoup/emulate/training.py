"""The workload with real training: emulated shards of one process's tables, saved and set back as a cluster would.

Steps are mapped to the virtual clock: step s is done once progress reaches s step times. A save copies rows (all, or
those a policy selects of the large tables, and all of the small ones); a partial recovery sets the failed shards' rows
back to that copy and touches nothing else; a full recovery sets everything back to the last save of everything and
trains the same batches again, to the bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from recoup.core import EventLog
from recoup.emulate.course import Course
from recoup.emulate.learner import Learner, Mirror, Rows, Whole
from recoup.emulate.strategy import LARGE_TABLES
from recoup.recovery import FailureFacts, GuardConfig, Ledger, RowAccesses, decide


class Selector(Protocol):
    """A priority policy (`recoup.checkpoint.policies`)."""

    def observe(self, table: str, ids: Tensor) -> None:
        """Take note of a step's accesses."""
        ...

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return at most `num_rows` rows to save now."""
        ...

    def saved(self, table: str, rows: Tensor) -> None:
        """Take note that these rows are copied as they are now."""
        ...

    def unsaved(self, table: str, rows: Tensor) -> None:
        """Take that back: the save failed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """What is fixed before the run."""

    step_seconds: float
    """Virtual time of one step."""
    recovery: Literal["partial", "full"]
    fraction: float = 1.0
    """Part of a large table's rows in one save; 1 = all rows."""
    guard: GuardConfig | None = None
    """None = recover as `recovery` says, whatever the PLS."""


@dataclass(frozen=True, slots=True)
class _Copy:
    rows: Tensor | None
    """None = all."""
    parts: dict[str, Tensor]
    accesses: Tensor
    """Of these rows, not saved before."""


@dataclass(frozen=True, slots=True)
class _Pending:
    step: int
    progress: float
    taken: dict[str, _Copy]
    """By table."""
    whole: Whole | None


@dataclass(slots=True)
class EmulatedTraining:
    """One run's state; a `Workload` of the event machine."""

    plan: RunPlan
    course: Course
    learner: Learner
    start: Whole
    """The learner's state before the first step, which is also its first save."""
    policy: Selector | None = None
    """Needed if the fraction is below 1."""
    events: EventLog = field(default_factory=EventLog)
    rows_saved: int = 0
    """Rows copied by complete saves, all tables together."""
    ledger: Ledger = field(init=False)
    accesses: RowAccesses = field(init=False)
    _views: Mapping[str, Rows] = field(init=False)
    _step: int = 0
    _savings: int = 0
    _mirror: Mirror = field(init=False)
    _whole: Whole = field(init=False)
    _whole_progress: float = 0.0
    _pending: _Pending | None = None
    _large: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the state at the start as the first save."""
        assert self.policy is not None or self.plan.fraction == 1
        course = self.course
        self._views = self.learner.table_views()
        self._mirror = self.start.rows.copy()
        self._whole = self.start
        self._large = large_tables(course.num_rows)
        self.accesses = RowAccesses(course.num_rows)
        self.ledger = Ledger(course.num_shards, course.positions[-1], course.shares)

    def train_to(self, progress: float) -> None:
        """Train the steps that are done by `progress`."""
        target = min(int(progress / self.plan.step_seconds + 1e-6), self.course.num_steps)
        for step in range(self._step, target):
            self.learner.step(self.course.batches[step])
            self._observe(step)
        self._step = max(target, self._step)

    def begin_save(self, progress: float) -> None:
        """Copy the rows to be saved."""
        taken = {table: self._copy(table, view) for table, view in self._views.items()}
        whole = Whole.of(self.learner, self._step) if self.plan.recovery == "full" else None
        self._pending = _Pending(self._step, progress, taken, whole)

    def complete_save(self) -> float:
        """Make the copies the saved state."""
        pending, self._pending = self._pending, None
        assert pending is not None
        for table, copy in pending.taken.items():
            self._mirror.put(table, copy.rows, copy.parts)
            self.accesses.saved(table, copy.rows, copy.accesses)
            self.rows_saved += copy.accesses.numel()
        self._savings += 1
        if self._savings % round(1 / self.plan.fraction) == 0:
            self.ledger.saved(self.course.positions[pending.step])
        if pending.whole is not None:
            self._whole, self._whole_progress = pending.whole, pending.progress
        return self._whole_progress

    def drop_save(self) -> None:
        """Forget the copies."""
        pending, self._pending = self._pending, None
        assert pending is not None
        for table, copy in pending.taken.items():
            if copy.rows is not None and self.policy is not None:
                self.policy.unsaved(table, copy.rows)

    def choose(self, shards: tuple[int, ...], progress: float) -> Literal["partial", "full"]:
        """Recover as planned, or as the guard decides."""
        if self.plan.recovery == "full" or self.plan.guard is None:
            return self.plan.recovery
        position = self.course.positions[self._step]
        oldest = min(self.ledger.last_saved(shard) for shard in shards)
        facts = FailureFacts(
            failed_shards=shards,
            pls_before=self.ledger.pls,
            pls_after=self.ledger.preview(shards, position),
            staleness_seconds=progress * (position - oldest) / max(position, 1),
            num_dense_replicas=self.course.num_shards - len(shards),
        )
        return decide(facts, self.plan.guard, self.events).recovery

    def recover_partial(self, events: list[tuple[int, ...]], progress: float) -> None:
        """Set the failed shards' rows back to their last save."""
        del progress
        for failed in events:
            lost: dict[int, float] = {}
            for shard in failed:
                rows = self.course.rows_of_shard[shard]
                lost[shard] = self.accesses.lost(rows) / self.course.total_accesses
                self._mirror.revert(self._views, rows)
            self.ledger.lost(failed, self.course.positions[self._step], accesses=lost)

    def recover_full(self, progress: float) -> None:
        """Set everything back to the last save of everything."""
        assert progress == self._whole_progress
        self._whole.revert(self.learner)
        self._mirror = self._whole.rows.copy()
        self._step = self._whole.step
        self.ledger.rewound(self.course.positions[self._step])

    def _copy(self, table: str, view: Rows) -> _Copy:
        rows = self._select(table)
        if rows is not None and self.policy is not None:
            self.policy.saved(table, rows)
        unsaved = self.accesses.unsaved(table)
        return _Copy(rows, Mirror.take(view, rows), unsaved.clone() if rows is None else unsaved[rows])

    def _select(self, table: str) -> Tensor | None:
        if self.policy is None or self.plan.fraction == 1 or table not in self._large:
            return None
        return self.policy.select(table, max(1, round(self.plan.fraction * self.course.num_rows[table])))

    def _observe(self, step: int) -> None:
        for table, ids in self.course.ids[step].items():
            self.accesses.observe(table, ids)
            if self.policy is not None and table in self._large:
                self.policy.observe(table, ids)


def large_tables(num_rows: Mapping[str, int]) -> frozenset[str]:
    """Return the tables whose rows are saved by priority: the `LARGE_TABLES` largest."""
    return frozenset(sorted(num_rows, key=lambda table: -num_rows[table])[:LARGE_TABLES])


def small_share(num_rows: Mapping[str, int]) -> float:
    """Return the share of all rows in the other tables, which are saved whole with every priority save."""
    large = large_tables(num_rows)
    return sum(rows for table, rows in num_rows.items() if table not in large) / sum(num_rows.values())
