"""Codes of IDs and back.

With K hot IDs, the code of hot ID r is r; the code of any other ID is itself if negative, itself + K if not.
"""

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from recoup.coding.popularity import IntArray

_LARGEST = np.iinfo(np.int64).max
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2**64 over the golden section: the top bits of a product spread consecutive numbers (Knuth, TAOCP 6.4). The halves of
a number are folded first, so that IDs which differ in high bits only, or by multiples of 2**32, are spread, too."""


@dataclass(frozen=True, slots=True)
class HotCodes:
    """The codes under one list of hot IDs."""

    hot: IntArray
    """int64 [K]; distinct."""
    _slots: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Lay the hash table: open addressing, at most half full."""
        slots = np.full(1 << max(1, (2 * len(self.hot)).bit_length()), -1, dtype=np.int64)
        _fill(self.hot, slots)
        object.__setattr__(self, "_slots", slots)

    def holds(self, ids: IntArray) -> bool:
        """Whether all of `ids`, int64 [N], have codes: one that is not hot must not be within K of the largest int64.

        Cost: one comparison an ID; a probe for those few that are so large.
        """
        large = ids[ids > _LARGEST - self.hot.size]
        return bool(np.isin(large, self.hot).all())

    def encode(self, ids: IntArray) -> IntArray:
        """Return the codes of `ids`, int64 [N], which all have one (`holds`). Cost: one probe an ID."""
        codes = np.empty(len(ids), dtype=np.int64)
        _encode(ids, self.hot, self._slots, codes)
        return codes


def ids_of(codes: IntArray, hot: IntArray) -> None:
    """Turn codes, int64 [N], into their IDs in place. Any code is an ID: nothing is refused.

    Cost: one read of the list a code, without a branch.
    """
    if hot.size:
        steps = np.append(hot - np.arange(hot.size), -hot.size)  # what to add to code r; differences may wrap around
        _decode(codes, steps)


@njit(cache=True, nogil=True)
def _slot(number: int, shift: np.uint64) -> np.uint64:
    word = np.uint64(number)
    return ((word ^ (word >> np.uint64(32))) * _FACTOR) >> shift


@njit(cache=True, nogil=True)
def _shift(num_slots: int) -> np.uint64:
    """Return 64 - log2(num_slots)."""
    bits = 0
    while 1 << bits < num_slots:
        bits += 1
    return np.uint64(64 - bits)


@njit(cache=True, nogil=True)
def _fill(hot: IntArray, slots: IntArray) -> None:
    shift, last = _shift(slots.size), np.uint64(slots.size - 1)
    for place in range(hot.size):
        at = _slot(hot[place], shift)
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & last
        slots[at] = place


@njit(cache=True, nogil=True)
def _encode(ids: IntArray, hot: IntArray, slots: IntArray, codes: IntArray) -> None:
    shift, last = _shift(slots.size), np.uint64(slots.size - 1)
    for i in range(ids.size):
        number = ids[i]
        at = _slot(number, shift)
        while slots[at] >= 0 and hot[slots[at]] != number:
            at = (at + np.uint64(1)) & last
        if slots[at] >= 0:
            codes[i] = slots[at]
        else:
            codes[i] = number if number < 0 else number + hot.size


@njit(cache=True, nogil=True)
def _decode(codes: IntArray, steps: IntArray) -> None:
    num_hot = steps.size - 1
    for i in range(codes.size):
        code = codes[i]
        place = min(np.uint64(code), np.uint64(num_hot))  # a negative code is a large unsigned one
        codes[i] = code + steps[np.int64(place)] + (num_hot & (code >> 63))
