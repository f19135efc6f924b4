"""SSU, sub-sampled used: a list of at most r N rows, fed by every other step; when it is full one of it goes at random.

Rows in use stay likely to be listed, with no counter a row. Source: CPR (arXiv 2011.02999), CPR-SSU. Differs: an index
of 4 bytes a row finds listed rows in one look (the paper's list alone would be r N IDs); `num_bytes` states both.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recoup.checkpoint.policies.contract import SAVE_FRACTION
from recoup.checkpoint.policies.kernels import add_new
from recoup.checkpoint.policies.packing import pack, unpack
from recoup.core import State, check_state, derive_seed

SAMPLE_EVERY = 2
"""Every other step is looked at. Source: CPR, CPR-SSU's sampling period."""


class SSU:
    """A bounded list of recently used rows a table."""

    def __init__(self, num_rows: Mapping[str, int], *, fraction: float = SAVE_FRACTION, seed: int = 0) -> None:
        """Track these tables (rows by table); lists hold at most `fraction` of a table's rows."""
        self._lists = {
            table: torch.zeros(max(1, int(rows * fraction)), dtype=torch.int64) for table, rows in num_rows.items()
        }
        self._sizes = dict.fromkeys(num_rows, 0)
        self._position = {table: torch.full((rows,), -1, dtype=torch.int32) for table, rows in num_rows.items()}
        self._random = {t: np.array([derive_seed(seed, "SSU", t)], dtype=np.uint64) for t in num_rows}
        self._steps = dict.fromkeys(num_rows, 0)

    @property
    def num_bytes(self) -> int:
        """Memory of the lists and their index."""
        return sum(8 * rows.numel() for rows in self._lists.values()) + sum(
            4 * p.numel() for p in self._position.values()
        )

    def observe(self, table: str, ids: Tensor) -> None:
        """List the rows of every other step. Cost: O(n) of the steps looked at."""
        if table not in self._lists:
            return
        self._steps[table] += 1
        if self._steps[table] % SAMPLE_EVERY == 0:
            return
        lists, position = self._lists[table].numpy(), self._position[table].numpy()
        self._sizes[table] = int(add_new(lists, self._sizes[table], position, ids.cpu().numpy(), self._random[table]))

    def select(self, table: str, num_rows: int) -> Tensor:
        """Return listed rows, the longest listed first when not all may be taken."""
        return self._lists[table][: min(self._sizes[table], num_rows)].sort().values

    def saved(self, table: str, rows: Tensor) -> None:
        """Take these rows off the list."""
        if table not in self._lists:
            return
        position, size = self._position[table], self._sizes[table]
        position[rows] = -1
        listed = self._lists[table][:size]
        rest = listed[position[listed] >= 0].clone()
        self._lists[table][: rest.numel()] = rest
        position[rest] = torch.arange(rest.numel(), dtype=torch.int32)
        self._sizes[table] = rest.numel()

    def state_dict(self) -> State:
        """Return lists, sizes, steps and generators."""
        random: dict[str, Any] = {table: int(state[0]) for table, state in self._random.items()}
        return {
            "version": 1,
            "policy": "SSU",
            "lists": {table: pack(rows) for table, rows in self._lists.items()},
            "sizes": dict(self._sizes),
            "steps": dict(self._steps),
            "random": random,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved list."""
        check_state(state, version=1, keys={"policy", "lists", "sizes", "steps", "random"}, owner="SSU")
        unpack(state["lists"], self._lists, owner="SSU")
        self._sizes, self._steps = dict(state["sizes"]), dict(state["steps"])
        for table, rows in self._lists.items():
            self._random[table][0] = state["random"][table]
            self._position[table].fill_(-1)
            listed = rows[: self._sizes[table]]
            self._position[table][listed] = torch.arange(listed.numel(), dtype=torch.int32)
