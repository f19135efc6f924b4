"""Kernels of pooling over windows: a feature by one thread, positions in order, so that sums have one order.

Legend: U rows, N positions of the buffers, F features, D embedding dim.
"""

from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt

_Floats: TypeAlias = npt.NDArray[np.float32]
_Ints: TypeAlias = npt.NDArray[np.int64]


@numba.njit(cache=True, parallel=True, nogil=True)
def pool_windows(values: _Floats, start: _Ints, length: _Ints, scale: _Floats, out: _Floats) -> None:
    """Write `scale[f, u]` times the sum of window u of feature f, added from its first position to its last.

    Args:
        values: float32 [N, F * D]; columns of feature f are `f * D .. (f + 1) * D`.
        start: int64 [F, U].
        length: int64 [F, U].
        scale: float32 [F, U].
        out: float32 [U, F * D], zeros before.
    Cost: O(D * sum of lengths).
    """
    num_features, num_rows = start.shape
    dim = values.shape[1] // num_features
    for f in numba.prange(num_features):
        for u in range(num_rows):
            row = out[u, f * dim : (f + 1) * dim]
            for n in range(start[f, u], start[f, u] + length[f, u]):
                one = values[n, f * dim : (f + 1) * dim]
                for d in range(dim):
                    row[d] += one[d]
            if scale[f, u] != 1.0:
                for d in range(dim):
                    row[d] *= scale[f, u]


@numba.njit(cache=True, parallel=True, nogil=True)
def pool_windows_backward(grad: _Floats, start: _Ints, length: _Ints, scale: _Floats, out: _Floats) -> None:
    """Write to every position the sum of the gradients of the windows that cover it; shapes as in `pool_windows`.

    One walk over the buffer: a window's gradient is added where it begins and taken off where it ends, in float64, and
    the sum restarts from zero wherever no window is open, so sessions do not touch each other.
    Cost: O((N + U) * D), whatever the lengths.
    """
    num_features, num_rows = start.shape
    dim = grad.shape[1] // num_features
    for f in numba.prange(num_features):
        by_start = np.argsort(start[f], kind="mergesort")
        by_end = np.argsort(start[f] + length[f], kind="mergesort")
        total = np.zeros(dim, dtype=np.float64)
        begun, ended, num_open = 0, 0, 0
        for n in range(out.shape[0]):
            while ended < num_rows and start[f, by_end[ended]] + length[f, by_end[ended]] <= n:
                u = by_end[ended]
                ended += 1
                if length[f, u] > 0:
                    num_open -= 1
                    _add(total, grad[u, f * dim : (f + 1) * dim], -np.float64(scale[f, u]))
            if num_open == 0:
                total[:] = 0.0
            while begun < num_rows and start[f, by_start[begun]] <= n:
                u = by_start[begun]
                begun += 1
                if length[f, u] > 0:
                    num_open += 1
                    _add(total, grad[u, f * dim : (f + 1) * dim], np.float64(scale[f, u]))
            if num_open:
                out[n, f * dim : (f + 1) * dim] = total


@numba.njit(cache=True, nogil=True)
def _add(total: npt.NDArray[np.float64], row: _Floats, factor: float) -> None:
    for d in range(total.shape[0]):
        total[d] += factor * row[d]
