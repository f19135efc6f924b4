"""Kernels of the dot interaction: one sample's vectors at a time, gathered from unique rows into the first cache.

Legend: B samples, G dedup groups, R rows of all groups' unique vectors, F vectors a sample, D embedding dim, P pairs.

A sample's vectors, in order: its dense vector (0 or 1), the vectors of its row of each group, its own vectors.
"""

from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from recoup.model import lanes

_Floats: TypeAlias = npt.NDArray[np.float32]
_Ints: TypeAlias = npt.NDArray[np.int64]
_FASTMATH = {"reassoc", "contract", "nsz"}  # sums in the vector units' order, fixed by D; NaN and infinity kept
_LINE_BYTES = 64


@numba.njit(cache=True, inline="always")
def _up(count: int, block: int) -> int:
    """Return `count` rounded up to whole blocks."""
    return (count + block - 1) // block * block


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
    dim = dense.shape[2]
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
    """Write the first `num_kept` vectors, then the dots of all pairs (i, j < i), of every sample.

    Args:
        dense: [B, 0 or 1, D].
        unique: [R, D], the rows of each group one after the other, F_g vectors a row.
        own: [B, F_own, D].
        inverse: [G, B + 1]; the last column holds the group's number of rows.
        sizes: [G], F_g.
        num_kept: vectors copied.
        out: [B * (num_kept * D + P) + F + 4], filled; what the last F + 4 hold means nothing.
    """
    num_samples, num_dense, dim = dense.shape
    num_vectors = num_dense + sizes.sum() + own.shape[1]
    width = num_kept * dim + num_vectors * (num_vectors - 1) // 2
    vectors = _scratch(_up(num_vectors + 1, 4), _up(dim, lanes.WIDTH))
    for b in range(num_samples):
        _gather(b, dense, unique, own, inverse, sizes, vectors)
        for f in range(num_kept):
            for d in range(dim):
                out[b * width + f * dim + d] = vectors[f, d]
        _write_dots(vectors, num_vectors, out, b * width + num_kept * dim)


@numba.njit(cache=True, inline="always")
def _write_dots(vectors: _Floats, num_vectors: int, out: _Floats, first: int) -> None:
    """Write the dots of all pairs (i, j < i) from `out[first]` on, two rows of four dots at a time.

    Where four dots reach beyond a row's end they spill into the next row's first four, which are written after them;
    beyond the last row's end up to F + 4 values are spoilt.
    """
    dim = vectors.shape[1]
    for i in range(1, num_vectors, 2):
        row = first + i * (i - 1) // 2
        for j in range(i // 4 * 4, -1, -4):
            a0, a1, a2, a3 = lanes.zero(), lanes.zero(), lanes.zero(), lanes.zero()
            b0, b1, b2, b3 = lanes.zero(), lanes.zero(), lanes.zero(), lanes.zero()
            for d in range(0, dim, lanes.WIDTH):
                a, b = lanes.load(vectors, i * dim + d), lanes.load(vectors, (i + 1) * dim + d)
                v = lanes.load(vectors, j * dim + d)
                a0, b0 = lanes.add_products(a0, a, v), lanes.add_products(b0, b, v)
                v = lanes.load(vectors, (j + 1) * dim + d)
                a1, b1 = lanes.add_products(a1, a, v), lanes.add_products(b1, b, v)
                v = lanes.load(vectors, (j + 2) * dim + d)
                a2, b2 = lanes.add_products(a2, a, v), lanes.add_products(b2, b, v)
                v = lanes.load(vectors, (j + 3) * dim + d)
                a3, b3 = lanes.add_products(a3, a, v), lanes.add_products(b3, b, v)
            lanes.store_sums(out, row + j, a0, a1, a2, a3)
            lanes.store_sums(out, row + i + j, b0, b1, b2, b3)


@numba.njit(cache=True, inline="always")
def _add_product(slopes: _Floats, vectors: _Floats, num_vectors: int, totals: _Floats) -> None:
    """Add slopes @ vectors to totals, three rows of 32 columns at a time: totals stay in registers over all vectors."""
    num_rows, dim = totals.shape
    for f in range(0, num_rows, 3):
        for d in range(0, dim, 2 * lanes.WIDTH):
            a, b, c = f * dim + d, (f + 1) * dim + d, (f + 2) * dim + d
            a0, a1 = lanes.load(totals, a), lanes.load(totals, a + lanes.WIDTH)
            b0, b1 = lanes.load(totals, b), lanes.load(totals, b + lanes.WIDTH)
            c0, c1 = lanes.load(totals, c), lanes.load(totals, c + lanes.WIDTH)
            for j in range(num_vectors):
                v0, v1 = lanes.load(vectors, j * dim + d), lanes.load(vectors, j * dim + d + lanes.WIDTH)
                s, t, u = slopes[f, j], slopes[f + 1, j], slopes[f + 2, j]
                a0, a1 = lanes.add_product(a0, s, v0), lanes.add_product(a1, s, v1)
                b0, b1 = lanes.add_product(b0, t, v0), lanes.add_product(b1, t, v1)
                c0, c1 = lanes.add_product(c0, u, v0), lanes.add_product(c1, u, v1)
            lanes.store(totals, a, a0)
            lanes.store(totals, a + lanes.WIDTH, a1)
            lanes.store(totals, b, b0)
            lanes.store(totals, b + lanes.WIDTH, b1)
            lanes.store(totals, c, c0)
            lanes.store(totals, c + lanes.WIDTH, c1)


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
    dim = grad_dense.shape[2]
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
    """Add to `grad_unique`, sample by sample, and write the others; `saved` = the first five of `interact`.

    `grad_own` may be `own` itself: a sample's vectors are read before its gradients are written.
    """
    dense, unique, own, inverse, sizes = saved
    num_samples, num_dense, dim = dense.shape
    num_vectors = num_dense + sizes.sum() + own.shape[1]
    padded, padded_dim = _up(num_vectors, 3), _up(dim, 2 * lanes.WIDTH)
    vectors = _scratch(padded, padded_dim)
    slopes = np.zeros((padded, padded), dtype=np.float32)
    totals = _scratch(padded, padded_dim)
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
        _add_product(slopes, vectors, num_vectors, totals)
        _scatter(b, totals, inverse, sizes, grad_dense, grad_unique, grad_own)
