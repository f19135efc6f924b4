"""Where in a log a value stands, for one-line errors."""

from dataclasses import dataclass, replace

import numpy as np

from recoup.log.errors import LogError


@dataclass(frozen=True, slots=True)
class Where:
    """A file, the row it was read from, and a column of it."""

    file: str
    first_row: int = 0
    name: str = ""
    lengths: np.ndarray | None = None
    """Set while looking at list items: lengths of the rows, so that an item is reported by its row."""

    def column(self, name: str) -> "Where":
        """Return the same place in column `name`."""
        return replace(self, name=name)

    def of_items(self, lengths: np.ndarray) -> "Where":
        """Return the place for items of lists of these lengths."""
        return replace(self, lengths=lengths)

    def error(self, text: str, *, row: int | None = None, remedy: str = "") -> LogError:
        """Return the error `text (file, row, column): remedy`; `row` indexes the array looked at."""
        if row is not None and self.lengths is not None:
            row = int(np.searchsorted(np.cumsum(self.lengths), row, side="right"))
        place = [f"file '{self.file}'"]
        if row is not None:
            place.append(f"row {self.first_row + row}")
        if self.name:
            place.append(f"column '{self.name}'")
        return LogError(f"{text} ({', '.join(place)})" + (f": {remedy}" if remedy else ""))
