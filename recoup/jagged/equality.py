"""Which lists are equal, exactly: lengths, IDs and weight bits; neighbours first, then a hash that a comparison checks.

The table's encoder asks it row by row of the table, `dedup` once for a whole batch. A hash proposes, never decides.
Legend: n samples, V versions (distinct samples); a feature's sample i is `values[offsets[i] : offsets[i + 1]]`.
"""

import numba
import numpy as np

from recoup.jagged.kernels import Array

_EMPTY = -1


@numba.njit(cache=True, nogil=True)
def differs_from_previous(values: Array, weights: Array, offsets: Array, new_row: Array, head: Array) -> None:
    """Set `head[i]` where sample i starts a row or differs from sample i - 1 in this feature.

    Args:
        values: int64 IDs.
        weights: int32 bits of the weights, parallel to `values`, or empty.
        offsets: int64 [n + 1].
        new_row: bool [n].
        head: bool [n], kept True where it is.
    """
    for i in range(new_row.shape[0]):
        if head[i]:
            continue
        if new_row[i]:
            head[i] = True
            continue
        a, b, end = offsets[i - 1], offsets[i], offsets[i + 1]
        if b - a != end - b:
            head[i] = True
            continue
        for j in range(end - b):
            if values[a + j] != values[b + j]:
                head[i] = True
                break
        if weights.shape[0] and not head[i]:
            for j in range(end - b):
                if weights[a + j] != weights[b + j]:
                    head[i] = True
                    break


@numba.njit(cache=True, nogil=True)
def add_hashes(values: Array, weights: Array, offsets: Array, head: Array, hashes: Array) -> None:
    """Mix this feature of every head into `hashes`, uint64 [n]."""
    for i in range(head.shape[0]):
        if not head[i]:
            continue
        # The length is scattered first: else a list [1] would hash as an empty one (1 ^ 1 = 0 stays 0 for ever).
        h = (hashes[i] + np.uint64(offsets[i + 1] - offsets[i]) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(31)
        for j in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(values[j])) * np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(32)
            if weights.shape[0]:
                h = (h ^ np.uint64(weights[j])) * np.uint64(0xC4CEB9FE1A85EC53)
                h ^= h >> np.uint64(29)
        hashes[i] = h


@numba.njit(cache=True, nogil=True)
def propose(row_first: Array, head: Array, hashes: Array, proposed: Array) -> None:
    """Set `proposed[i]` to the first head of i's row with the hash of head i, or -1.

    Args:
        row_first: int64 [rows + 1], first sample of every row.
        head: bool [n].
        hashes: uint64 [n].
        proposed: int64 [n], filled here.
    Cost: O(n), one open-addressing table of twice the row's heads.
    """
    slots = np.empty(16, dtype=np.int64)
    for row in range(row_first.shape[0] - 1):
        heads = 0
        for i in range(row_first[row], row_first[row + 1]):
            proposed[i] = _EMPTY
            heads += head[i]
        if heads < 3:
            continue
        size = 16
        while size < 2 * heads:
            size *= 2
        if slots.shape[0] < size:
            slots = np.empty(size, dtype=np.int64)
        slots[:size] = _EMPTY
        for i in range(row_first[row], row_first[row + 1]):
            if not head[i]:
                continue
            slot = np.int64(hashes[i] & np.uint64(size - 1))
            while slots[slot] != _EMPTY and hashes[slots[slot]] != hashes[i]:
                slot = (slot + 1) & (size - 1)
            if slots[slot] == _EMPTY:
                slots[slot] = i
            else:
                proposed[i] = slots[slot]


@numba.njit(cache=True, nogil=True)
def refuse_unequal(values: Array, weights: Array, offsets: Array, proposed: Array) -> None:
    """Reset `proposed[i]` to -1 where sample i and the proposed one differ in this feature."""
    for i in range(proposed.shape[0]):
        j = proposed[i]
        if j < 0:
            continue
        length = offsets[i + 1] - offsets[i]
        same = length == offsets[j + 1] - offsets[j]
        k = 0
        while same and k < length:
            same = values[offsets[i] + k] == values[offsets[j] + k] and (
                weights.shape[0] == 0 or weights[offsets[i] + k] == weights[offsets[j] + k]
            )
            k += 1
        if not same:
            proposed[i] = _EMPTY


@numba.njit(cache=True, nogil=True)
def number_versions(
    row_first: Array,
    head: Array,
    proposed: Array,
    inverse: Array,
    version_sample: Array,
    version_first: Array,
) -> int:
    """Number the versions of every row from 0 in order of first use.

    Args:
        row_first: int64 [rows + 1].
        head: bool [n].
        proposed: int64 [n], an earlier equal head or -1.
        inverse: int32 [n], filled: the sample's version within its row.
        version_sample: int64 [at least V], filled: a sample that holds the version.
        version_first: int64 [rows + 1], filled: first version of every row in `version_sample`.
    Returns:
        V.
    """
    total = 0
    for row in range(row_first.shape[0] - 1):
        first = total
        version_first[row] = first
        for i in range(row_first[row], row_first[row + 1]):
            if not head[i]:
                inverse[i] = inverse[i - 1]
            elif proposed[i] >= 0:
                inverse[i] = inverse[proposed[i]]
            else:
                inverse[i] = total - first
                version_sample[total] = i
                total += 1
    version_first[row_first.shape[0] - 1] = total
    return total
