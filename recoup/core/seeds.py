"""Seeds: one root seed, and an independent stream for every named place, the same on every machine."""

import hashlib

import numpy as np


def derive_seed(root: int, *path: str | int) -> int:
    """Return a 63-bit seed that depends on `root` and on every part of `path`, and on nothing else."""
    digest = hashlib.blake2b(repr((root, *path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(root: int, *path: str | int) -> np.random.Generator:
    """Return a NumPy generator seeded by `derive_seed(root, *path)`."""
    return np.random.default_rng(derive_seed(root, *path))
