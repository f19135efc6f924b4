"""Live partial recovery on real processes: a rank dies, the others keep their rows, only its shard is loaded."""

from recoup.runtime.config import LaunchConfig
from recoup.runtime.errors import JobError
from recoup.runtime.launch import launch
from recoup.runtime.launcher import Launcher

__all__ = ["JobError", "LaunchConfig", "Launcher", "launch"]
