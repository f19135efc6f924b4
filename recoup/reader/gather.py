"""Assembly kernels: from a decoded stripe's flat buffers to contiguous batch arrays, without a Python loop.

Legend: P pieces (a piece = samples lo .. hi-1 of one session row), B samples, U unique rows, N IDs.
`*_off` are Arrow list offsets: entry r .. r+1 bounds session row r. All kernels release the GIL.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Pieces = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@njit(cache=True, nogil=True)
def gather_column(pieces: Pieces, sample_off: NDArray[np.int32], column: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy one value a sample (time, label, dense feature) in piece order."""
    row, lo, hi = pieces
    pos = 0
    for p in range(row.size):
        base = sample_off[row[p]]
        for i in range(base + lo[p], base + hi[p]):
            out[pos] = column[i]
            pos += 1


@njit(cache=True, nogil=True)
def gather_sessions(pieces: Pieces, session_of_row: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Number the pieces' sessions in order of first appearance."""
    row, lo, hi = pieces
    first = np.int64(1 << 62)
    last = np.int64(-1)
    for p in range(row.size):
        first = min(first, session_of_row[row[p]])
        last = max(last, session_of_row[row[p]])
    number = np.full(max(last - first + 1, 0), -1, dtype=np.int64)
    count = 0
    pos = 0
    for p in range(row.size):
        s = session_of_row[row[p]] - first
        if number[s] < 0:
            number[s] = count
            count += 1
        for _ in range(hi[p] - lo[p]):
            out[pos] = number[s]
            pos += 1


@njit(cache=True, nogil=True)
def gather_lists(
    pieces: Pieces,
    offsets: tuple[NDArray[np.int32], NDArray[np.int32]],
    column: tuple[NDArray[np.int32], NDArray[Any]],
    keep_last: int,
    out: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]],
) -> int:
    """Copy the lists of a feature outside every group, each cut to its last `keep_last` IDs; return N.

    `offsets` bound each session's samples and values; `column` is (length a sample, values back to back);
    `out` is (start [B], length [B], values).
    """
    row, lo, hi = pieces
    sample_off, value_off = offsets
    length, values = column
    out_start, out_length, out_values = out
    pos = np.int64(0)
    b = 0
    for p in range(row.size):
        base = sample_off[row[p]]
        source = np.int64(value_off[row[p]])
        for i in range(base, base + lo[p]):
            source += length[i]
        first = pos
        longest = np.int64(0)
        for i in range(base + lo[p], base + hi[p]):
            n = np.int64(length[i])
            longest = max(longest, n)
            out_start[b] = pos
            out_length[b] = n
            pos += n
            b += 1
        if longest <= keep_last:
            for j in range(pos - first):
                out_values[first + j] = values[source + j]
            continue
        pos = first
        b -= hi[p] - lo[p]
        for i in range(base + lo[p], base + hi[p]):
            n = min(np.int64(length[i]), keep_last)
            source += length[i] - n
            out_start[b] = pos
            out_length[b] = n
            for j in range(n):
                out_values[pos + j] = values[source + j]
            source += n
            pos += n
            b += 1
    return int(pos)


@njit(cache=True, nogil=True)
def group_rows(
    pieces: Pieces,
    sample_off: NDArray[np.int32],
    version_off: NDArray[np.int32],
    inverse: NDArray[np.int32],
    out: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> int:
    """Number the versions that the pieces use, once each a piece; return U.

    `out` is (inverse [B], version index in the stripe [>= U], end of each piece's rows [P]).
    A whole session keeps all its versions in stored order; a cut one only those in use, in order of first use.
    """
    row, lo, hi = pieces
    out_inverse, out_version, out_end = out
    b = 0
    u = 0
    widest = 0
    for p in range(row.size):
        widest = max(widest, version_off[row[p] + 1] - version_off[row[p]])
    seen = np.full(widest, -1, dtype=np.int64)
    for p in range(row.size):
        r = row[p]
        base = sample_off[r]
        first = version_off[r]
        count = version_off[r + 1] - first
        if lo[p] == 0 and hi[p] == sample_off[r + 1] - base:
            for i in range(base, base + hi[p]):
                out_inverse[b] = u + inverse[i]
                b += 1
            for v in range(count):
                out_version[u + v] = first + v
            u += count
        else:
            begin = u
            for i in range(base + lo[p], base + hi[p]):
                v = inverse[i]
                if seen[v] < 0:
                    seen[v] = u
                    out_version[u] = first + v
                    u += 1
                out_inverse[b] = seen[v]
                b += 1
            for k in range(begin, u):
                seen[out_version[k] - first] = -1
        out_end[p] = u
    return u


@njit(cache=True, nogil=True)
def gather_windows(
    rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    value_off: NDArray[Any],
    column: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    keep_last: int,
    out: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]],
) -> int:
    """Copy the windows of the used versions, each stored ID at most once a piece; return N.

    `rows` is (row of each piece, end of each piece's rows, version index); `column` is (start, length, values) of the
    stripe; windows are cut to their last `keep_last` IDs first. Windows that overlap or touch keep sharing.
    """
    piece_row, piece_end, version = rows
    start, length, values = column
    out_start, out_length, _ = out
    pos = 0
    u = 0
    for p in range(piece_row.size):
        base = value_off[piece_row[p]]
        end = piece_end[p]
        rising: bool | np.bool = True
        falling: bool | np.bool = True
        last = np.int64(-1)
        for k in range(u, end):
            n = np.int64(length[version[k]])
            s = np.int64(start[version[k]]) + max(n - keep_last, 0)
            n = min(n, keep_last)
            out_start[k] = s
            out_length[k] = n
            if n > 0:
                if last >= 0:
                    rising = rising and s >= last
                    falling = falling and s <= last
                last = s
        if rising or falling:
            pos = _copy_windows(out, values, (u, end, base, pos), 1 if rising else -1)
        else:
            pos = _copy_sorted(out, values, (u, end, base, pos))
        u = end
    return pos


@njit(cache=True, nogil=True)
def _copy_windows(
    out: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]],
    values: NDArray[Any],
    where: tuple[int, int, int, int],
    direction: int,
) -> int:
    out_start, out_length, out_values = out
    first, end, base, pos = where
    covered = np.int64(-1)  # end of what is copied, in the session's buffer
    shift = np.int64(0)  # from the session's buffer to the batch's
    for i in range(end - first):
        k = first + i if direction > 0 else end - 1 - i
        s = out_start[k]
        n = out_length[k]
        if n == 0:
            out_start[k] = pos
            continue
        if s > covered or covered < 0:
            covered = s
            shift = pos - s
        fresh = s + n - covered
        if fresh > 0:
            source = base + covered
            for j in range(fresh):
                out_values[pos + j] = values[source + j]
            pos += fresh
            covered += fresh
        out_start[k] = s + shift
    return pos


@njit(cache=True, nogil=True)
def _copy_sorted(
    out: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]],
    values: NDArray[Any],
    where: tuple[int, int, int, int],
) -> int:
    out_start, out_length, out_values = out
    first, end, base, pos = where
    order = np.argsort(out_start[first:end], kind="mergesort")
    starts = out_start[first:end][order]
    lengths = out_length[first:end][order]
    pos = _copy_windows((starts, lengths, out_values), values, (0, end - first, base, pos), 1)
    for i in range(order.size):
        out_start[first + order[i]] = starts[i]
    return pos


@njit(cache=True, nogil=True)
def expand_lists(
    values: NDArray[Any],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    out_values: NDArray[Any],
) -> None:
    """Copy windows back to back, each in full."""
    pos = 0
    for u in range(length.size):
        source = start[u]
        for j in range(length[u]):
            out_values[pos + j] = values[source + j]
        pos += length[u]
