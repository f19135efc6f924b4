"""MFU, most frequently used: 4 bytes a row count accesses; the most used rows are saved first, then count from 0.

Source: CPR (arXiv 2011.02999), CPR-MFU. Memory: 4 bytes a row of the tracked tables.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import check_policy, load_tensors
from recoup.checkpoint.policies.kernels import count_rows, most_used
from recoup.core import State, check_state

_FRONT = 1 << 30  # far from the end of int32, whatever is counted on top


class MFU:
    """Rows by number of accesses since they were last saved."""

    def __init__(self, num_rows: Mapping[str, int]) -> None:
        """Track these tables (rows by table) from 0."""
        self._counts = {table: torch.zeros(rows, dtype=torch.int32) for table, rows in num_rows.items()}

    @property
    def num_bytes(self) -> int:
        """Memory of the counters."""
        return sum(counts.numel() * 4 for counts in self._counts.values())

    def observe(self, table: str, ids: Tensor) -> None:
        """Count a step's accesses. Cost: O(n)."""
        if table in self._counts:
            count_rows(self._counts[table].numpy(), ids.cpu().numpy())

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return the most used rows; of equally used ones the first. Cost: O(R)."""
        return torch.from_numpy(most_used(self._counts[table].numpy(), max(0, num_rows)))

    def saved(self, table: str, rows: Tensor) -> None:
        """Count these rows from 0 again."""
        if table in self._counts:
            self._counts[table].numpy()[rows.numpy()] = 0  # not torch's thread team: training waits

    def unsaved(self, table: str, rows: Tensor) -> None:
        """Put these rows in front of all others: their counts are lost, and they were the most used."""
        if table in self._counts:
            counts = self._counts[table]
            front = int(counts.max()) + 1 if counts.numel() else 1
            counts[rows] = (counts[rows].long() + front).clamp_(max=_FRONT).int()

    def state_dict(self) -> State:
        """Return the policy's name."""
        return {"version": 1, "policy": "MFU"}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the counters."""
        return {f"MFU/{table}": counts for table, counts in self._counts.items()}

    def load_state_dict(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved counters."""
        check_state(state, version=1, keys={"policy"}, owner="MFU")
        check_policy(state, tensors, self.state_tensors(), "MFU")
        load_tensors(tensors, self.state_tensors(), "MFU")
