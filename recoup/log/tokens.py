"""Text tokens as int64 IDs: the low 63 bits of a 64-bit FNV-1a hash of the UTF-8 bytes, finished by a mixer.

The rule is fixed: the same token is the same ID in every file, process and release. Two of n different tokens collide
with probability about n^2 / 2^64 (1e-5 for ten million), and never with the sign bit set.
"""

import numba
import numpy as np
import pyarrow as pa

from recoup.log.arrays import NumpyArray

_OFFSET = np.uint64(0xCBF29CE484222325)  # FNV-1a offset basis, 64 bits
_PRIME = np.uint64(0x100000001B3)  # FNV-1a prime, 64 bits
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64 finaliser
_MIX_2 = np.uint64(0x94D049BB133111EB)  # splitmix64 finaliser
_LOW_63 = np.uint64(2**63 - 1)


def hash_tokens(array: pa.Array) -> pa.Array:
    """Return int64 hashes of the strings of `array`; nulls stay null."""
    if len(array) == 0:
        return pa.array([], pa.int64())
    text = array.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = text.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    mask = np.asarray(text.is_null()) if text.null_count else None
    return pa.array(_hash(offsets, data), mask=mask)


@numba.njit(cache=True, nogil=True)
def _hash(offsets: NumpyArray, data: NumpyArray) -> NumpyArray:
    result = np.empty(len(offsets) - 1, dtype=np.int64)
    for i in range(len(offsets) - 1):
        state = _OFFSET
        for j in range(offsets[i], offsets[i + 1]):
            state = (state ^ np.uint64(data[j])) * _PRIME
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        result[i] = np.int64((state ^ (state >> np.uint64(31))) & _LOW_63)
    return result
