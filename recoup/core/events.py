"""A run's facts as JSON lines: one object a line, with `event`, `time` (seconds since the epoch) and fields.

Each line is written by one `write` of an append-only file, so several processes may share a file.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class EventLog:
    """Append events to a file; a log without a path keeps nothing (for library use without a run folder)."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time, **fields: Any) -> None:  # noqa: ANN401
        """Open nothing yet; `fields` (such as rank and generation) are added to every event."""
        self._path = path
        self._clock = clock
        self._fields = fields

    def emit(self, event: str, **fields: Any) -> None:  # noqa: ANN401
        """Append one event with plain JSON fields."""
        if self._path is None:
            return
        line = json.dumps({"event": event, "time": self._clock(), **self._fields, **fields})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def bind(self, **fields: Any) -> "EventLog":  # noqa: ANN401
        """Return a log to the same file whose events also carry `fields`."""
        return EventLog(self._path, clock=self._clock, **{**self._fields, **fields})


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in the order written; a last line cut by a kill is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
