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
def attend(  # noqa: PLR0913 -- numba takes arrays, not records
    query: _Floats, keys_values: _Floats, bias: _Floats, start: _Ints, offsets: _Ints, weights: _Floats, out: _Floats
) -> None:
    """Write softmax weights [H, sum of lengths] and the weighted values [U, D]."""
    num_rows, dim = query.shape
    num_heads, num_biases = bias.shape
    width = dim // num_heads
    scale = np.float32(1.0 / math.sqrt(width))
    for head in numba.prange(num_heads):
        low = head * width
        for row in range(num_rows):
            first = offsets[row]
            size = offsets[row + 1] - first
            if size == 0:
                continue
            largest = np.float32(-np.inf)
            for i in range(size):
                position = start[row] + i
                score = np.float32(0.0)
                for e in range(low, low + width):
                    score += query[row, e] * keys_values[position, e]
                score = score * scale + bias[head, min(size - 1 - i, num_biases - 1)]
                weights[head, first + i] = score
                largest = max(largest, score)
            total = np.float32(0.0)
            for i in range(first, first + size):
                weights[head, i] = math.exp(weights[head, i] - largest)
                total += weights[head, i]
            share = np.float32(1.0) / total
            for i in range(size):
                weights[head, first + i] *= share
                weight = weights[head, first + i]
                position = start[row] + i
                for e in range(low, low + width):
                    out[row, e] += weight * keys_values[position, dim + e]


@numba.njit(cache=True, parallel=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
def attend_backward(
    saved: tuple[_Floats, _Floats, _Floats, _Floats],
    start: _Ints,
    offsets: _Ints,
    grad_query: _Floats,
    grad_keys_values: _Floats,
    grad_bias: _Floats,
) -> None:
    """Add to the gradients of query, keys with values, and bias; `saved` = query, keys with values, grad, weights."""
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
        for row in range(num_rows):
            first = offsets[row]
            size = offsets[row + 1] - first
            mean = np.float32(0.0)
            for i in range(size):
                position = start[row] + i
                weight = weights[head, first + i]
                value = np.float32(0.0)
                for e in range(low, low + width):
                    value += grad[row, e] * keys_values[position, dim + e]
                    grad_keys_values[position, dim + e] += weight * grad[row, e]
                slope[i] = value
                mean += weight * value
            for i in range(size):
                position = start[row] + i
                change = weights[head, first + i] * (slope[i] - mean)
                grad_bias[head, min(size - 1 - i, num_biases - 1)] += change
                change *= scale
                for e in range(low, low + width):
                    grad_query[row, e] += change * keys_values[position, e]
                    grad_keys_values[position, e] += change * query[row, e]
