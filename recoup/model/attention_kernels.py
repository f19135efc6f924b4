"""Kernels of window attention: each head by one thread, rows in order, so that sums have one order.

Legend: U rows, N positions of the buffer, D = H * E with H heads of E values.
"""

import math
from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt

_Floats: TypeAlias = npt.NDArray[np.float32]
_Ints: TypeAlias = npt.NDArray[np.int64]


@numba.njit(cache=True, parallel=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
def attend(  # noqa: PLR0913, C901 -- numba takes arrays; one pass over a window keeps it in cache
    query: _Floats, keys_values: _Floats, bias: _Floats, start: _Ints, offsets: _Ints, weights: _Floats, out: _Floats
) -> None:
    """Write softmax weights [H, sum of lengths] and the weighted values [U, D]."""
    num_rows, dim = query.shape
    num_heads, num_biases = bias.shape
    width = dim // num_heads
    scale = np.float32(1.0 / math.sqrt(width))
    for head in numba.prange(num_heads):
        low = head * width
        asked = np.empty(width, dtype=np.float32)
        mixed = np.empty(width, dtype=np.float32)
        for row in range(num_rows):
            first = offsets[row]
            size = offsets[row + 1] - first
            if size == 0:
                continue
            for e in range(width):
                asked[e] = query[row, low + e] * scale
                mixed[e] = np.float32(0.0)
            window = keys_values[start[row] : start[row] + size]
            mine = weights[head, first : first + size]
            largest = np.float32(-np.inf)
            for i in range(size):
                score = bias[head, min(size - 1 - i, num_biases - 1)]
                for e in range(width):
                    score += asked[e] * window[i, low + e]
                mine[i] = score
                largest = max(largest, score)
            total = np.float32(0.0)
            for i in range(size):
                mine[i] = math.exp(mine[i] - largest)
                total += mine[i]
            share = np.float32(1.0) / total
            for i in range(size):
                weight = mine[i] * share
                mine[i] = weight
                for e in range(width):
                    mixed[e] += weight * window[i, dim + low + e]
            for e in range(width):
                out[row, low + e] = mixed[e]


@numba.njit(cache=True, parallel=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
def attend_backward(  # noqa: C901 -- one pass over a window keeps it in cache
    saved: tuple[_Floats, _Floats, _Floats, _Floats],
    start: _Ints,
    offsets: _Ints,
    grad_query: _Floats,
    grad_keys_values: _Floats,
    grad_bias: _Floats,
) -> None:
    """Write the gradient of query, add to the others; `saved` = query, keys with values, grad, weights."""
    query, keys_values, grad, weights = saved
    num_rows, dim = query.shape
    num_heads, num_biases = grad_bias.shape
    width = dim // num_heads
    scale = np.float32(1.0 / math.sqrt(width))
    longest = np.int64(0)
    for row in range(num_rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    for head in numba.prange(num_heads):
        low = head * width
        slope = np.empty(longest, dtype=np.float32)
        asked = np.empty(width, dtype=np.float32)
        given = np.empty(width, dtype=np.float32)
        pulled = np.empty(width, dtype=np.float32)
        for row in range(num_rows):
            first = offsets[row]
            size = offsets[row + 1] - first
            for e in range(width):
                asked[e] = query[row, low + e]
                given[e] = grad[row, low + e]
                pulled[e] = np.float32(0.0)
            window = keys_values[start[row] : start[row] + size]
            into = grad_keys_values[start[row] : start[row] + size]
            mean = np.float32(0.0)
            for i in range(size):
                value = np.float32(0.0)
                for e in range(width):
                    value += given[e] * window[i, dim + low + e]
                slope[i] = value
                mean += weights[head, first + i] * value
            for i in range(size):
                weight = weights[head, first + i]
                change = weight * (slope[i] - mean)
                grad_bias[head, min(size - 1 - i, num_biases - 1)] += change
                change *= scale
                for e in range(width):
                    pulled[e] += change * window[i, low + e]
                for e in range(width):
                    into[i, low + e] += change * asked[e]
                for e in range(width):
                    into[i, dim + low + e] += weight * given[e]
            for e in range(width):
                grad_query[row, low + e] = pulled[e]
