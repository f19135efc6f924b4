"""The reader of a session table: an iterable over batches that knows what was trained.

Data in: a table, a configuration, a rank. Data out: batches of exactly B samples with unique rows only; the last ones
of an epoch may have fewer samples, or none, so that all ranks make the same number of steps.

Guarantees: batches are a pure function of table, configuration (workers aside), epoch and position; the position
counts trained batches, not fetched ones; every sample once an epoch over all ranks, also across a resume with another
number of ranks, workers or another batch size.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from recoup.core import State, derive_seed
from recoup.jagged import Batch
from recoup.reader.assemble import Assembler, ReadJob, ReadTask
from recoup.reader.config import ReaderConfig
from recoup.reader.errors import ReaderError
from recoup.reader.fragment import Fragment, merge
from recoup.reader.plan import Span, Stripe, drop_head, num_steps, plan_sequences, plan_stripes
from recoup.reader.pool import PoolLimits, WorkerPool
from recoup.reader.position import Position, PositionContext, load_position, save_position
from recoup.reader.row_groups import ReadableTable, part_digests, part_paths, row_group_slices
from recoup.reader.selection import select
from recoup.reader.tensors import to_batch


@dataclass(kw_only=True, slots=True)
class ReaderReport:
    """What the batches yielded so far looked like; sessions weaken the IID assumption when few fill a batch."""

    num_batches: int = 0
    num_samples: int = 0
    num_sessions: int = 0
    """Distinct sessions a batch, summed over batches."""
    max_samples_of_a_session: int = 0
    """Most samples that one session had in one batch."""

    @property
    def sessions_per_batch(self) -> float:
        """Mean distinct sessions a batch."""
        return self.num_sessions / self.num_batches if self.num_batches else 0.0

    def add(self, fragment: Fragment) -> None:
        """Count one batch."""
        self.num_batches += 1
        self.num_samples += fragment.num_samples
        self.num_sessions += fragment.num_sessions
        if fragment.num_samples:
            self.max_samples_of_a_session = max(self.max_samples_of_a_session, int(np.bincount(fragment.session).max()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _EpochPlan:
    stripes: tuple[Stripe, ...]
    sequence: tuple[Span, ...]
    num_steps: int


class SessionReader:
    """Yields the batches of one epoch a loop, from the first that is not trained."""

    def __init__(self, table: ReadableTable, config: ReaderConfig, *, rank: int = 0, world_size: int = 1) -> None:
        """Check the configuration against the table; nothing is read yet.

        Raises:
            ReaderError: a feature or transform does not fit the table, or `rank` is not below `world_size`.
        """
        if not 0 <= rank < world_size:
            raise ReaderError(f"expected 0 <= rank < world_size, got rank {rank} and world_size {world_size}")
        self.config = config
        self.report = ReaderReport()
        self._table = table
        self._rank = rank
        self._world_size = world_size
        selection = select(table.schema, config.features, config.dense, config.missing)
        self._job = ReadJob(
            parts=part_paths(table),
            selection=selection,
            transforms=config.transforms,
            num_embeddings=config.num_embeddings,
            dedup=config.dedup,
            batch_size=config.batch_size,
            max_per_session=config.max_samples_per_session_per_batch,
        )
        self._assembler = Assembler(self._job)
        self._context = PositionContext(
            world_size=world_size,
            batch_size=config.batch_size,
            order=_order(config),
            part_digests=part_digests(table),
        )
        self._num_parts = len(self._job.parts)
        self._position = Position()
        self._fetched = 0
        self._plan: _EpochPlan | None = None
        self._pool: WorkerPool | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to."""
        return self._position.epoch

    @property
    def steps_left(self) -> int:
        """Batches of this epoch that are not trained yet."""
        return self._epoch_plan().num_steps - self._position.num_steps

    def __iter__(self) -> Iterator[Batch]:
        """Yield the epoch's batches that are not trained yet.

        Raises:
            ReaderError: a file is damaged, an ID is out of range, or workers keep failing.
        """
        plan = self._epoch_plan()
        self._fetched = self._position.num_steps
        if self.steps_left == 0:
            self._begin_epoch(self._position.epoch + 1)
            return
        fragments = self._fragments(self._tasks(plan))
        try:
            for fragment in self._batches(fragments, plan):
                self._fetched += 1
                self.report.add(fragment)
                yield to_batch(fragment)
                if self.config.commit == "next":
                    self.commit()
        finally:
            fragments.close()

    def commit(self, num_batches: int | None = None) -> None:
        """Count batches as trained: all that were yielded, or the next `num_batches` of them.

        Under `commit = "next"` this happens by itself when the next batch is asked for; call it before `state_dict`
        to count the batch just trained. When the last batch of an epoch is trained the position is the next epoch's.

        Raises:
            ReaderError: more batches than were yielded.
        """
        waiting = self._fetched - self._position.num_steps
        count = waiting if num_batches is None else num_batches
        if not 0 <= count <= waiting:
            raise ReaderError(f"expected to commit at most the {waiting} batches yielded and not trained, got {count}")
        self._position.num_steps += count
        if count and self.steps_left == 0:
            self._begin_epoch(self._position.epoch + 1)

    def state_dict(self) -> State:
        """Return the position: plain, versioned, equal on all ranks."""
        return save_position(self._position, self._context, self._num_parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position, saved with any number of ranks and workers.

        Parts added to the table since are read from the next epoch on.

        Raises:
            StateError: not a state of this version.
            ReaderError: another table, or another order of samples.
        """
        self._position, self._num_parts = load_position(state, self._context)
        self._fetched = self._position.num_steps
        self._plan = None

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the running workers, by worker number; none before the first batch is asked for."""
        return self._pool.pids if self._pool is not None else ()

    def close(self) -> None:
        """End the worker processes; they start again when a batch is asked for. Without workers: nothing to do."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _begin_epoch(self, epoch: int) -> None:
        self._position = Position(epoch=epoch)
        self._fetched = 0
        self._num_parts = len(self._job.parts)
        self._plan = None

    def _epoch_plan(self) -> _EpochPlan:
        if self._plan is None:
            config = self.config
            guarded = config.max_samples_per_session_per_batch > 0
            stripes = plan_stripes(
                row_group_slices(self._table, config.samples, self._num_parts),
                shuffle=config.shuffle,
                window_sessions=1 if config.shuffle == "chronological" and not guarded else config.window_sessions,
                seed=config.seed,
                epoch=self._position.epoch,
            )
            sequences = plan_sequences(stripes, self._position.earlier, self._world_size)
            self._plan = _EpochPlan(
                stripes=stripes,
                sequence=sequences[self._rank],
                num_steps=num_steps(sequences, config.batch_size, drop_last=config.drop_last),
            )
        return self._plan

    def _tasks(self, plan: _EpochPlan) -> Iterator[ReadTask]:
        """Yield what is left of this rank's sequence, cut at batch edges."""
        batch_size = self.config.batch_size
        done = self._position.num_steps * batch_size
        end = plan.num_steps * batch_size
        for span in drop_head(plan.sequence, done):
            cuts: list[tuple[int, int]] = []
            first = span.first
            while first < span.end and done < end:
                count = min(span.end - first, batch_size - done % batch_size)
                cuts.append((first, first + count))
                first += count
                done += count
            if cuts:
                seed = derive_seed(self.config.seed, "sessions", self._position.epoch, span.stripe)
                yield ReadTask(
                    number=span.stripe,
                    stripe=plan.stripes[span.stripe],
                    shuffle_seed=None if self.config.shuffle == "chronological" else seed,
                    cuts=tuple(cuts),
                )

    def _fragments(self, tasks: Iterator[ReadTask]) -> Generator[Fragment, None, None]:
        if self.config.num_workers:
            if self._pool is None:
                self._pool = WorkerPool(self._job, _limits(self.config))
            yield from self._pool.read(tasks)
            return
        for task in tasks:
            yield from self._assembler.read(task)

    def _batches(self, fragments: Iterator[Fragment], plan: _EpochPlan) -> Iterator[Fragment]:
        """Merge fragments into batches; add the empty ones that keep this rank in step."""
        batch_size = self.config.batch_size
        step = self._position.num_steps
        waiting: list[Fragment] = []
        size = 0
        for fragment in fragments:
            waiting.append(fragment)
            size += fragment.num_samples
            if size == batch_size:
                yield merge(waiting)
                step += 1
                waiting.clear()
                size = 0
        if waiting:
            yield merge(waiting)
            step += 1
        while step < plan.num_steps:
            yield self._assembler.empty()
            step += 1


def _limits(config: ReaderConfig) -> PoolLimits:
    return PoolLimits(
        num_workers=config.num_workers,
        prefetch=config.prefetch,
        silence_seconds=config.worker_silence_limit.total_seconds(),
        stall_seconds=config.worker_stall_limit.total_seconds(),
        max_restarts=config.max_worker_restarts,
    )


def _order(config: ReaderConfig) -> dict[str, Any]:
    """Return what shapes the order of samples."""
    return {
        "shuffle": config.shuffle,
        "window_sessions": config.window_sessions,
        "seed": config.seed,
        "max_samples_per_session_per_batch": config.max_samples_per_session_per_batch,
        "guard_batch_size": config.batch_size if config.max_samples_per_session_per_batch else 0,
        "from_fraction": config.samples.from_fraction,
        "to_fraction": config.samples.to_fraction,
        "from_time": _moment(config.samples.from_time),
        "to_time": _moment(config.samples.to_time),
    }


def _moment(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat()
