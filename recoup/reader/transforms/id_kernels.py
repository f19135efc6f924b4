"""Kernels that map single IDs in place; one pass over a buffer, no allocation, the GIL released."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_EXACT = 1 << 51  # |x| below 2**51: float64 holds x, and x / size is off by less than one from the true quotient


@njit(cache=True, nogil=True)
def modulo_in_place(values: NDArray[np.int64], size: int) -> None:
    """Replace each ID by ID mod `size` (result 0 .. size-1).

    A float64 reciprocal replaces the 64-bit division (about 5 cycles instead of 20); a correction step makes it exact.
    """
    inverse = 1.0 / size
    for i in range(values.size):
        x = values[i]
        if -_EXACT < x < _EXACT:
            rest = x - np.int64(np.floor(np.float64(x) * inverse)) * size
            if rest < 0:
                rest += size
            elif rest >= size:
                rest -= size
            values[i] = rest
        else:
            values[i] = x % size


@njit(cache=True, nogil=True, inline="always")
def mix(x: np.uint64) -> np.uint64:
    """Return splitmix64's finalizer of `x` (Steele, Lea and Flood 2014): a bijection of 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True, inline="always")
def reduce_to(x: np.uint64, size: np.uint64) -> np.int64:
    """Return `x` reduced to 0 .. size-1: high half of (high 32 bits * size) below 2**32, else modulo."""
    if size < np.uint64(1 << 32):
        return np.int64(((x >> np.uint64(32)) * size) >> np.uint64(32))
    return np.int64(x % size)


@njit(cache=True, nogil=True)
def hash_in_place(values: NDArray[np.int64], size: int, seed: int) -> None:
    """Replace each ID by its hash in 0 .. size-1."""
    salt = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    for i in range(values.size):
        values[i] = reduce_to(mix(np.uint64(values[i]) + salt), np.uint64(size))


@njit(cache=True, nogil=True)
def clamp_ids_in_place(values: NDArray[np.int64], low: int, high: int) -> None:
    """Replace each ID by the nearest in `low` .. `high`."""
    for i in range(values.size):
        values[i] = min(max(values[i], low), high)


@njit(cache=True, nogil=True)
def build_vocabulary(ids: NDArray[np.int64], slots: NDArray[np.int64], numbers: NDArray[np.int64]) -> int:
    """Fill an open-addressing table (power-of-two size) with ID -> 1 + index; return -1, or the index of a repeat."""
    bits = np.uint64(slots.size - 1)
    for i in range(ids.size):
        at = mix(np.uint64(ids[i])) & bits
        while numbers[at] != 0:
            if slots[at] == ids[i]:
                return i
            at = (at + np.uint64(1)) & bits
        slots[at] = ids[i]
        numbers[at] = i + 1
    return -1


@njit(cache=True, nogil=True)
def remap_in_place(
    values: NDArray[np.int64], slots: NDArray[np.int64], numbers: NDArray[np.int64], unknown: int
) -> None:
    """Replace each ID by its number in the table that `build_vocabulary` filled, or by `unknown`."""
    bits = np.uint64(slots.size - 1)
    for i in range(values.size):
        at = mix(np.uint64(values[i])) & bits
        found = unknown
        while numbers[at] != 0:
            if slots[at] == values[i]:
                found = numbers[at]
                break
            at = (at + np.uint64(1)) & bits
        values[i] = found
