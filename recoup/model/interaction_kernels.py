"""Kernels of the dot interaction: one sample's vectors at a time, gathered from unique rows into the first cache.

Legend: B samples, G dedup groups, R rows of all groups' unique vectors, F vectors a sample, D embedding dim, P pairs.

A sample's vectors, in order: its dense vector (0 or 1), the vectors of its row of each group, its own vectors.
"""

from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt

_Floats: TypeAlias = npt.NDArray[np.float32]
_Ints: TypeAlias = npt.NDArray[np.int64]
_FASTMATH = {"reassoc", "contract", "nsz"}  # sums in the vector units' order, fixed by D; NaN and infinity kept


_LINE_BYTES = 64


@numba.njit(cache=True)
def _scratch(num_rows: int, dim: int) -> _Floats:
    """Return zeros that start at a cache line: vectors across two lines cost a third of the kernels' time."""
    flat = np.zeros(num_rows * dim + _LINE_BYTES // 4, dtype=np.float32)
    first = (-flat.ctypes.data % _LINE_BYTES) // 4
    return flat[first : first + num_rows * dim].reshape(num_rows, dim)


@numba.njit(cache=True, inline="always")
def _gather(  # noqa: PLR0913 -- numba takes arrays, not records
    b: int, dense: _Floats, unique: _Floats, own: _Floats, inverse: _Ints, sizes: _Ints, vectors: _Floats
) -> None:
    f = 0
    dim = vectors.shape[1]
    for k in range(dense.shape[1]):
        for d in range(dim):
            vectors[f, d] = dense[b, k, d]
        f += 1
    first = 0
    for g in range(sizes.shape[0]):
        row = first + inverse[g, b] * sizes[g]
        for k in range(sizes[g]):
            for d in range(dim):
                vectors[f, d] = unique[row + k, d]
            f += 1
        first += inverse[g, -1] * sizes[g]
    for k in range(own.shape[1]):
        for d in range(dim):
            vectors[f, d] = own[b, k, d]
        f += 1


@numba.njit(cache=True, nogil=True, fastmath=_FASTMATH)
def interact(  # noqa: PLR0913 -- numba takes arrays, not records
    dense: _Floats, unique: _Floats, own: _Floats, inverse: _Ints, sizes: _Ints, num_kept: int, out: _Floats
) -> None:
    """Write the first `num_kept` vectors, then the dots of all pairs (i, j < i), to row b of `out`.

    Args:
        dense: [B, 0 or 1, D].
        unique: [R, D], the rows of each group one after the other, F_g vectors a row.
        own: [B, F_own, D].
        inverse: [G, B + 1]; the last column holds the group's number of rows.
        sizes: [G], F_g.
        num_kept: vectors copied.
        out: [B, num_kept * D + P], filled.
    """
    num_samples, num_dense, dim = dense.shape
    num_vectors = num_dense + sizes.sum() + own.shape[1]
    vectors = _scratch(num_vectors, dim)
    for b in range(num_samples):
        _gather(b, dense, unique, own, inverse, sizes, vectors)
        for f in range(num_kept):
            for d in range(dim):
                out[b, f * dim + d] = vectors[f, d]
        p = num_kept * dim
        for i in range(1, num_vectors):
            for j in range(i):
                dot = np.float32(0.0)
                for d in range(dim):
                    dot += vectors[i, d] * vectors[j, d]
                out[b, p] = dot
                p += 1


@numba.njit(cache=True, inline="always", fastmath=_FASTMATH)
def _add_product(slopes: _Floats, vectors: _Floats, totals: _Floats) -> None:
    """Add slopes @ vectors, in blocks of 2 x 4: each loaded vector serves two rows, each stored total four products."""
    num_vectors, dim = vectors.shape
    for f in range(0, num_vectors, 2):
        for j in range(0, num_vectors, 4):
            s0, s1, s2, s3 = slopes[f, j], slopes[f, j + 1], slopes[f, j + 2], slopes[f, j + 3]
            t0, t1, t2, t3 = slopes[f + 1, j], slopes[f + 1, j + 1], slopes[f + 1, j + 2], slopes[f + 1, j + 3]
            for d in range(dim):
                v0, v1, v2, v3 = vectors[j, d], vectors[j + 1, d], vectors[j + 2, d], vectors[j + 3, d]
                totals[f, d] += s0 * v0 + s1 * v1 + s2 * v2 + s3 * v3
                totals[f + 1, d] += t0 * v0 + t1 * v1 + t2 * v2 + t3 * v3


@numba.njit(cache=True, inline="always")
def _scatter(  # noqa: PLR0913 -- numba takes arrays, not records
    b: int,
    totals: _Floats,
    inverse: _Ints,
    sizes: _Ints,
    grad_dense: _Floats,
    grad_unique: _Floats,
    grad_own: _Floats,
) -> None:
    f = 0
    dim = totals.shape[1]
    for k in range(grad_dense.shape[1]):
        for d in range(dim):
            grad_dense[b, k, d] = totals[f, d]
        f += 1
    first = 0
    for g in range(sizes.shape[0]):
        row = first + inverse[g, b] * sizes[g]
        for k in range(sizes[g]):
            for d in range(dim):
                grad_unique[row + k, d] += totals[f, d]
            f += 1
        first += inverse[g, -1] * sizes[g]
    for k in range(grad_own.shape[1]):
        for d in range(dim):
            grad_own[b, k, d] = totals[f, d]
        f += 1


@numba.njit(cache=True, nogil=True, fastmath=_FASTMATH)
def interact_backward(
    saved: tuple[_Floats, _Floats, _Floats, _Ints, _Ints],
    num_kept: int,
    grad: _Floats,
    grad_dense: _Floats,
    grad_unique: _Floats,
    grad_own: _Floats,
) -> None:
    """Add to `grad_unique`, sample by sample, and write the others; `saved` = the first five of `interact`."""
    dense, unique, own, inverse, sizes = saved
    num_samples, num_dense, dim = dense.shape
    num_vectors = num_dense + sizes.sum() + own.shape[1]
    padded = (num_vectors + 3) // 4 * 4
    vectors = _scratch(padded, dim)
    slopes = np.zeros((padded, padded), dtype=np.float32)
    totals = _scratch(padded, dim)
    for b in range(num_samples):
        _gather(b, dense, unique, own, inverse, sizes, vectors)
        p = num_kept * dim
        for i in range(1, num_vectors):
            for j in range(i):
                slopes[i, j] = grad[b, p]
                slopes[j, i] = grad[b, p]
                p += 1
        for f in range(num_kept):
            for d in range(dim):
                totals[f, d] = grad[b, f * dim + d]
        for f in range(num_kept, padded):
            for d in range(dim):
                totals[f, d] = np.float32(0.0)
        _add_product(slopes, vectors, totals)
        _scatter(b, totals, inverse, sizes, grad_dense, grad_unique, grad_own)
