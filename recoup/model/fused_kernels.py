"""Kernels of look-ups on a table in this process: sums of windows, and row-wise Adagrad on the rows they read.

Legend: U bags (windows) of a feature, N IDs of its buffer, E rows of the table, D embedding dim, L IDs of all bags.

Rows of a large table come from memory, a few hundred instructions away: every kernel asks for the rows it will need
some IDs ahead. One table is one thread's work, so sums have one order whatever the number of threads.
"""

from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt

from recoup.model import lanes

_Floats: TypeAlias = npt.NDArray[np.float32]
_Ints: TypeAlias = npt.NDArray[np.int64]
_Uses: TypeAlias = npt.NDArray[np.uint64]  # unsigned: numba need not look for indices that count from the end
_BAG_BITS = np.uint64(32)
_BAG_MASK = np.uint64(0xFFFFFFFF)
_AHEAD = 12
"""IDs between asking for a row and reading it: 3 KB of rows of dim 64; 8 to 24 took equal times, 48 4 % more."""
_BLOCK = 4 * lanes.WIDTH
"""Columns whose sums stay in registers."""
_MAX_DIGIT_BITS = 11
"""A digit's 2,048 counts stay in the first cache."""


@numba.njit(cache=True, inline="always")
def _ask(flat_table: _Floats, dim: int, row: int | np.int64) -> None:
    """Ask for all of a row."""
    for d in range(0, dim, lanes.WIDTH):
        lanes.prefetch(flat_table, row * dim + d)


@numba.njit(cache=True, nogil=True)
def sum_bags(  # noqa: PLR0913 -- numba takes arrays, not records
    values: _Ints, start: _Ints, length: _Ints, table: _Floats, mean: bool, out: _Floats, first: int
) -> int:
    """Write the sum (or mean) of the rows of each bag, added from the first ID to the last; an empty bag gives zeros.

    Args:
        values: int64 [N].
        start: int64 [U].
        length: int64 [U].
        table: float32 [E, D].
        mean: times the float32 reciprocal of the length.
        out: float32 [*, W], C-contiguous.
        first: bag u goes to `out.flat[first + u * W : first + u * W + D]`.
    Returns:
        -1, or the first position a bag reads whose ID is outside the table: nothing is read there.
    Cost: O(D * L); rows that the bag before has read come from cache.
    """
    num_values, dim, width = values.shape[0], table.shape[1], out.shape[1]
    flat_table, flat = table.reshape(-1), out.reshape(-1)
    bad = _first_outside(values, start, length, table.shape[0])
    if bad >= 0:
        return bad
    whole = dim // _BLOCK * _BLOCK
    asked = 0
    for u in range(start.shape[0]):
        begin, end, place = start[u], start[u] + length[u], first + u * width
        for n in range(max(asked, begin + _AHEAD), min(end + _AHEAD, num_values)):
            _ask(flat_table, dim, values[n])
        asked = max(asked, end + _AHEAD)
        for d in range(0, whole, _BLOCK):
            _sum_block(values, begin, end, flat_table, dim, d, flat, place + d)
        if whole < dim:
            _sum_rest(values, begin, end, flat_table, dim, whole, flat, place + whole)
        if mean and end > begin + 1:
            scale = np.float32(1.0) / np.float32(end - begin)
            for d in range(dim):
                flat[place + d] *= scale
    return -1


@numba.njit(cache=True)
def _first_outside(values: _Ints, start: _Ints, length: _Ints, num_rows: int) -> int:
    """Return the first position a bag reads whose ID is outside the table, or -1."""
    outside = False
    for n in range(values.shape[0]):
        outside |= (values[n] < 0) | (values[n] >= num_rows)
    if outside:
        for u in range(start.shape[0]):
            for n in range(start[u], start[u] + length[u]):
                if not 0 <= values[n] < num_rows:
                    return n
    return -1


@numba.njit(cache=True, inline="always")
def _sum_block(  # noqa: PLR0913 -- numba takes arrays, not records
    values: _Ints, begin: int, end: int, table: _Floats, dim: int, first: int, out: _Floats, place: int
) -> None:
    a, b, c, d = lanes.zero(), lanes.zero(), lanes.zero(), lanes.zero()
    for n in range(begin, end):
        row = values[n] * dim + first
        a = lanes.add(a, lanes.load(table, row))
        b = lanes.add(b, lanes.load(table, row + lanes.WIDTH))
        c = lanes.add(c, lanes.load(table, row + 2 * lanes.WIDTH))
        d = lanes.add(d, lanes.load(table, row + 3 * lanes.WIDTH))
    lanes.store(out, place, a)
    lanes.store(out, place + lanes.WIDTH, b)
    lanes.store(out, place + 2 * lanes.WIDTH, c)
    lanes.store(out, place + 3 * lanes.WIDTH, d)


@numba.njit(cache=True, inline="always")
def _sum_rest(  # noqa: PLR0913 -- numba takes arrays, not records
    values: _Ints, begin: int, end: int, table: _Floats, dim: int, first: int, out: _Floats, place: int
) -> None:
    for d in range(dim - first):
        out[place + d] = np.float32(0.0)
    for n in range(begin, end):
        row = values[n] * dim + first
        for d in range(dim - first):
            out[place + d] += table[row + d]


@numba.njit(cache=True, nogil=True)
def list_uses(values: _Ints, start: _Ints, length: _Ints) -> _Uses:
    """Return `ID << 32 | bag` for every ID of every bag, uint64 [L]; shapes as in `sum_bags`."""
    uses = np.empty(length.sum(), dtype=np.uint64)
    count = np.uint64(0)
    for u in range(start.shape[0]):
        for n in range(start[u], start[u] + length[u]):
            uses[count] = np.uint64(values[n]) << _BAG_BITS | np.uint64(u)
            count += np.uint64(1)
    return uses


@numba.njit(cache=True, nogil=True)
def sort_uses(uses: _Uses, num_rows: int) -> _Uses:
    """Return the uses ordered by ID, those of one ID as they came; `uses` is spoilt.

    Source: least significant digit radix sort.
    Cost: one pass, and one more for every 11 bits of the largest row number.
    """
    num_bits = 1
    while num_rows - 1 >> num_bits:
        num_bits += 1
    num_digits = (num_bits + _MAX_DIGIT_BITS - 1) // _MAX_DIGIT_BITS
    digit_bits = np.uint64((num_bits + num_digits - 1) // num_digits)
    mask = (np.uint64(1) << digit_bits) - np.uint64(1)
    places = np.zeros((num_digits, 1 << digit_bits), dtype=np.uint64)
    for k in range(uses.shape[0]):
        row = uses[k] >> _BAG_BITS
        for digit in range(num_digits):
            places[digit, row & mask] += np.uint64(1)
            row >>= digit_bits
    spare = np.empty_like(uses)
    shift = _BAG_BITS
    for digit in range(num_digits):
        place = places[digit]
        total = np.uint64(0)
        for value in range(place.shape[0]):
            count = place[value]
            place[value] = total
            total += count
        for k in range(uses.shape[0]):
            use = uses[k]
            value = use >> shift & mask
            spare[place[value]] = use
            place[value] += np.uint64(1)
        uses, spare = spare, uses
        shift += digit_bits
    return uses


@numba.njit(cache=True, nogil=True)
def update_bags(  # noqa: PLR0913 -- numba takes arrays, not records
    values: _Ints,
    start: _Ints,
    length: _Ints,
    grad: _Floats,
    first: int,
    table: _Floats,
    moments: _Floats,
    rate: np.float32,
    eps: np.float32,
) -> None:
    """Update the rows that bags read, given the gradients of their sums; shapes as in `sum_bags` and `update_rows`."""
    uses = sort_uses(list_uses(values, start, length), table.shape[0])
    update_rows(uses, grad, first, table, moments, rate, eps)


@numba.njit(cache=True, nogil=True)
def update_windows(  # noqa: PLR0913 -- numba takes arrays, not records
    values: _Ints,
    start: _Ints,
    length: _Ints,
    grad: _Floats,
    first: int,
    table: _Floats,
    moments: _Floats,
    rate: np.float32,
    eps: np.float32,
) -> None:
    """Do what `update_bags` does, at a cost of O(D * (N + U)), whatever the lengths of the bags."""
    positions, slopes = position_gradients(start, length, grad, first, table.shape[1])
    uses = np.empty(positions.shape[0], dtype=np.uint64)
    for k in range(positions.shape[0]):
        uses[k] = np.uint64(values[positions[k]]) << _BAG_BITS | np.uint64(k)
    update_rows(sort_uses(uses, table.shape[0]), slopes, 0, table, moments, rate, eps)


@numba.njit(cache=True, nogil=True)
def position_gradients(start: _Ints, length: _Ints, grad: _Floats, first: int, dim: int) -> tuple[_Ints, _Floats]:
    """Return the M positions that windows cover, int64 [M], and the sum of the gradients of those, float32 [M, D].

    One walk over the buffer: a window's gradient is added where it begins and taken off where it ends, in float64, and
    the sum restarts from zero wherever no window is open, so sessions do not touch each other.

    Args:
        start: int64 [U].
        length: int64 [U].
        grad: float32 [*, W], C-contiguous; window u has the gradient `grad.flat[first + u * W : first + u * W + D]`.
        first: where window 0 begins.
        dim: D.
    """
    kept = np.flatnonzero(length > 0)
    low, high = start[kept], start[kept] + length[kept]
    by_start, by_end = np.argsort(low, kind="mergesort"), np.argsort(high, kind="mergesort")
    num_covered = _count_covered(low[by_start], high[by_start])
    positions = np.empty(num_covered, dtype=np.int64)
    slopes = np.empty((num_covered, dim), dtype=np.float32)
    total = np.zeros(dim, dtype=np.float64)
    flat, width = grad.reshape(-1), grad.shape[1]
    begun, ended, n = 0, 0, 0
    for m in range(num_covered):
        while ended < begun and high[by_end[ended]] <= n:
            _add_to(total, flat, first + kept[by_end[ended]] * width, -1.0)
            ended += 1
        if begun == ended:  # none is open
            total[:] = 0.0
            n = low[by_start[begun]]
        while begun < kept.shape[0] and low[by_start[begun]] <= n:
            _add_to(total, flat, first + kept[by_start[begun]] * width, 1.0)
            begun += 1
        positions[m] = n
        for d in range(dim):
            slopes[m, d] = total[d]
        n += 1
    return positions, slopes


@numba.njit(cache=True)
def _count_covered(low: _Ints, high: _Ints) -> int:
    """Return how many positions windows cover that are in order of their starts."""
    count, reached = 0, 0
    for u in range(low.shape[0]):
        count += max(0, high[u] - max(low[u], reached))
        reached = max(reached, high[u])
    return count


@numba.njit(cache=True, inline="always")
def _add_to(total: npt.NDArray[np.float64], flat: _Floats, place: int, sign: float) -> None:
    for d in range(total.shape[0]):
        total[d] += sign * flat[place + d]


@numba.njit(cache=True, nogil=True)
def update_rows(  # noqa: PLR0913 -- numba takes arrays, not records
    uses: _Uses, grad: _Floats, first: int, table: _Floats, moments: _Floats, rate: np.float32, eps: np.float32
) -> None:
    """Update each row once by row-wise Adagrad: moment += mean(g^2), row -= rate / (sqrt(moment) + eps) * g.

    Args:
        uses: uint64 [L] as `sort_uses` returns them.
        grad: float32 [*, W], C-contiguous; bag u has the gradient `grad.flat[first + u * W : first + u * W + D]`.
        first: where bag 0 begins.
        table: float32 [E, D], updated.
        moments: float32 [E], updated.
        rate: learning rate.
        eps: added to the root of the moment.
    Cost: O(D * L); each row and moment is read and written once.
    """
    num_uses, dim = uses.shape[0], table.shape[1]
    total = np.zeros(_round_up(dim), dtype=np.float32)
    flat_table, flat_grad, width = table.reshape(-1), grad.reshape(-1), grad.shape[1]
    fresh = True
    for k in range(num_uses):
        coming = np.int64(uses[min(k + _AHEAD, num_uses - 1)] >> _BAG_BITS)
        _ask(flat_table, dim, coming)
        lanes.prefetch(moments, coming)
        _add_gradient(total, fresh, flat_grad, first + np.int64(uses[k] & _BAG_MASK) * width, dim)
        row = np.int64(uses[k] >> _BAG_BITS)
        fresh = k + 1 == num_uses or np.int64(uses[k + 1] >> _BAG_BITS) != row
        if fresh:
            moment = moments[row] + _sum_squares(total) / np.float32(dim)
            moments[row] = moment
            _add_scaled(total, -rate / (np.sqrt(moment) + eps), flat_table, row * dim, dim)


@numba.njit(cache=True, inline="always")
def _round_up(dim: int) -> int:
    """Return the least number of whole `lanes` that hold `dim`."""
    return (dim + lanes.WIDTH - 1) // lanes.WIDTH * lanes.WIDTH


@numba.njit(cache=True, inline="always")
def _add_gradient(total: _Floats, fresh: bool, grad: _Floats, place: int, dim: int) -> None:
    """Add `grad[place : place + dim]` to total, or set total to it."""
    whole = dim // lanes.WIDTH * lanes.WIDTH
    if fresh:
        for d in range(0, whole, lanes.WIDTH):
            lanes.store(total, d, lanes.load(grad, place + d))
        for d in range(whole, dim):
            total[d] = grad[place + d]
    else:
        for d in range(0, whole, lanes.WIDTH):
            lanes.store(total, d, lanes.add(lanes.load(total, d), lanes.load(grad, place + d)))
        for d in range(whole, dim):
            total[d] += grad[place + d]


@numba.njit(cache=True, inline="always")
def _sum_squares(total: _Floats) -> np.float32:
    squares = lanes.zero()
    for d in range(0, total.shape[0], lanes.WIDTH):
        one = lanes.load(total, d)
        squares = lanes.add_products(squares, one, one)
    return lanes.sum_lanes(squares)


@numba.njit(cache=True, inline="always")
def _add_scaled(total: _Floats, factor: np.float32, table: _Floats, place: int, dim: int) -> None:
    """Add `factor * total` to the row that begins at `table[place]`."""
    whole = dim // lanes.WIDTH * lanes.WIDTH
    for d in range(0, whole, lanes.WIDTH):
        row = lanes.load(table, place + d)
        lanes.store(table, place + d, lanes.add_product(row, factor, lanes.load(total, d)))
    for d in range(whole, dim):
        table[place + d] += factor * total[d]
