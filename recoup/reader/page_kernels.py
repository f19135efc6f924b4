"""Parquet's page encodings, as far as a session table uses them: thrift header, levels, dictionary and split bytes.

Pages are version 1; lists and items are not nullable (levels 0 and 1). A column whose list lengths are known from
another column (a per-sample list is as long as its session) skips its levels altogether, which is most of what Arrow
spends on such lists. Every read stays inside its buffer: a damaged page gives -1, never a wild read.
Source: the Parquet format specification (Encodings, PageHeader); thrift's compact protocol.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Places in what `page_header` writes.
PAGE_TYPE, RAW_BYTES, PACKED_BYTES, CRC, NUM_VALUES, ENCODING, BODY, HEADER_FIELDS = range(8)
NO_CRC = 1 << 40  # a checksum is 32 bits: this is none
DATA_PAGE, DICTIONARY_PAGE = 0, 2
PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 2, 8, 9

_STOP, _FALSE, _BYTE, _INT16, _INT32, _INT64, _DOUBLE, _BINARY, _STRUCT = 0, 2, 3, 4, 5, 6, 7, 8, 12
_MAX_DEPTH = 4


@njit(cache=True, nogil=True)
def _varint(data: Bytes, at: int) -> tuple[np.uint64, int]:
    """Return (value, place after it); the place is -1 when the bytes end."""
    value = np.uint64(0)
    shift = 0
    while 0 <= at < data.size and shift < 64:
        byte = data[at]
        value |= np.uint64(byte & np.uint8(127)) << np.uint64(shift)
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    return value, -1


@njit(cache=True, nogil=True)
def page_header(data: Bytes, at: int, out: NDArray[np.int64]) -> int:
    """Read the page header at `at` into `out`; return the place of the page's body, or -1."""
    out[:] = 0
    out[CRC] = NO_CRC
    out[NUM_VALUES] = -1
    out[ENCODING] = -1
    last = np.zeros(_MAX_DEPTH + 1, dtype=np.int64)
    inside = 0  # number of the outer field whose struct is being read
    depth = 0
    while 0 <= at < data.size:
        head = data[at]
        at += 1
        kind = int(np.int64(head & np.uint8(15)))
        if kind == _STOP:
            depth -= 1
            if depth < 0:
                out[BODY] = at
                return at
            continue
        delta = int(np.int64(head >> np.uint8(4)))
        if delta:
            field = int(last[depth]) + delta
        else:
            field, at = _signed(data, at)
        last[depth] = field
        if kind == _STRUCT:
            if depth == 0:
                inside = field
            depth += 1
            if depth > _MAX_DEPTH:
                return -1
            last[depth] = 0
        elif kind in (_INT16, _INT32, _INT64):
            value, at = _signed(data, at)
            _keep(out, (depth, inside, field), value)
        else:
            at = _skip(data, at, kind)
    return -1


@njit(cache=True, nogil=True)
def _signed(data: Bytes, at: int) -> tuple[int, int]:
    """Return a zigzag-coded number and the place after it (-1 when the bytes end)."""
    raw, at = _varint(data, at)
    return int(np.int64(raw >> np.uint64(1))) ^ -int(np.int64(raw & np.uint64(1))), at


@njit(cache=True, nogil=True)
def _skip(data: Bytes, at: int, kind: int) -> int:
    """Return the place after a value that is not needed, or -1; no list, set or map occurs in a page header."""
    if kind <= _FALSE:
        return at  # a boolean is its kind
    if kind == _BYTE:
        return at + 1
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        size, at = _varint(data, at)
        if at >= 0 and size <= np.uint64(data.size):
            return at + int(np.int64(size))
    return -1


@njit(cache=True, nogil=True)
def _keep(out: NDArray[np.int64], where: tuple[int, int, int], value: int) -> None:
    depth, inside, field = where
    if depth == 0:
        if field == 4:
            out[CRC] = value & 0xFFFFFFFF
        elif 1 <= field <= 3:
            out[field - 1] = value
    elif depth == 1 and (inside == 5 or inside == 7):
        if field == 1:
            out[NUM_VALUES] = value
        elif field == 2:
            out[ENCODING] = value


@njit(cache=True, nogil=True)
def values_begin(body: Bytes) -> int:
    """Return the place after the repetition and definition levels of a data page, or -1."""
    at = 0
    for _ in range(2):
        size = _int32(body, at)
        if size < 0 or at + 4 + size > body.size:
            return -1
        at += 4 + size
    return at


@njit(cache=True, nogil=True)
def _int32(body: Bytes, at: int) -> int:
    return _little_endian(body, at, 4)


@njit(cache=True, nogil=True)
def _little_endian(body: Bytes, at: int, num_bytes: int) -> int:
    """Return the unsigned number of `num_bytes` bytes at `at`, or -1 when the bytes end."""
    if at + num_bytes > body.size:
        return -1
    value = 0
    for k in range(num_bytes):
        value |= int(np.int64(body[at + k])) << (8 * k)
    return value


@njit(cache=True, nogil=True)
def count_present(body: Bytes, num_levels: int) -> int:
    """Return how many of a page's levels have a value (an empty list has none), or -1 when they are damaged.

    Only the definition levels are read: where no list is empty they are one run.
    """
    size = _int32(body, 0)
    if size < 0 or 4 + size + 4 > body.size:
        return -1
    size_2 = _int32(body, 4 + size)
    if size_2 < 0 or 8 + size + size_2 > body.size:
        return -1
    definition = np.zeros(5, dtype=np.int64)  # as in `add_list_lengths`
    definition[0], definition[1] = 8 + size, 8 + size + size_2
    done = 0
    present = 0
    while done < num_levels:
        if not _fill_run(body, definition):
            return -1
        count = min(definition[2], num_levels - done)
        if definition[3] >= 0:
            present += count * definition[3]
        else:
            for at in range(definition[4], definition[4] + count):
                present += np.int64(body[at >> 3] >> np.uint8(at & 7)) & 1
        definition[2] -= count
        done += count
    return int(present)


@njit(cache=True, nogil=True)
def add_list_lengths(body: Bytes, num_levels: int, lengths: NDArray[np.int32], row: int) -> int:
    """Add a page's levels to the lengths of the lists; `row` is the list that the last page ended in (-1: none).

    Returns the list that this page ends in, or -2 when the levels are damaged or there are more lists than `lengths`.
    """
    # Two run decoders, one for each kind of level: [place, end, left in run, value or -1 when packed, bits]
    repetition = np.zeros(5, dtype=np.int64)
    definition = np.zeros(5, dtype=np.int64)
    size = _int32(body, 0)
    if size < 0 or 4 + size + 4 > body.size:
        return -2
    repetition[0], repetition[1] = 4, 4 + size
    size_2 = _int32(body, 4 + size)
    if size_2 < 0 or 8 + size + size_2 > body.size:
        return -2
    definition[0], definition[1] = 8 + size, 8 + size + size_2
    done = 0
    while done < num_levels:
        if not (_fill_run(body, repetition) and _fill_run(body, definition)):
            return -2
        if repetition[3] == 1 and definition[3] >= 0:  # a run inside one list
            count = min(repetition[2], definition[2], num_levels - done)
            if row < 0:
                return -2
            lengths[row] += count * definition[3]
            repetition[2] -= count
            definition[2] -= count
            done += count
            continue
        if definition[3] >= 0:
            count = min(repetition[2], definition[2], num_levels - done)
            row = _add_packed(body, repetition, (count, definition[3]), lengths, row)
            definition[2] -= count
            done += count
        else:
            row += 1 - _next_level(body, repetition)
            if 0 <= row < lengths.size:
                lengths[row] += _next_level(body, definition)
            done += 1
        if row < 0 or row >= lengths.size:
            return -2
    return row


@njit(cache=True, nogil=True)
def _add_packed(
    body: Bytes, repetition: NDArray[np.int64], count_and_value: tuple[int, int], lengths: NDArray[np.int32], row: int
) -> int:
    """Add levels whose definition is one run; return the list they end in, lengths.size when there are too many."""
    count, value = count_and_value
    if repetition[3] >= 0:  # a run of list beginnings: lists of one entry
        first = row + 1
        if first + count > lengths.size:
            return lengths.size
        lengths[first : first + count] += np.int32(value)
        repetition[2] -= count
        return row + count
    bit = repetition[4]
    inside = 0
    for k in range(count):
        at = bit + k
        if not (body[at >> 3] >> np.uint8(at & 7)) & np.uint8(1):
            if row >= 0:
                lengths[row] += inside * value
            elif inside:
                return -2
            inside = 0
            row += 1
            if row >= lengths.size:
                return lengths.size
        inside += 1
    if row < 0:
        return -2
    lengths[row] += inside * value
    repetition[4] += count
    repetition[2] -= count
    return row


@njit(cache=True, nogil=True)
def _fill_run(body: Bytes, state: NDArray[np.int64]) -> bool:
    """Read the next run's header when the last run is used up."""
    if state[2] > 0:
        return True
    header, at = _varint(body, state[0])
    if at < 0 or at >= state[1]:
        return False
    if header & np.uint64(1):
        state[2] = np.int64(header >> np.uint64(1)) * 8
        state[3] = -1
        state[4] = at * 8
        at += np.int64(header >> np.uint64(1))
        if at > state[1]:
            return False
    else:
        state[2] = np.int64(header >> np.uint64(1))
        state[3] = np.int64(body[at] & np.uint8(1))
        at += 1
    state[0] = at
    return state[2] > 0


@njit(cache=True, nogil=True)
def _next_level(body: Bytes, state: NDArray[np.int64]) -> int:
    state[2] -= 1
    if state[3] >= 0:
        return int(state[3])
    bit = state[4]
    state[4] += 1
    return int(np.int64(body[bit >> 3] >> np.uint8(bit & 7))) & 1


@njit(cache=True, nogil=True)
def split_bytes_8(body: Bytes, at: int, out: NDArray[np.int64]) -> None:
    """Decode BYTE_STREAM_SPLIT words of 8 bytes; the upper four streams are often all zero (IDs below 2**32)."""
    n = out.size
    b0, b1, b2, b3 = body[at : at + n], body[at + n : at + 2 * n], body[at + 2 * n : at + 3 * n], body[at + 3 * n :]
    rest = body[at + 4 * n : at + 8 * n]
    upper = np.uint8(0)
    for i in range(rest.size):
        upper |= rest[i]
    for i in range(n):
        word = np.uint32(b0[i]) | np.uint32(b1[i]) << np.uint32(8)
        word |= np.uint32(b2[i]) << np.uint32(16) | np.uint32(b3[i]) << np.uint32(24)
        out[i] = np.int64(word)
    if upper:
        c0, c1, c2 = body[at + 4 * n : at + 5 * n], body[at + 5 * n : at + 6 * n], body[at + 6 * n : at + 7 * n]
        c3 = body[at + 7 * n :]
        for i in range(n):
            word = np.uint32(c0[i]) | np.uint32(c1[i]) << np.uint32(8)
            word |= np.uint32(c2[i]) << np.uint32(16) | np.uint32(c3[i]) << np.uint32(24)
            out[i] |= np.int64(np.uint64(word) << np.uint64(32))


@njit(cache=True, nogil=True)
def split_bytes_4(body: Bytes, at: int, out: NDArray[np.uint32]) -> None:
    """Decode BYTE_STREAM_SPLIT words of 4 bytes."""
    n = out.size
    b0, b1, b2, b3 = body[at : at + n], body[at + n : at + 2 * n], body[at + 2 * n : at + 3 * n], body[at + 3 * n :]
    for i in range(n):
        word = np.uint32(b0[i]) | np.uint32(b1[i]) << np.uint32(8)
        out[i] = word | np.uint32(b2[i]) << np.uint32(16) | np.uint32(b3[i]) << np.uint32(24)


@njit(cache=True, nogil=True)
def from_dictionary(body: Bytes, at: int, dictionary: NDArray[Any], out: NDArray[Any]) -> int:
    """Decode dictionary indices (bit-packed and repeated runs) into their values; return the values, or -1."""
    if at >= body.size:
        return -1
    width = int(np.int64(body[at]))
    at += 1
    if width > 32:
        return -1
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    done = 0
    while done < out.size and at < body.size:
        header, at = _varint(body, at)
        if at < 0:
            return -1
        count = int(np.int64(header >> np.uint64(1)))
        if header & np.uint64(1):
            if at + count * width > body.size:
                return -1
            take = min(count * 8, out.size - done)
            if not _unpack(body, (at, width), mask, dictionary, out[done : done + take]):
                return -1
            at += count * width
        else:
            take = min(count, out.size - done)
            num_bytes = (width + 7) // 8
            index = _little_endian(body, at, num_bytes)
            if not 0 <= index < dictionary.size:
                return -1
            at += num_bytes
            out[done : done + take] = dictionary[index]
        done += take
    return done


@njit(cache=True, nogil=True)
def _unpack(body: Bytes, where: tuple[int, int], mask: np.uint64, dictionary: NDArray[Any], out: NDArray[Any]) -> bool:
    at, width = where
    held = np.uint64(0)
    bits = np.int64(0)
    for i in range(out.size):
        while bits < width:
            held |= np.uint64(body[at]) << np.uint64(bits)
            at += 1
            bits += 8
        index = held & mask
        held >>= np.uint64(width)
        bits -= width
        if index >= np.uint64(dictionary.size):
            return False
        out[i] = dictionary[index]
    return True
