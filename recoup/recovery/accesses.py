"""Row accesses since each row was last saved: what a failure really loses when rows are saved by priority.

Data in: the IDs of each step, the rows of each save, the rows of each lost shard. Data out: the share of the run's
accesses that is lost, which is the effective PLS of an event. Legend: R rows of a table, N IDs of a step.
Guarantee: equals the brute-force count over (access, row) pairs; an access lost once is not counted again.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recoup.recovery.errors import RecoveryError


class RowAccesses:
    """Count accesses of every row since its last save: 4 bytes a row."""

    def __init__(self, num_rows: Mapping[str, int]) -> None:
        """Begin with no access; `num_rows` gives R by table."""
        self._unsaved = {table: torch.zeros(rows, dtype=torch.int32) for table, rows in num_rows.items()}
        self._total = 0

    @property
    def total(self) -> int:
        """Accesses observed so far, lost ones included."""
        return self._total

    def observe(self, table: str, ids_N: Tensor) -> None:
        """Count one access for each ID, repeats included. Cost: O(N)."""
        counts = self._counts(table)
        counts.index_add_(0, ids_N, torch.ones(1, dtype=torch.int32).expand(ids_N.numel()))
        self._total += ids_N.numel()

    def saved(self, table: str, rows: Tensor | None = None, counted: Tensor | None = None) -> None:
        """Forget accesses of `rows` (None = all): they are safe.

        Args:
            table: which table.
            rows: each once.
            counted: accesses of these rows when the copy was taken, if it was written in the background since:
                later ones are not safe. None = the copy is of now.
        """
        counts = self._counts(table)
        if counted is not None:
            kept = counts - counted if rows is None else counts[rows] - counted
            counts.copy_(kept) if rows is None else counts.index_copy_(0, rows, kept)
        elif rows is None:
            counts.zero_()
        else:
            counts.index_fill_(0, rows, 0)

    def unsaved(self, table: str) -> Tensor:
        """Return accesses by row since its last save, int32 [R], a live view."""
        return self._counts(table)

    def lost(self, rows: Mapping[str, Tensor]) -> int:
        """Return how many accesses the loss of `rows` (by table) costs, and forget them."""
        count = 0
        for table, index in rows.items():
            count += int(self._counts(table)[index].sum(dtype=torch.int64))
            self.saved(table, index)
        return count

    def _counts(self, table: str) -> Tensor:
        if table not in self._unsaved:
            raise RecoveryError(f"expected one of the tables {sorted(self._unsaved)}, got {table!r}")
        return self._unsaved[table]
