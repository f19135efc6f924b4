"""How long work reports its progress without knowing who shows it: a plain function.

The library calls `progress(task, done, total)`; the CLI draws a bar; the default says nothing.
"""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the task's name, the units done so far, and the total if it is known."""


def no_progress(task: str, done: int, total: int | None) -> None:
    """Ignore the report."""
    del task, done, total
