"""Kafka's own key hash, so that every producer and the lander send a session to the same place.

`murmur2` of the key's bytes modulo the partition count is what the Java client and librdkafka's `murmur2_random` do.
The same function of the session key and the number of shards places a sample in the landing folder, whatever the
number of partitions is or becomes.
"""

import numba
import numpy as np
import pyarrow as pa

from recoup.log.arrays import NumpyArray

_SEED = np.uint32(0x9747B28C)  # Apache Kafka, Utils.murmur2
_M = np.uint32(0x5BD1E995)  # Apache Kafka, Utils.murmur2


def key_bytes(key: int | str) -> bytes:
    """Return the message key of a session: its text in UTF-8, for integers too."""
    return str(key).encode()


def murmur2_partition(key: bytes, num_partitions: int) -> int:
    """Return the partition of a message key."""
    return int(murmur2_partitions(pa.array([key], pa.binary()), num_partitions)[0])


def murmur2_partitions(keys: pa.Array, num_partitions: int) -> NumpyArray:
    """Return the partition of each key (binary or text, no nulls), int64 [keys]."""
    if len(keys) == 0:
        return np.zeros(0, dtype=np.int64)
    text = keys.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = text.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, dtype=np.uint8)
    return _partitions(offsets, data, num_partitions)


@numba.njit(cache=True, nogil=True)
def _partitions(offsets: NumpyArray, data: NumpyArray, num_partitions: int) -> NumpyArray:
    result = np.empty(len(offsets) - 1, dtype=np.int64)
    for i in range(len(offsets) - 1):
        result[i] = np.int64(_murmur2(data[offsets[i] : offsets[i + 1]]) & np.uint32(0x7FFFFFFF)) % num_partitions
    return result


@numba.njit(cache=True, nogil=True)
def _murmur2(data: NumpyArray) -> np.uint32:
    length = len(data)
    h = np.uint32(_SEED ^ np.uint32(length))
    blocks = length // 4
    for i in range(blocks):
        k = np.uint32(data[4 * i]) | np.uint32(np.uint32(data[4 * i + 1]) << np.uint32(8))
        k |= np.uint32(np.uint32(data[4 * i + 2]) << np.uint32(16))
        k |= np.uint32(np.uint32(data[4 * i + 3]) << np.uint32(24))
        k = np.uint32(np.uint32(k) * _M)
        k = np.uint32(k ^ (k >> np.uint32(24)))
        k = np.uint32(k * _M)
        h = np.uint32(np.uint32(h * _M) ^ k)
    rest = length - 4 * blocks
    if rest >= 3:
        h = np.uint32(h ^ np.uint32(np.uint32(data[4 * blocks + 2]) << np.uint32(16)))
    if rest >= 2:
        h = np.uint32(h ^ np.uint32(np.uint32(data[4 * blocks + 1]) << np.uint32(8)))
    if rest >= 1:
        h = np.uint32(np.uint32(h ^ np.uint32(data[4 * blocks])) * _M)
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * _M)
    return np.uint32(h ^ (h >> np.uint32(15)))
