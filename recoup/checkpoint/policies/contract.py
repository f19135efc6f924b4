"""What a priority policy is: it sees accesses, and says which rows of a table to save first."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from recoup.core import State, StateError

SAVE_FRACTION = 0.125
"""r: a priority save takes r of a table's rows, every r of the whole interval. Source: CPR, SCAR."""


class RowPolicy(Protocol):
    """Choose rows of the large tables for the next save. Each policy states its memory as `num_bytes`.

    Call `saved` when the rows have been copied (not when they are durable: what changes in between must count), and
    `unsaved` if that save failed. Tables that a policy does not track are ignored.
    """

    @property
    def num_bytes(self) -> int:
        """Memory of the policy."""
        ...

    def observe(self, table: str, ids: Tensor) -> None:
        """Take note of a step's accesses: row numbers of `table`, int64 [n], repeats included."""
        ...

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return at most `num_rows` rows to save now, int64 ascending, each once."""
        ...

    def saved(self, table: str, rows: Tensor) -> None:
        """Take note that these rows are saved as they are now."""
        ...

    def unsaved(self, table: str, rows: Tensor) -> None:
        """Take back `saved`: the save failed, the rows are to be chosen again."""
        ...

    def state_dict(self) -> State:
        """Return the small part of what the choice depends on, as plain types."""
        ...

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the large part, as live tensors by name; they travel as dense tensors of a save, which copies them."""
        ...

    def load_state_dict(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a saved state, after the rows themselves have been restored.

        Raises:
            StateError: it is of another policy, version or set of tables.
        """
        ...


def check_policy(state: State, tensors: Mapping[str, Tensor], live: Mapping[str, Tensor], policy: str) -> None:
    """Refuse a state of another policy, or tensors of other names.

    Raises:
        StateError: says both sides.
    """
    if state["policy"] != policy:
        raise StateError(f"expected a state of policy {policy}, got one of {state['policy']!r}")
    if not set(live) <= set(tensors):
        raise StateError(f"{policy}: expected tensors {sorted(live)} in the saved state, got {sorted(tensors)}")


def load_tensors(tensors: Mapping[str, Tensor], live: Mapping[str, Tensor], policy: str) -> None:
    """Set live tensors, in place, from saved ones of the same size.

    Raises:
        StateError: a size differs; nothing is changed.
    """
    for name, tensor in live.items():
        if tensors[name].shape != tensor.shape:
            raise StateError(
                f"{policy}: expected {list(tensor.shape)} numbers in {name!r}, got {list(tensors[name].shape)}"
            )
    for name, tensor in live.items():
        tensor.copy_(tensors[name])
