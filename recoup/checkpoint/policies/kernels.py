"""Kernels of the trackers: one pass over a step's IDs, no temporary of their size."""

from typing import Any, TypeAlias

import numba
import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, Any]


@numba.njit(cache=True, nogil=True)
def count_rows(counts: Array, ids: Array) -> None:
    """Add one to `counts[id]` for every ID, repeats included."""
    for i in range(ids.shape[0]):
        counts[ids[i]] += 1


@numba.njit(cache=True, nogil=True)
def mark_rows(marks: Array, ids: Array) -> None:
    """Set `marks[id]` to 1 for every ID."""
    for i in range(ids.shape[0]):
        marks[ids[i]] = 1


@numba.njit(cache=True, nogil=True)
def add_new(listed: Array, size: int, position: Array, ids: Array, random: Array) -> int:
    """Put the IDs that are not listed into a list of fixed room; when it is full one of it is replaced at random.

    Args:
        listed: int64 [room].
        size: how much of it is used.
        position: int32 [rows], an ID's place in the list, or -1.
        ids: int64 [n].
        random: uint64 [1], state of a generator (SplitMix64).
    Returns:
        The new size.
    """
    room = listed.shape[0]
    for i in range(ids.shape[0]):
        row = ids[i]
        if position[row] >= 0:
            continue
        if size < room:
            place = size
            size += 1
        else:
            random[0] += np.uint64(0x9E3779B97F4A7C15)
            z = random[0]
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            place = np.int64((z ^ (z >> np.uint64(31))) % np.uint64(room))
            position[listed[place]] = -1
        listed[place] = row
        position[row] = place
    return size


def top_rows(priority: Tensor, num_rows: int) -> Tensor:
    """Return the rows of the greatest positive priority, at most `num_rows`, ascending.

    Args:
        priority: [R], larger = sooner; rows of priority 0 or less are not chosen.
        num_rows: the most to return.
    Cost: O(R).
    """
    positive = (priority > 0).nonzero().flatten()
    if positive.numel() <= num_rows:
        return positive
    best = torch.topk(priority[positive], num_rows, sorted=False).indices
    return positive[best].sort().values
