"""Kernels on contiguous float32 columns, in place."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def clamp_in_place(column: NDArray[np.float32], low: np.float32, high: np.float32) -> None:
    """Replace each value by the nearest in `low` .. `high`."""
    for i in range(column.size):
        column[i] = min(max(column[i], low), high)


@njit(cache=True, nogil=True)
def log1p_in_place(column: NDArray[np.float32], symmetric: bool) -> None:
    """Replace x by log(1 + x); negative x counts as 0, or gives -log(1 - x) when `symmetric`."""
    for i in range(column.size):
        x = column[i]
        if x >= 0:
            column[i] = np.float32(np.log1p(np.float64(x)))
        else:
            column[i] = np.float32(-np.log1p(-np.float64(x))) if symmetric else np.float32(0)


@njit(cache=True, nogil=True)
def bucketise(column: NDArray[np.float32], boundaries: NDArray[np.float64], out: NDArray[np.int64]) -> None:
    """Write the number of boundaries that are <= the value."""
    for i in range(column.size):
        out[i] = np.searchsorted(boundaries, np.float64(column[i]), side="right")
