"""Live rows of one table in this process: what a checkpoint saves from and restores into, in place."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TableView:
    """A contiguous range of a table's rows, as views of the tensors that training reads and writes.

    Local row i is the table's row `first_row + i`, whatever the sharding: names and numbers do not depend on placement.
    """

    name: str
    weight: Tensor
    """[R, D], live."""
    optimizer: Mapping[str, Tensor]
    """State of the optimizer by name, each [R, ...], live; row-wise Adagrad has `momentum1` [R]."""
    first_row: int
    num_rows_total: int
    """Rows of the whole table, on all ranks."""

    def parts(self) -> dict[str, Tensor]:
        """Return `weight` and each optimizer state, by the names they have in a checkpoint."""
        return {"weight": self.weight, **{f"optimizer.{name}": state for name, state in self.optimizer.items()}}
