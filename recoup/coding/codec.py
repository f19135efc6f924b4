"""Codes of IDs and back.

With K hot IDs, the code of hot ID r is r; the code of any other ID is itself if negative, itself + K if not.
"""

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from recoup.coding.popularity import IntArray

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden section: spreads consecutive IDs (Knuth, TAOCP 6.4)


@dataclass(frozen=True, slots=True)
class HotCodes:
    """The codes under one list of hot IDs."""

    hot: IntArray
    """int64 [K]; distinct."""
    _slots: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Lay the hash table: open addressing, at most half full."""
        slots = np.full(1 << (2 * len(self.hot)).bit_length(), -1, dtype=np.int64)
        _fill(self.hot, slots)
        object.__setattr__(self, "_slots", slots)

    def encode(self, ids: IntArray) -> IntArray | None:
        """Return the codes of `ids`, int64 [N]; None if one has none: it is not hot, and too near the largest int64.

        Cost: one probe an ID.
        """
        codes = np.empty(len(ids), dtype=np.int64)
        return codes if _encode(ids, self.hot, self._slots, codes) else None


def ids_of(codes: IntArray, hot: IntArray) -> None:
    """Turn codes, int64 [N], into their IDs in place. Any code is an ID: nothing is refused.

    Cost: one read of the list a code, without a branch.
    """
    if hot.size:
        steps = np.append(hot - np.arange(hot.size), -hot.size)  # what to add to code r; differences may wrap around
        _decode(codes, steps)


@njit(cache=True, nogil=True)
def _slot(number: int, slots: IntArray) -> int:
    return int(np.int64(((np.uint64(number) * _FACTOR) >> np.uint64(32)) & np.uint64(slots.size - 1)))


@njit(cache=True, nogil=True)
def _fill(hot: IntArray, slots: IntArray) -> None:
    for place in range(hot.size):
        at = _slot(hot[place], slots)
        while slots[at] >= 0:
            at = (at + 1) & (slots.size - 1)
        slots[at] = place


@njit(cache=True, nogil=True)
def _encode(ids: IntArray, hot: IntArray, slots: IntArray, codes: IntArray) -> bool:
    last = np.iinfo(np.int64).max - hot.size
    for i in range(ids.size):
        number = ids[i]
        at = _slot(number, slots)
        while slots[at] >= 0 and hot[slots[at]] != number:
            at = (at + 1) & (slots.size - 1)
        if slots[at] >= 0:
            codes[i] = slots[at]
        elif number < 0:
            codes[i] = number
        elif number <= last:
            codes[i] = number + hot.size
        else:
            return False
    return True


@njit(cache=True, nogil=True)
def _decode(codes: IntArray, steps: IntArray) -> None:
    num_hot = steps.size - 1
    for i in range(codes.size):
        code = codes[i]
        place = min(np.uint64(code), np.uint64(num_hot))  # a negative code is a large unsigned one
        codes[i] = code + steps[np.int64(place)] + (num_hot & (code >> 63))
