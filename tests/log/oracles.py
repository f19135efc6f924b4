"""Slow, obvious forms of what the log floor computes."""


def murmur2(data):
    """Kafka's key hash, after the Java client's Utils.murmur2, as a signed 32-bit integer."""
    m, h = 0x5BD1E995, (0x9747B28C ^ len(data)) & 0xFFFFFFFF
    for i in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & 0xFFFFFFFF
        k = (k ^ (k >> 24)) * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ k
    tail = data[len(data) - len(data) % 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * m & 0xFFFFFFFF
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h
