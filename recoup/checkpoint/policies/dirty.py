"""Dirty rows: every row touched since it was last saved, and nothing else.

Source: Check-N-Run (NSDI 2022), incremental checkpoints. Memory: 1 byte a row of the tracked tables.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import check_policy
from recoup.checkpoint.policies.kernels import mark_rows
from recoup.core import State, check_state


class DirtyRows:
    """Rows touched since they were last saved, the lowest numbers first when not all may be taken."""

    def __init__(self, num_rows: Mapping[str, int]) -> None:
        """Track these tables (rows by table); nothing is dirty."""
        self._marks = {table: torch.zeros(rows, dtype=torch.uint8) for table, rows in num_rows.items()}

    @property
    def num_bytes(self) -> int:
        """Memory of the marks."""
        return sum(marks.numel() for marks in self._marks.values())

    def observe(self, table: str, ids: Tensor) -> None:
        """Mark a step's rows. Cost: O(n)."""
        if table in self._marks:
            mark_rows(self._marks[table].numpy(), ids.cpu().numpy())

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return dirty rows."""
        return self._marks[table].nonzero().flatten()[:num_rows]

    def saved(self, table: str, rows: Tensor) -> None:
        """Take the marks off."""
        if table in self._marks:
            self._marks[table].index_fill_(0, rows, 0)

    def unsaved(self, table: str, rows: Tensor) -> None:
        """Mark these rows again."""
        self.observe(table, rows)

    def state_dict(self) -> State:
        """Return the policy's name."""
        return {"version": 1, "policy": "DirtyRows"}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return nothing: after a restore every row is as it was saved."""
        return {}

    def load_state_dict(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Take all marks off: the rows have just been restored, so none differs from what is saved."""
        check_state(state, version=1, keys={"policy"}, owner="DirtyRows")
        check_policy(state, tensors, {}, "DirtyRows")
        for marks in self._marks.values():
            marks.zero_()
