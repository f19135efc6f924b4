"""What tables held when their rows were last saved: a copy beside the live tensor, row by row."""

from collections.abc import Callable, Mapping

from torch import Tensor


class LastSaved:
    """Copies of one tensor a table, [R, ...] with global row numbers from `first`; tables not tracked are ignored."""

    def __init__(self, live: Mapping[str, Callable[[], Tensor]], first: Mapping[str, int]) -> None:
        """Copy the tensors as they are now, which counts as saved.

        Args:
            live: by table, what returns the tensor as it is now.
            first: by table, the number of its first row here.
        """
        self._live = dict(live)
        self.first = dict(first)
        self.copies = {table: now().clone() for table, now in live.items()}

    @property
    def num_bytes(self) -> int:
        """Memory of the copies."""
        return sum(copy.numel() * copy.element_size() for copy in self.copies.values())

    def live(self, table: str) -> Tensor:
        """Return a table's tensor as it is now."""
        return self._live[table]()

    def put(self, table: str, rows: Tensor) -> None:
        """Copy these rows as they are now."""
        if table in self.copies:
            local = self._local(table, rows)
            self.copies[table].index_copy_(0, local, self.live(table).index_select(0, local))

    def fill(self, table: str, rows: Tensor, value: float) -> None:
        """Take `value` for what these rows held."""
        if table in self.copies:
            self.copies[table].index_fill_(0, self._local(table, rows), value)

    def put_all(self) -> None:
        """Copy everything as it is now."""
        for table, copy in self.copies.items():
            copy.copy_(self.live(table))

    def _local(self, table: str, rows: Tensor) -> Tensor:
        return rows.to(self.copies[table].device) - self.first[table]
