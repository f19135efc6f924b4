"""Whole-session sampling: a session stays or goes as one, decided by a hash of its key and start alone."""

import numpy as np
import pyarrow as pa

from recoup.table.arrays import BoolArray, NumpyArray
from recoup.table.layout import KEY, START

_MIX = np.uint64(0xFF51AFD7ED558CCD)


def sampled_sessions(rows: pa.RecordBatch, fraction: float, seed: int) -> BoolArray:
    """Return which rows belong to sessions that a sample of `fraction` keeps, bool [rows].

    The same for every chunk of a session, whatever the engine, order or batches.
    """
    hashes = _mixed(key_hashes(rows.column(KEY)) + np.uint64(seed))
    hashes = _mixed(hashes ^ rows.column(START).to_numpy(zero_copy_only=False).view(np.uint64))
    return hashes < np.uint64(min(fraction * 2.0**64, 2.0**64 - 1025))


def key_hashes(keys: pa.Array) -> NumpyArray:
    """Return a 64-bit hash of every key, uint64: of the integer, or of the text's bytes (FNV-1a, then mixed)."""
    if pa.types.is_integer(keys.type):
        return _mixed(keys.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64))
    binary = keys.cast(pa.large_binary())
    offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]
    data = np.frombuffer(binary.buffers()[2] or b"", np.uint8)
    return _mixed(_fnv(data, offsets))


def _fnv(data: NumpyArray, offsets: NumpyArray) -> NumpyArray:
    lengths = np.diff(offsets)
    hashes = np.full(len(lengths), np.uint64(0xCBF29CE484222325))
    for position in range(int(lengths.max(initial=0))):  # over the longest key's bytes, not over rows
        alive = np.flatnonzero(lengths > position)
        hashes[alive] = (hashes[alive] ^ data[offsets[alive] + position]) * np.uint64(0x100000001B3)
    return hashes


def _mixed(hashes: NumpyArray) -> NumpyArray:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _MIX
    hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return hashes ^ (hashes >> np.uint64(33))
