"""The encoder's kernels: which samples of a row hold the same version of a group, and windows for the versions.

Equality is exact: lengths, IDs and weight bits. The neighbour before is compared first; only the heads of runs are
hashed, so that A, B, A is found; a hash proposes, a comparison decides.
Legend: n samples, V versions, all of one batch; a feature's sample i is `values[start[i] : start[i] + length[i]]`.
"""

import numba
import numpy as np

from recoup.table.arrays import NumpyArray

_EMPTY = -1


@numba.njit(cache=True, nogil=True)
def differs_from_previous(
    values: NumpyArray, weights: NumpyArray, offsets: NumpyArray, new_row: NumpyArray, head: NumpyArray
) -> None:
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
def add_hashes(
    values: NumpyArray, weights: NumpyArray, offsets: NumpyArray, head: NumpyArray, hashes: NumpyArray
) -> None:
    """Mix this feature of every head into `hashes`, uint64 [n]."""
    for i in range(head.shape[0]):
        if not head[i]:
            continue
        h = hashes[i] * np.uint64(0x9E3779B97F4A7C15) + np.uint64(offsets[i + 1] - offsets[i])
        for j in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(values[j])) * np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(32)
            if weights.shape[0]:
                h = (h ^ np.uint64(weights[j])) * np.uint64(0xC4CEB9FE1A85EC53)
                h ^= h >> np.uint64(29)
        hashes[i] = h


@numba.njit(cache=True, nogil=True)
def propose(row_first: NumpyArray, head: NumpyArray, hashes: NumpyArray, proposed: NumpyArray) -> None:
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
def refuse_unequal(values: NumpyArray, weights: NumpyArray, offsets: NumpyArray, proposed: NumpyArray) -> None:
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
    row_first: NumpyArray,
    head: NumpyArray,
    proposed: NumpyArray,
    inverse: NumpyArray,
    version_sample: NumpyArray,
    version_first: NumpyArray,
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


@numba.njit(cache=True, nogil=True)
def lay_windows(
    source: tuple[NumpyArray, NumpyArray, NumpyArray],
    version_sample: NumpyArray,
    version_first: NumpyArray,
    buffer: tuple[NumpyArray, NumpyArray],
    layout: tuple[NumpyArray, NumpyArray, NumpyArray],
) -> int:
    """Lay the versions of every row as windows on one buffer a row; a shifted list shares what it can.

    A version that continues the end of the row's buffer appends only its new IDs. Rows whose lists grow at the front
    are laid from the last version to the first, if that is shorter.

    Args:
        source: (values, weights, offsets) of the feature; weights are int32 bits or empty.
        version_sample: int64 [V].
        version_first: int64 [rows + 1].
        buffer: (values, weights) with room for the lists of all versions, filled from 0.
        layout: (start int32 [V], length int32 [V], row_first int64 [rows + 1] into the buffer), filled.
    Returns:
        How much of the buffer is used.
    """
    buffer_first = layout[2]
    used = 0
    for row in range(version_first.shape[0] - 1):
        first, last = version_first[row], version_first[row + 1]
        buffer_first[row] = used
        step = 1
        if last - first > 1 and _grows_at_front(source, version_sample[first], version_sample[first + 1]):
            step = -1
        used = _lay_row(source, version_sample, (first, last, step), buffer, layout, used)
    buffer_first[version_first.shape[0] - 1] = used
    return used


@numba.njit(cache=True, nogil=True)
def _grows_at_front(source: tuple[NumpyArray, NumpyArray, NumpyArray], before: int, after: int) -> bool:
    values, _, offsets = source
    low, size = offsets[before], offsets[before + 1] - offsets[before]
    next_low, next_end = offsets[after], offsets[after + 1]
    if size == 0 or next_end == next_low:
        return False
    for at in range(next_low + 1, next_end):  # is the tail of `after` the head of `before`?
        common = min(next_end - at, size)
        j = 0
        while j < common and values[at + j] == values[low + j]:
            j += 1
        if j == common:
            return not _continues(values, (low, low + size), (next_low, next_end))
    return False


@numba.njit(cache=True, nogil=True)
def _continues(values: NumpyArray, before: tuple[int, int], after: tuple[int, int]) -> bool:
    for at in range(before[0] + 1, before[1]):  # is the tail of `before` the head of `after`?
        common = min(before[1] - at, after[1] - after[0])
        j = 0
        while j < common and values[at + j] == values[after[0] + j]:
            j += 1
        if j == common:
            return True
    return False


@numba.njit(cache=True, nogil=True)
def _lay_row(
    source: tuple[NumpyArray, NumpyArray, NumpyArray],
    version_sample: NumpyArray,
    versions: tuple[int, int, int],
    buffer: tuple[NumpyArray, NumpyArray],
    layout: tuple[NumpyArray, NumpyArray, NumpyArray],
    row_first: int,
) -> int:
    values, weights, offsets = source
    first, last, step = versions
    out, out_weights = buffer
    start, length, _ = layout
    weighted = weights.shape[0] > 0
    end = row_first
    tail = row_first  # where the version before begins
    for k in range(last - first):
        version = first + k if step > 0 else last - 1 - k
        sample = version_sample[version]
        low, size = offsets[sample], offsets[sample + 1] - offsets[sample]
        at = tail
        while at < end:
            common = min(end - at, size)
            j = 0
            while j < common and out[at + j] == values[low + j]:
                if weighted and out_weights[at + j] != weights[low + j]:
                    break
                j += 1
            if j == common:
                break
            at += 1
        kept = min(end - at, size)
        for j in range(kept, size):
            out[at + j] = values[low + j]
            if weighted:
                out_weights[at + j] = weights[low + j]
        start[version] = at - row_first
        length[version] = size
        end = max(end, at + size)
        tail = at
    return end
