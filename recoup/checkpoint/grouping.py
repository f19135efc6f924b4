"""Rows grouped by shard in one pass: a save of many rows into many shards must not look at every row once a shard."""

from typing import Any, TypeAlias

import numba
import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]


def rows_by_shard(rows: Tensor, owner: Tensor, num_shards: int) -> tuple[Tensor, ...]:
    """Return for every shard its rows, in the order they have in `rows`.

    Args:
        rows: int64 [n].
        owner: int64 [n], shard of each row.
        num_shards: number of shards.
    Cost: O(n + num_shards), two passes.
    """
    grouped, counts = _grouped(rows.numpy(), owner.numpy(), num_shards)
    return torch.split(torch.from_numpy(grouped), counts.tolist())


@numba.njit(cache=True, nogil=True)
def _grouped(rows: Array, owner: Array, num_shards: int) -> tuple[Array, Array]:
    counts = np.zeros(num_shards, dtype=np.int64)
    for i in range(rows.shape[0]):
        counts[owner[i]] += 1
    place = np.cumsum(counts) - counts
    grouped = np.empty(rows.shape[0], dtype=np.int64)
    for i in range(rows.shape[0]):
        grouped[place[owner[i]]] = rows[i]
        place[owner[i]] += 1
    return grouped, counts
