"""Assembly kernels: from a decoded stripe's flat buffers to contiguous batch arrays, without a Python loop.

Loops run over slices, from 0: with an index that might be negative numba keeps Python's wrap-around test, and LLVM then
vectorises nothing (a factor of 2 to 3 here).
Legend: P pieces (a piece = samples lo .. hi-1 of one session row), B samples, U unique rows, F features, N IDs.
`*_off` are Arrow list offsets: entries r and r+1 bound session row r. One call serves all features of a group: buffers
come as tables of addresses (`Buffers`), so that a kernel is compiled once for any number of features and a call costs
no unboxing of each array. All kernels release the GIL. What they index was checked when the stripe was decoded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Pieces: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""(row, lo, hi), int64 [P] each."""
Ints: TypeAlias = NDArray[np.int64]
Addresses: TypeAlias = NDArray[np.int64]
Rows: TypeAlias = tuple[Ints, Ints, Ints]
"""(session row of each piece [P], end of each piece's rows [P], version index [U])."""
Out: TypeAlias = tuple[Ints, Ints, NDArray[Any], Ints, Ints]
"""(start [F, rows], length [F, rows], values, where each feature's values begin [F], where they end [F])."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """One buffer a feature, as a table of addresses; keeps the buffers alive."""

    addresses: Addresses
    owners: tuple[NDArray[Any], ...]


def buffers(arrays: Sequence[NDArray[Any]]) -> Buffers:
    """Return the address table of contiguous arrays."""
    owners = tuple(np.ascontiguousarray(array) for array in arrays)
    return Buffers(np.array([owner.ctypes.data for owner in owners], dtype=np.int64), owners)


def _pointer_type(typing_context: Any, address: Any) -> Any:  # noqa: ANN401 -- numba's own types
    """Return an address as the pointer that `carray` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_pointer = cast("Callable[[Any], Any]", intrinsic(_pointer_type))


@njit(cache=True, nogil=True)
def _copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    for i in range(target.size):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def gather_columns(pieces: Pieces, sample_off: NDArray[np.int32], columns: Addresses, out_FB: NDArray[Any]) -> None:
    """Copy one value a sample (time, label, dense feature) in piece order, for every column."""
    row, lo, hi = pieces
    for f in range(columns.size):
        column = carray(_pointer(columns[f]), (sample_off[-1],), out_FB.dtype)
        pos = 0
        for p in range(row.size):
            base = sample_off[row[p]] + lo[p]
            count = hi[p] - lo[p]
            _copy(column[base : base + count], out_FB[f, pos : pos + count])
            pos += count


@njit(cache=True, nogil=True)
def gather_sessions(pieces: Pieces, session_of_row: Ints, out: Ints) -> None:
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
def value_bounds(row: Ints, num_offsets: int, value_off: Addresses, first: Ints) -> int:
    """Write where each feature's values may begin so that all its pieces' values fit; return the places in all."""
    total = np.int64(0)
    for f in range(value_off.size):
        offsets = carray(_pointer(value_off[f]), (num_offsets,), np.int32)
        first[f] = total
        for p in range(row.size):
            total += offsets[row[p] + 1] - offsets[row[p]]
    return int(total)


@njit(cache=True, nogil=True)
def gather_lists(
    pieces: Pieces,
    sample_off: NDArray[np.int32],
    block: tuple[Addresses, Addresses, Addresses],
    keep_last: Ints,
    out: Out,
) -> None:
    """Copy the lists of the features outside every group, each cut to its last `keep_last` IDs.

    `block` is (value offsets, length a sample, values back to back).
    """
    value_offs, lengths, values = block
    start_FB, length_FB, out_values, first, end = out
    for f in range(values.size):
        value_off = carray(_pointer(value_offs[f]), (sample_off.size,), np.int32)
        length = carray(_pointer(lengths[f]), (sample_off[-1],), np.int32)
        source = carray(_pointer(values[f]), (value_off[sample_off.size - 1],), out_values.dtype)
        to = (start_FB[f], length_FB[f], out_values[first[f] :])
        end[f] = first[f] + _gather_lists_of(pieces, (sample_off, value_off), (length, source), keep_last[f], to)


@njit(cache=True, nogil=True)
def _gather_lists_of(
    pieces: Pieces,
    offsets: tuple[NDArray[np.int32], NDArray[np.int32]],
    column: tuple[NDArray[np.int32], NDArray[Any]],
    keep_last: int,
    out: tuple[Ints, Ints, NDArray[Any]],
) -> int:
    row, lo, hi = pieces
    sample_off, value_off = offsets
    length, source = column
    out_start, out_length, out_values = out
    pos = 0
    b = 0
    for p in range(row.size):
        base = sample_off[row[p]]
        at = int(value_off[row[p]])
        for i in range(base, base + lo[p]):
            at += int(length[i])
        count = int(hi[p] - lo[p])
        begin = pos
        longest = 0
        lengths = length[base + lo[p] : base + lo[p] + count]
        starts, widened = out_start[b : b + count], out_length[b : b + count]
        for i in range(count):
            n = int(lengths[i])
            starts[i] = pos
            widened[i] = n
            longest = max(longest, n)
            pos += n
        if longest <= keep_last:
            _copy(source[at : at + pos - begin], out_values[begin:pos])
        else:
            pos = _copy_last((out_start, out_length, out_values), source, (b, count, at, begin), keep_last)
        b += count
    return pos


@njit(cache=True, nogil=True)
def _copy_last(
    out: tuple[Ints, Ints, NDArray[Any]], source: NDArray[Any], where: tuple[int, int, int, int], keep_last: int
) -> int:
    out_start, out_length, out_values = out
    b, count, at, pos = where
    for i in range(b, b + count):
        n = min(out_length[i], keep_last)
        at += out_length[i] - n
        out_start[i] = pos
        out_length[i] = n
        _copy(source[at : at + n], out_values[pos : pos + n])
        at += n
        pos += n
    return pos


@njit(cache=True, nogil=True)
def group_rows(
    pieces: Pieces,
    sample_off: NDArray[np.int32],
    version_off: NDArray[np.int32],
    inverse: NDArray[np.int32],
    out: tuple[Ints, Ints, Ints],
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
            piece, target = inverse[base : base + hi[p]], out_inverse[b : b + hi[p]]
            for i in range(target.size):
                target[i] = u + piece[i]
            b += hi[p]
            versions = out_version[u : u + count]
            for v in range(count):
                versions[v] = first + v
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
    rows: Rows,
    sizes: tuple[int, int],
    block: tuple[Addresses, Addresses, Addresses, Addresses],
    keep_last: Ints,
    out: Out,
) -> None:
    """Copy the windows of the used versions of all features of a group, each stored ID at most once a piece.

    `sizes` are the stripe's session rows and versions; `block` is (value offsets, start, length, values). Windows are
    cut to their last `keep_last` IDs first; windows that overlap or touch keep sharing.
    """
    num_rows, num_versions = sizes
    value_offs, starts, lengths, values = block
    start_FU, length_FU, out_values, out_first, out_end = out
    for f in range(values.size):
        value_off = carray(_pointer(value_offs[f]), (num_rows + 1,), np.int32)
        start = carray(_pointer(starts[f]), (num_versions,), np.int32)
        length = carray(_pointer(lengths[f]), (num_versions,), np.int32)
        source = carray(_pointer(values[f]), (value_off[num_rows],), out_values.dtype)
        to = (start_FU[f], length_FU[f], out_values[out_first[f] :])
        out_end[f] = out_first[f] + _gather_feature(rows, (start, length), (value_off, source), keep_last[f], to)


@njit(cache=True, nogil=True)
def _gather_feature(
    rows: Rows,
    windows: tuple[NDArray[np.int32], NDArray[np.int32]],
    source: tuple[NDArray[np.int32], NDArray[Any]],
    keep_last: int,
    out: tuple[Ints, Ints, NDArray[Any]],
) -> int:
    piece_row, piece_end, version = rows
    start, length = windows
    value_off, values = source
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
    out: tuple[Ints, Ints, NDArray[Any]],
    values: NDArray[Any],
    where: tuple[int, int, int, int],
    direction: int,
) -> int:
    """Copy windows whose starts rise (or fall, `direction` -1), only what is not copied yet; make starts final."""
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
            _copy(values[source : source + fresh], out_values[pos : pos + fresh])
            pos += fresh
            covered += fresh
        out_start[k] = s + shift
    return pos


@njit(cache=True, nogil=True)
def _copy_sorted(
    out: tuple[Ints, Ints, NDArray[Any]],
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
def expand_lists(values: NDArray[Any], start: Ints, length: Ints, out_values: NDArray[Any]) -> None:
    """Copy windows back to back, each in full."""
    pos = 0
    for u in range(length.size):
        _copy(values[start[u] : start[u] + length[u]], out_values[pos : pos + length[u]])
        pos += length[u]
