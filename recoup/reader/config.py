"""What the reader can be told: batch size, order, guard, workers, features, transforms."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from recoup.core import ConfigError
from recoup.reader.plan import ShuffleKind
from recoup.reader.transforms.config import TransformConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRange:
    """A part of the table by time, as fractions of its samples or between two moments.

    A session belongs to the range that holds its first sample: ranges that touch share none.
    """

    from_fraction: float = 0.0
    to_fraction: float = 1.0
    from_time: datetime | None = None
    """Sessions that begin at this moment or later, `2026-12-01T00:00:00Z`; None = from the first."""
    to_time: datetime | None = None
    """Sessions that begin before this moment; None = to the last."""

    def __post_init__(self) -> None:
        """Check the order of the bounds."""
        if not 0.0 <= self.from_fraction <= self.to_fraction <= 1.0:
            raise ConfigError(
                "expected 0 <= from_fraction <= to_fraction <= 1, "
                f"got from_fraction {self.from_fraction} and to_fraction {self.to_fraction}"
            )
        for name, moment in (("from_time", self.from_time), ("to_time", self.to_time)):
            if moment is not None and moment.tzinfo is None:
                raise ConfigError(f"{name}: expected a time zone, as in {moment.isoformat()}Z, got none")
        if self.from_time is not None and self.to_time is not None and self.from_time >= self.to_time:
            raise ConfigError(
                f"expected from_time < to_time, got from_time {self.from_time.isoformat()} "
                f"and to_time {self.to_time.isoformat()}"
            )
        if self.by_time and (self.from_fraction, self.to_fraction) != (0.0, 1.0):
            raise ConfigError(
                "expected fractions or times, got both: "
                f"from_fraction {self.from_fraction} and to_fraction {self.to_fraction} with a from_time or to_time"
            )

    @property
    def by_time(self) -> bool:
        """Whether the range lies between moments."""
        return self.from_time is not None or self.to_time is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderConfig:
    """One reader. The batches are a pure function of this, the table, the epoch and what was trained before."""

    batch_size: int
    """Samples a batch and rank (B); only the last batches of an epoch may have fewer."""
    shuffle: ShuffleKind = "chronological"
    """`chronological`: table order; `window`: whole sessions shuffled inside windows of neighbouring row groups;
    `full`: row groups drawn in random order first, then as `window` (uniform once a window holds the whole table)."""
    window_sessions: int = 4096
    """Session rows shuffled together, at least (whole row groups are taken); decoded together, so it costs memory."""
    max_samples_per_session_per_batch: int = 0
    """IID guard: a session's samples are spread so that any B samples in a row hold at most so many; 0 = no guard.
    A session longer than its window can spread exceeds it, and that shows in `report.max_samples_of_a_session`."""
    seed: int = 0
    drop_last: bool = False
    """Leave out the steps in which some rank has less than B samples."""
    samples: SampleRange = field(default_factory=SampleRange)
    features: tuple[str, ...] = ()
    """Sparse features to read, others cost nothing; () = all."""
    dense: tuple[str, ...] | None = None
    """Dense features to read; left out = all."""
    missing: Literal["error", "empty"] = "error"
    """What a feature means that the schema does not have: refuse, or all lists empty (0.0 for dense)."""
    transforms: tuple[TransformConfig, ...] = ()
    """Applied in order, on unique rows."""
    num_embeddings: dict[str, int] = field(default_factory=dict)
    """Table size of a feature: IDs outside 0 .. size-1 are an error that names feature, sample, ID and size."""
    dedup: bool = True
    """False: the same samples as plain rows (U = B), every ID copied for every sample; the baseline and the oracle."""
    commit: Literal["next", "explicit"] = "next"
    """When a batch counts as trained: when the next is asked for, or at `reader.commit()` (loops that fetch ahead)."""
    num_workers: int = 0
    """Reader processes; 0 reads in the training process. The batches are the same for any number."""
    prefetch: int = 8
    """Finished batches that each worker may hold ready; bounds memory at num_workers * prefetch batches."""
    worker_silence_limit: timedelta = timedelta(seconds=20)
    """A worker that sends no sign of life for so long is killed and replaced; it sends one a second."""
    worker_stall_limit: timedelta = timedelta(minutes=5)
    """Longest wait for one batch from workers that do send signs of life (say, a hung disk); then an error."""
    max_worker_restarts: int = 3
    """Replacements of workers an epoch before the reader gives up with an error."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.batch_size < 1:
            raise ConfigError(f"expected batch_size >= 1, got {self.batch_size}")
        if self.window_sessions < 1:
            raise ConfigError(f"expected window_sessions >= 1, got {self.window_sessions}")
        if self.max_samples_per_session_per_batch < 0:
            raise ConfigError(
                f"expected max_samples_per_session_per_batch >= 0, got {self.max_samples_per_session_per_batch}"
            )
        if self.num_workers < 0 or self.prefetch < 1 or self.max_worker_restarts < 0:
            raise ConfigError(
                "expected num_workers >= 0, prefetch >= 1 and max_worker_restarts >= 0, "
                f"got {self.num_workers}, {self.prefetch} and {self.max_worker_restarts}"
            )
        if self.worker_silence_limit < timedelta(seconds=2):
            raise ConfigError(
                f"expected worker_silence_limit >= 2s (workers report once a second), got {self.worker_silence_limit}"
            )
