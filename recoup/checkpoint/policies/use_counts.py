"""Accesses of every row since it was last saved: 4 bytes a row of the tracked tables; other tables are ignored."""

from collections.abc import Mapping

import torch
from torch import Tensor

from recoup.checkpoint.policies.kernels import count_rows

_FRONT = 1 << 30  # far from the end of int32, whatever is counted on top


class UseCounts:
    """Counters by table, int32 [R]."""

    def __init__(self, num_rows: Mapping[str, int]) -> None:
        """Count from 0 (rows by table)."""
        self.counts = {table: torch.zeros(rows, dtype=torch.int32) for table, rows in num_rows.items()}

    @property
    def num_bytes(self) -> int:
        """Memory of the counters."""
        return sum(counts.numel() * 4 for counts in self.counts.values())

    def add(self, table: str, ids: Tensor) -> None:
        """Count a step's accesses. Cost: O(n)."""
        if table in self.counts:
            count_rows(self.counts[table].numpy(), ids.cpu().numpy())

    def reset(self, table: str, rows: Tensor) -> None:
        """Count these rows from 0 again."""
        if table in self.counts:
            self.counts[table].numpy()[rows.numpy()] = 0  # not torch's thread team: training waits

    def put_first(self, table: str, rows: Tensor) -> None:
        """Put these rows above all others: what they had counted is lost, and they were the first."""
        if table in self.counts:
            counts = self.counts[table]
            front = int(counts.max()) + 1 if counts.numel() else 1
            counts[rows] = (counts[rows].long() + front).clamp_(max=_FRONT).int()
