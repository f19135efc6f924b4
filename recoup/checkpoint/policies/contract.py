"""What a priority policy is: it sees accesses, and says which rows of a table to save first."""

from typing import Protocol

from torch import Tensor

from recoup.core import State

SAVE_FRACTION = 0.125
"""r: a priority save takes r of a table's rows, every r of the whole interval. Source: CPR, SCAR."""


class RowPolicy(Protocol):
    """Choose rows of the large tables for the next save. Its memory is stated by each policy."""

    def observe(self, table: str, ids: Tensor) -> None:
        """Take note of a step's accesses: row numbers of `table`, int64 [n], repeats included."""
        ...

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return at most `num_rows` rows to save now, int64 ascending, each once."""
        ...

    def saved(self, table: str, rows: Tensor) -> None:
        """Take note that these rows are saved as they are now."""
        ...

    def state_dict(self) -> State:
        """Return what the choice depends on, as plain types."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state.

        Raises:
            StateError: it is of another policy, version or set of tables.
        """
        ...
