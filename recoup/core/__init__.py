"""The lowest floor: errors, configuration, seeds, versioned state, events, atomic files, progress."""

from recoup.core.config import apply_overrides, from_table, load_config, to_table, to_toml
from recoup.core.durations import format_duration, parse_duration
from recoup.core.errors import ConfigError, RecoupError, StateError
from recoup.core.events import EventLog, read_events
from recoup.core.files import sync_folder, temporary_path, write_atomic, write_json_atomic
from recoup.core.progress import Progress, no_progress
from recoup.core.seeds import derive_seed, generator
from recoup.core.state import State, check_state

__all__ = [
    "ConfigError",
    "EventLog",
    "Progress",
    "RecoupError",
    "State",
    "StateError",
    "apply_overrides",
    "check_state",
    "derive_seed",
    "format_duration",
    "from_table",
    "generator",
    "load_config",
    "no_progress",
    "parse_duration",
    "read_events",
    "sync_folder",
    "temporary_path",
    "to_table",
    "to_toml",
    "write_atomic",
    "write_json_atomic",
]
