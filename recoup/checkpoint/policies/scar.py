"""SCAR: the rows that changed most since they were last saved; needs a copy of every tracked row.

Source: SCAR (Qiao et al., ICML 2019) as used by CPR (arXiv 2011.02999). Memory: 100 % of the tracked tables.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import check_policy
from recoup.checkpoint.policies.kernels import top_rows
from recoup.checkpoint.policies.last_saved import LastSaved
from recoup.checkpoint.views import TableView
from recoup.core import State, check_state


class SCAR:
    """Rows by the length of their change since they were last saved."""

    def __init__(self, views: Mapping[str, TableView]) -> None:
        """Copy the tracked tables as they are now, which counts as saved."""
        live = {table: view.weight.detach for table, view in views.items()}
        self._saved = LastSaved(live, {table: view.first_row for table, view in views.items()})

    @property
    def num_bytes(self) -> int:
        """Memory of the copies."""
        return self._saved.num_bytes

    def observe(self, table: str, ids: Tensor) -> None:
        """Nothing: the change is measured when rows are chosen."""
        del table, ids

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return the rows that changed most. Cost: O(R D)."""
        change = (self._saved.live(table) - self._saved.copies[table]).float().square().sum(dim=1)
        return top_rows(change, num_rows).cpu() + self._saved.first[table]

    def saved(self, table: str, rows: Tensor) -> None:
        """Copy these rows as they are now."""
        self._saved.put(table, rows)

    def unsaved(self, table: str, rows: Tensor) -> None:
        """Count these rows as infinitely changed."""
        self._saved.fill(table, rows, torch.inf)

    def state_dict(self) -> State:
        """Return the policy's name."""
        return {"version": 1, "policy": "SCAR"}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return nothing: the copy is what the checkpoint itself holds."""
        return {}

    def load_state_dict(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Copy the rows as they are now: they have just been restored, so this is what is saved."""
        check_state(state, version=1, keys={"policy"}, owner="SCAR")
        check_policy(state, tensors, {}, "SCAR")
        self._saved.put_all()
