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


@numba.njit(cache=True, nogil=True, inline="always")
def _home(row: int, mask: int) -> Any:  # noqa: ANN401 (int64)
    mixed = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing; the high bits are the good ones
    return np.int64(mixed >> np.uint64(32)) & mask


@numba.njit(cache=True, nogil=True)
def _find(slots: Array, listed: Array, row: int) -> int:
    """Return the slot that holds `row`, or the empty one where it would go (linear probing)."""
    mask = slots.shape[0] - 1
    slot = _home(row, mask)
    while slots[slot] >= 0 and listed[slots[slot]] != row:
        slot = (slot + 1) & mask
    return slot


@numba.njit(cache=True, nogil=True)
def _empty(slots: Array, listed: Array, slot: int) -> None:
    """Empty a slot and close the gap, so that a probe still finds what lies behind it."""
    mask = slots.shape[0] - 1
    gap = slot
    nearby = (slot + 1) & mask
    while slots[nearby] >= 0:
        home = _home(listed[slots[nearby]], mask)
        if ((nearby - home) & mask) >= ((nearby - gap) & mask):
            slots[gap] = slots[nearby]
            gap = nearby
        nearby = (nearby + 1) & mask
    slots[gap] = -1


@numba.njit(cache=True, nogil=True)
def add_new(listed: Array, size: int, slots: Array, ids: Array, random: Array) -> int:
    """Put the IDs that are not listed into a list of fixed room; when it is full one of it goes at random.

    Args:
        listed: int64 [room].
        size: how much of it is used.
        slots: int32 [power of two > room], hash index of the list: a place in it, or -1.
        ids: int64 [n].
        random: uint64 [1], state of a generator (SplitMix64).
    Returns:
        The new size.
    """
    room = listed.shape[0]
    for i in range(ids.shape[0]):
        row = ids[i]
        slot = _find(slots, listed, row)
        if slots[slot] >= 0:
            continue
        place = size
        if size < room:
            size += 1
        else:
            random[0] += np.uint64(0x9E3779B97F4A7C15)
            z = random[0]
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            place = np.int64((z ^ (z >> np.uint64(31))) % np.uint64(room))
            _empty(slots, listed, _find(slots, listed, listed[place]))
            slot = _find(slots, listed, row)
        listed[place] = row
        slots[slot] = place
    return size


@numba.njit(cache=True, nogil=True)
def index_list(listed: Array, size: int, slots: Array) -> None:
    """Make the hash index of the first `size` rows of a list anew."""
    slots[:] = -1
    for place in range(size):
        slots[_find(slots, listed, listed[place])] = place


@numba.njit(cache=True, nogil=True)
def most_used(counts: Array, room: int) -> Array:
    """Return the rows of the greatest positive counts, int64 ascending, at most `room`; of equal counts the first.

    Cost: three passes over int32 [R], four if a count is beyond 65,535.
    """
    positive, greatest = 0, 0
    for row in range(counts.shape[0]):
        positive += counts[row] > 0
        greatest = max(greatest, counts[row])
    least, ties = 0, 0  # take every row above `least`, and so many of exactly that count
    if positive <= room:
        room = positive
    else:
        least, ties = _threshold(counts, greatest, room)
    found = np.empty(room, dtype=np.int64)
    size = 0
    for row in range(counts.shape[0]):
        if counts[row] > least or (counts[row] == least and ties > 0):
            ties -= counts[row] == least
            found[size] = row
            size += 1
    return found


@numba.njit(cache=True, nogil=True)
def _threshold(counts: Array, greatest: int, room: int) -> tuple[int, int]:
    """Return the least count among the `room` greatest, and how many rows of exactly that count are among them.

    Two histograms, of the high half of the bits, then of the low half where the high half is the least count's.
    """
    above, part = 0, greatest >> 16
    if part > 0:
        high = np.zeros(part + 1, dtype=np.int64)
        for row in range(counts.shape[0]):
            high[counts[row] >> 16] += 1
        while above + high[part] < room:
            above += high[part]
            part -= 1
    low = np.zeros(1 << 16, dtype=np.int64)
    for row in range(counts.shape[0]):
        if counts[row] >> 16 == part:
            low[counts[row] & 0xFFFF] += 1
    rest = 0xFFFF
    while above + low[rest] < room:
        above += low[rest]
        rest -= 1
    return (part << 16) | rest, room - above


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
