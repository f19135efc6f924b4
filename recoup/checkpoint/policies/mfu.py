"""MFU, most frequently used: 4 bytes a row count accesses; the most used rows are saved first, then count from 0.

Source: CPR (arXiv 2011.02999), CPR-MFU. Memory: 4 bytes a row of the tracked tables.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import check_policy, load_tensors
from recoup.checkpoint.policies.kernels import most_used
from recoup.checkpoint.policies.use_counts import UseCounts
from recoup.core import State, check_state


class MFU:
    """Rows by number of accesses since they were last saved."""

    def __init__(self, num_rows: Mapping[str, int]) -> None:
        """Track these tables (rows by table) from 0."""
        self._uses = UseCounts(num_rows)

    @property
    def num_bytes(self) -> int:
        """Memory of the counters."""
        return self._uses.num_bytes

    def observe(self, table: str, ids: Tensor) -> None:
        """Count a step's accesses. Cost: O(n)."""
        self._uses.add(table, ids)

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return the most used rows; of equally used ones the first. Cost: O(R)."""
        return torch.from_numpy(most_used(self._uses.counts[table].numpy(), max(0, num_rows)))

    def saved(self, table: str, rows: Tensor) -> None:
        """Count these rows from 0 again."""
        self._uses.reset(table, rows)

    def unsaved(self, table: str, rows: Tensor) -> None:
        """Put these rows in front of all others: their counts are lost, and they were the most used."""
        self._uses.put_first(table, rows)

    def state_dict(self) -> State:
        """Return the policy's name."""
        return {"version": 1, "policy": "MFU"}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the counters."""
        return {f"MFU/{table}": counts for table, counts in self._uses.counts.items()}

    def load_state_dict(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved counters."""
        check_state(state, version=1, keys={"policy"}, owner="MFU")
        check_policy(state, tensors, self.state_tensors(), "MFU")
        load_tensors(tensors, self.state_tensors(), "MFU")
