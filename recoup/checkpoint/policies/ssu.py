"""SSU, sub-sampled used: a list of at most r N rows, fed by every other step; when it is full one of it goes at random.

Rows in use stay likely to be listed, with no counter a row. Source: CPR (arXiv 2011.02999), CPR-SSU. Differs: a hash
index of the list, also in proportion to r N, tells in one look whether a row is listed; `num_bytes` counts both.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import SAVE_FRACTION, check_policy
from recoup.checkpoint.policies.kernels import add_new, index_list
from recoup.core import State, StateError, check_state, derive_seed

SAMPLE_EVERY = 2
"""Every other step is looked at. Source: CPR, CPR-SSU's sampling period."""


class SSU:
    """A bounded list of recently used rows a table."""

    def __init__(self, num_rows: Mapping[str, int], *, fraction: float = SAVE_FRACTION, seed: int = 0) -> None:
        """Track these tables (rows by table); lists hold at most `fraction` of a table's rows, and at least one."""
        room = {table: max(1, int(rows * fraction)) for table, rows in num_rows.items()}
        self._lists = {table: torch.zeros(size, dtype=torch.int64) for table, size in room.items()}
        self._sizes = dict.fromkeys(num_rows, 0)
        self._slots = {
            table: np.full(1 << (size + size // 2).bit_length(), -1, dtype=np.int32) for table, size in room.items()
        }
        self._random = {t: np.array([derive_seed(seed, "SSU", t)], dtype=np.uint64) for t in num_rows}
        self._steps = dict.fromkeys(num_rows, 0)

    @property
    def num_bytes(self) -> int:
        """Memory of the lists (8 bytes of r N rows) and their index (6 to 12)."""
        return sum(8 * rows.numel() for rows in self._lists.values()) + sum(s.nbytes for s in self._slots.values())

    def observe(self, table: str, ids: Tensor) -> None:
        """List the rows of every other step. Cost: O(n) of the steps looked at."""
        if table not in self._lists:
            return
        self._steps[table] += 1
        if self._steps[table] % SAMPLE_EVERY:
            self._add(table, ids)

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return listed rows, the longest listed first when not all may be taken."""
        return self._lists[table][: min(self._sizes[table], num_rows)].sort().values

    def saved(self, table: str, rows: Tensor) -> None:
        """Take these rows off the list."""
        if table not in self._lists:
            return
        listed = self._lists[table][: self._sizes[table]]
        rest = listed[~torch.isin(listed, rows)]
        listed[: rest.numel()] = rest
        self._sizes[table] = rest.numel()
        self._index(table)

    def unsaved(self, table: str, rows: Tensor) -> None:
        """List these rows again."""
        if table in self._lists:
            self._add(table, rows)

    def state_dict(self) -> State:
        """Return steps and generators."""
        random: dict[str, Any] = {table: int(state[0]) for table, state in self._random.items()}
        return {"version": 1, "policy": "SSU", "steps": dict(self._steps), "random": random}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the lists."""
        return {f"SSU/{table}": rows[: self._sizes[table]] for table, rows in self._lists.items()}

    def load_state_dict(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved lists."""
        check_state(state, version=1, keys={"policy", "steps", "random"}, owner="SSU")
        check_policy(state, tensors, self.state_tensors(), "SSU")
        for table, room in self._lists.items():
            if tensors[f"SSU/{table}"].numel() > room.numel():
                raise StateError(f"SSU: expected at most {room.numel()} rows of {table!r}, got a longer list")
        self._steps = dict(state["steps"])
        for table, room in self._lists.items():
            listed = tensors[f"SSU/{table}"]
            room[: listed.numel()] = listed
            self._sizes[table] = listed.numel()
            self._random[table][0] = state["random"][table]
            self._index(table)

    def _add(self, table: str, ids: Tensor) -> None:
        listed, slots = self._lists[table].numpy(), self._slots[table]
        self._sizes[table] = add_new(listed, self._sizes[table], slots, ids.cpu().numpy(), self._random[table])

    def _index(self, table: str) -> None:
        index_list(self._lists[table].numpy(), self._sizes[table], self._slots[table])
