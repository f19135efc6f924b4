"""The encoder's windows: versions of a row laid on one buffer, where a shifted list shares what it can.

Legend: n samples, V versions, all of one batch; a feature's sample i is `values[offsets[i] : offsets[i + 1]]`.
"""

import numba

from recoup.table.arrays import NumpyArray


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
