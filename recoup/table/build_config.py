"""How a log becomes a table: sessions, histories, groups, memory, layout."""

from dataclasses import dataclass, field

from recoup.core import ConfigError
from recoup.schema import DedupGroup
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean
from recoup.table.manifest import GroupPrediction
from recoup.table.sessions import SessionRule
from recoup.table.writer import WriterConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig:
    """How a log becomes a table."""

    sessions: SessionRule = field(default_factory=SessionRule)
    histories: tuple[HistoryFeature, ...] = ()
    means: tuple[HistoryMean, ...] = ()
    groups: tuple[DedupGroup, ...] = ()
    """Dedup groups instead of the log's own; features in none are not deduplicated. None given = as the schema says."""
    predictions: tuple[GroupPrediction, ...] = ()
    """What `table suggest` foretold; kept in the manifest, so that `table inspect` shows it beside what came."""
    sample_sessions: float = 1.0
    """Share of whole sessions that is kept."""
    seed: int = 0
    """Of the session sampling."""
    memory_bytes: int = 384_000_000
    """Memory of a sort; what does not fit goes to disk beside the table."""
    num_buckets: int | None = None
    """Key buckets; the table does not depend on it. None = so many that two are encoded at a time within the memory."""
    writer: WriterConfig = field(default_factory=WriterConfig)

    def __post_init__(self) -> None:
        """Check the sampling, the memory and the buckets."""
        if self.num_buckets is not None and self.num_buckets < 1:
            raise ConfigError(f"num_buckets: expected at least 1, got {self.num_buckets}")
        if not 0.0 < self.sample_sessions <= 1.0:
            raise ConfigError(f"sample_sessions: expected a share in (0, 1], got {self.sample_sessions}")
        if self.memory_bytes < 1_000_000:
            raise ConfigError(f"memory_bytes: expected at least 1 MB, got {self.memory_bytes}")
