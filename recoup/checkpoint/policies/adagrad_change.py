"""Adagrad-change: rows by how far row-wise Adagrad must have moved them since they were last saved; no copy of rows.

With momentum m (sum of a row's mean squared gradients), a step moves a row by lr g / sqrt(m), a squared length of
lr^2 D dm / m; summed over steps from m0 to m1 that is about lr^2 D ln(m1 / m0). So ln(m1 / m0) ranks the rows.
Ours: not in CPR. Memory: 4 bytes a row of the tracked tables (m0), 1 / D of SCAR's copy.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import check_policy
from recoup.checkpoint.policies.kernels import top_rows
from recoup.checkpoint.policies.last_saved import LastSaved
from recoup.checkpoint.views import TableView
from recoup.core import State, check_state

_FLOOR = 1e-12  # momentum of a row never touched: its first gradient ranks it high, as its whole value is new


class AdagradChange:
    """Rows by the growth of their momentum since they were last saved."""

    def __init__(self, views: Mapping[str, TableView], *, momentum: str = "momentum1") -> None:
        """Copy the momentum of the tracked tables as it is now, which counts as saved."""
        live = {table: partial(_rowwise, view.optimizer[momentum]) for table, view in views.items()}
        self._saved = LastSaved(live, {table: view.first_row for table, view in views.items()})

    @property
    def num_bytes(self) -> int:
        """Memory of the copies."""
        return self._saved.num_bytes

    def observe(self, table: str, ids: Tensor) -> None:
        """Nothing: the optimizer keeps count."""
        del table, ids

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return the rows that moved most. Cost: O(R)."""
        growth = torch.log((self._saved.live(table) + _FLOOR) / (self._saved.copies[table] + _FLOOR))
        return top_rows(growth, num_rows).cpu() + self._saved.first[table]

    def saved(self, table: str, rows: Tensor) -> None:
        """Remember the momentum of these rows as it is now."""
        self._saved.put(table, rows)

    def unsaved(self, table: str, rows: Tensor) -> None:
        """Count these rows as never saved."""
        self._saved.fill(table, rows, 0.0)

    def state_dict(self) -> State:
        """Return the policy's name."""
        return {"version": 1, "policy": "AdagradChange"}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return nothing: the momentum at the last save is what the checkpoint itself holds."""
        return {}

    def load_state_dict(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Remember the momentum as it is now: it has just been restored, so this is what is saved."""
        check_state(state, version=1, keys={"policy"}, owner="AdagradChange")
        check_policy(state, tensors, {}, "AdagradChange")
        self._saved.put_all()


def _rowwise(momentum: Tensor) -> Tensor:
    held = momentum.detach()
    return held if held.dim() == 1 else held.flatten(1).mean(dim=1)
