"""The main job on a real log: table, reader, training with and without deduplication, a lost shard, a summary."""

from recoup.demo.errors import DemoError
from recoup.demo.run import run_demo
from recoup.demo.stages import DemoConfig

__all__ = ["DemoConfig", "DemoError", "run_demo"]
