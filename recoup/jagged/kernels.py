"""Kernels on windows and inverse indices, over NumPy arrays; the slow, obvious versions are the tests' oracles.

Legend: N IDs, U rows, B samples, D columns.
"""

from typing import Any, TypeAlias

import numba
import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


@numba.njit(cache=True, nogil=True)
def copy_windows(values: Array, start: Array, offsets: Array, out: Array) -> None:
    """Copy window u of `values` (from `start[u]`, of `offsets[u + 1] - offsets[u]` items) to `out[offsets[u]:]`.

    Args:
        values: any dtype [N].
        start: int64 [U].
        offsets: int64 [U + 1].
        out: dtype of `values`, [offsets[U]], filled.
    Cost: O(offsets[U]), sequential writes.
    """
    for u in range(start.shape[0]):
        first = offsets[u]
        low = start[u]
        for j in range(offsets[u + 1] - first):
            out[first + j] = values[low + j]


@numba.njit(cache=True, nogil=True)
def sum_by_inverse(grad: Array, inverse: Array, out: Array) -> None:
    """Add row b of `grad` to row `inverse[b]` of `out`, in sample order.

    Args:
        grad: float [B, D].
        inverse: int64 [B].
        out: float [U, D], zeros before.
    Cost: O(B * D). A run of one row is summed while it stays in cache: rows of a session are neighbours.
    """
    for b in range(inverse.shape[0]):
        u = inverse[b]
        for d in range(grad.shape[1]):
            out[u, d] += grad[b, d]


@numba.njit(cache=True, nogil=True)
def first_bad_window(start: Array, length: Array, size: int) -> int:
    """Return the first u whose window leaves [0, size), or -1."""
    for u in range(start.shape[0]):
        if length[u] < 0 or start[u] < 0 or start[u] > size - length[u]:
            return u
    return -1
