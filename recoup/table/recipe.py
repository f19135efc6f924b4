"""A whole build as one configuration file: the log, and how it becomes a table."""

from dataclasses import dataclass, field

from recoup.log import LogConfig
from recoup.table.build_config import BuildConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRecipe:
    """What `recoup table build` and `recoup table suggest` read."""

    log: LogConfig
    """The log, by its `kind`."""
    build: BuildConfig = field(default_factory=BuildConfig)
    """Sessions, histories, groups, memory."""
