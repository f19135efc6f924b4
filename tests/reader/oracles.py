"""Slow, obvious Python for every transform: one sample's list (or one dense value) in, one out."""

import math

import numpy as np

MASK = 2**64 - 1


def mix(x):
    """Return splitmix64's finalizer of a 64-bit word."""
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reduce_to(x, size):
    """Return a 64-bit word reduced to 0 .. size-1."""
    return ((x >> 32) * size) >> 32 if size < 2**32 else x % size


def modulo(ids, size):
    return [x % size for x in ids]


def hashed(ids, size, seed=0):
    return [reduce_to(mix(x + seed * 0x9E3779B97F4A7C15), size) for x in ids]


def vocabulary(ids, known, unknown):
    return [known.index(x) + 1 if x in known else unknown for x in ids]


def truncate(ids, last):
    return ids[-last:]


def unique_ids(ids):
    return list(dict.fromkeys(ids))


def fill(ids, value):
    return ids or [value]


def clamp(ids, low, high):
    return [int(min(max(x, low), high)) for x in ids]


def ngram(ids, n, size):
    found = []
    for i in range(len(ids) - n + 1):
        word = n
        for x in ids[i : i + n]:
            word = mix(word ^ (x & MASK))
        found.append(reduce_to(word, size))
    return found


def cross(first, second, size):
    return [reduce_to(mix(mix(2 ^ (x & MASK)) ^ (y & MASK)), size) for x in first for y in second]


def log1p(x, negative):
    if x >= 0:
        return float(np.float32(math.log1p(x)))
    return 0.0 if negative == "zero" else float(np.float32(-math.log1p(-x)))


def bucketise(x, boundaries):
    return [sum(b <= x for b in boundaries)]
