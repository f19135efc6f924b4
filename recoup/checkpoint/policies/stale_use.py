"""Stale use: rows whose unsaved accesses are many and old come first; the least is lost for a given volume of saves.

A row used at rate a and saved every t loses a t / 2 accesses at a failure and costs 1 / t. The sum of losses at a fixed
sum of costs is least where a t^2 is the same for every row (Lagrange), that is, if a row is saved when the product of
its unsaved accesses (a t) and the time since its save (t) reaches a common height. MFU ranks by a t alone: it saves the
hottest rows too often, and rows of little use never.
Ours: not in CPR. Memory: 8 bytes a row of the tracked tables. State travels as two tensors a table.
"""

from collections.abc import Mapping

import numba
import numpy as np
import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import check_policy, load_tensors
from recoup.checkpoint.policies.kernels import Array, most_used
from recoup.checkpoint.policies.use_counts import UseCounts
from recoup.core import State, check_state


class StaleUse:
    """Rows by accesses since they were last saved, times steps since then."""

    def __init__(self, num_rows: Mapping[str, int]) -> None:
        """Track these tables (rows by table); every row counts as saved now."""
        self._uses = UseCounts(num_rows)
        self._saved_at = {table: torch.zeros(rows, dtype=torch.int32) for table, rows in num_rows.items()}
        self._now = dict.fromkeys(num_rows, 0)

    @property
    def num_bytes(self) -> int:
        """Memory of the counters and of the steps of saves."""
        return 2 * self._uses.num_bytes

    def observe(self, table: str, ids: Tensor) -> None:
        """Count a step's accesses. Cost: O(n)."""
        self._uses.add(table, ids)
        if table in self._now:
            self._now[table] += 1

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return the rows of the greatest product; of equal ones the first. Cost: O(R), 4 R bytes of scratch."""
        products = _products(self._uses.counts[table].numpy(), self._saved_at[table].numpy(), self._now[table])
        return torch.from_numpy(most_used(products.view(np.int32), max(0, num_rows)))

    def saved(self, table: str, rows: Tensor) -> None:
        """Count these rows from 0 again, from now on."""
        self._uses.reset(table, rows)
        if table in self._now:
            self._saved_at[table].numpy()[rows.numpy()] = self._now[table]

    def unsaved(self, table: str, rows: Tensor) -> None:
        """Put these rows in front of all others: what they had counted is lost, and they were the first."""
        self._uses.put_first(table, rows)
        if table in self._now:
            self._saved_at[table][rows] = 0

    def state_dict(self) -> State:
        """Return the policy's name and each table's clock."""
        return {"version": 1, "policy": "StaleUse", "now": dict(self._now)}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the counters and the steps of saves."""
        counts = {f"StaleUse/{table}": tensor for table, tensor in self._uses.counts.items()}
        return counts | {f"StaleUse/{table}/saved_at": tensor for table, tensor in self._saved_at.items()}

    def load_state_dict(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved counters."""
        check_state(state, version=1, keys={"policy", "now"}, owner="StaleUse")
        check_policy(state, tensors, self.state_tensors(), "StaleUse")
        load_tensors(tensors, self.state_tensors(), "StaleUse")
        self._now = {table: int(state["now"][table]) for table in self._now}


@numba.njit(cache=True, nogil=True)
def _products(counts: Array, saved_at: Array, now: int) -> Array:
    """Return accesses times age, float32 [R]; positive ones keep their order when their bits are read as int32."""
    products = np.empty(counts.shape[0], dtype=np.float32)
    for row in range(counts.shape[0]):
        products[row] = np.float32(counts[row]) * np.float32(max(now - saved_at[row], 1))
    return products
