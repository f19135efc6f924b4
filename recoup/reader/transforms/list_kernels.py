"""Kernels that write new lists from windows: distinct IDs, n-grams, crosses, expansion; rows come out back to back."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from recoup.reader.transforms.id_kernels import mix, reduce_to

_SCAN = 16  # lists up to this length look back over themselves; longer ones sort (measured break-even 12-24 IDs)


@njit(cache=True, nogil=True)
def unique_ids(
    values: NDArray[np.int64],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    out_values: NDArray[np.int64],
    out_length: NDArray[np.int64],
) -> int:
    """Write each list's distinct IDs in order of first place; return the IDs written."""
    pos = 0
    for u in range(length.size):
        row = values[start[u] : start[u] + length[u]]
        count = _by_scan(row, out_values[pos:]) if row.size <= _SCAN else _by_sort(row, out_values[pos:])
        out_length[u] = count
        pos += count
    return pos


@njit(cache=True, nogil=True)
def _by_scan(row: NDArray[np.int64], out: NDArray[np.int64]) -> int:
    count = 0
    for i in range(row.size):
        seen = False
        for j in range(count):
            seen = seen or out[j] == row[i]
        if not seen:
            out[count] = row[i]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _by_sort(row: NDArray[np.int64], out: NDArray[np.int64]) -> int:
    order = np.argsort(row, kind="mergesort")
    keep = np.ones(row.size, dtype=np.bool_)
    for i in range(1, row.size):
        if row[order[i]] == row[order[i - 1]]:
            keep[order[i]] = False
    count = 0
    for i in range(row.size):
        if keep[i]:
            out[count] = row[i]
            count += 1
    return count


@njit(cache=True, nogil=True)
def ngrams(
    values: NDArray[np.int64],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    out_values: NDArray[np.int64],
    n_and_size: tuple[int, int],
) -> None:
    """Write the mixed n-grams of each list; `out_values` has max(length - n + 1, 0) places a list."""
    n, size = n_and_size
    pos = 0
    for u in range(length.size):
        for i in range(start[u], start[u] + length[u] - n + 1):
            word = np.uint64(n)
            for j in range(n):
                word = mix(word ^ np.uint64(values[i + j]))
            out_values[pos] = reduce_to(word, np.uint64(size))
            pos += 1


@njit(cache=True, nogil=True)
def crosses(
    first: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    second: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    out_values: NDArray[np.int64],
    size: int,
) -> None:
    """Write the mixed pairs of each row's two lists, `second` running fastest; each is (values, start, length)."""
    values_1, start_1, length_1 = first
    values_2, start_2, length_2 = second
    pos = 0
    for u in range(length_1.size):
        for i in range(start_1[u], start_1[u] + length_1[u]):
            half = mix(np.uint64(2) ^ np.uint64(values_1[i]))
            for j in range(start_2[u], start_2[u] + length_2[u]):
                out_values[pos] = reduce_to(mix(half ^ np.uint64(values_2[j])), np.uint64(size))
                pos += 1
