"""The order of samples inside a stripe: whole sessions in stored or random order, or spread by the IID guard.

The order is a list of pieces; a piece is samples lo .. hi-1 of one session row. It depends on the stripe's rows, the
seed and the guard only, so that any process finds the same order again.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from recoup.core import derive_seed


@dataclass(frozen=True, kw_only=True, slots=True)
class StripeOrder:
    """Pieces in order; `end[p]` counts the samples up to and including piece p."""

    row: NDArray[np.int64]
    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    end: NDArray[np.int64]

    def cut(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the pieces (row, lo, hi) of samples `first` .. `end - 1`; the outer ones may be shortened."""
        if end <= first:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty, empty
        p0 = int(np.searchsorted(self.end, first, side="right"))
        p1 = int(np.searchsorted(self.end, end, side="left"))
        row, lo, hi = self.row[p0 : p1 + 1], self.lo[p0 : p1 + 1].copy(), self.hi[p0 : p1 + 1].copy()
        hi[-1] -= self.end[p1] - end
        lo[0] += first - (self.end[p0] - (self.hi[p0] - self.lo[p0]))
        return row, lo, hi


def stripe_order(
    num_samples: NDArray[np.int64],
    session_of_row: NDArray[np.int64],
    *,
    shuffle_seed: int | None,
    batch_size: int,
    max_per_session: int,
) -> StripeOrder:
    """Order the session rows of a stripe.

    Args:
        num_samples: samples of each row, int64 [rows].
        session_of_row: number of each row's session, rising, int64 [rows] (chunks of one session share it).
        shuffle_seed: None keeps the stored order; else whole sessions are permuted uniformly.
        batch_size: B.
        max_per_session: the IID guard's bound, 0 = none.
    """
    rows = np.arange(num_samples.size, dtype=np.int64)
    if shuffle_seed is not None and rows.size:
        keys = np.random.default_rng(derive_seed(shuffle_seed, "order")).random(int(session_of_row[-1]) + 1)
        rows = np.argsort(keys[session_of_row], kind="stable")
    if not max_per_session:
        sizes = num_samples[rows]
        return StripeOrder(row=rows, lo=np.zeros_like(sizes), hi=sizes, end=np.cumsum(sizes))
    row, lo, hi = _spread(rows, num_samples, session_of_row, batch_size, max_per_session)
    return StripeOrder(row=row, lo=lo, hi=hi, end=np.cumsum(hi - lo))


def _spread(
    rows: NDArray[np.int64],
    num_samples: NDArray[np.int64],
    session_of_row: NDArray[np.int64],
    batch_size: int,
    bound: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut rows into pieces of at most `bound` samples, pieces of one session at least B samples apart if possible.

    Sessions start in the given order, long ones early enough to end inside the stripe.
    """
    session = session_of_row[rows]
    by_session = np.argsort(session, kind="stable")  # rows of one session together, in order
    pieces = -(-num_samples[rows] // bound)
    pieces_of_session = np.bincount(session, weights=pieces).astype(np.int64)
    natural = np.cumsum(num_samples[rows]) - num_samples[rows]
    first_row = np.full(pieces_of_session.size, np.iinfo(np.int64).max)
    np.minimum.at(first_row, session, natural)
    latest = int(num_samples.sum()) - pieces_of_session * batch_size
    started = np.argsort(np.minimum(first_row, latest), kind="stable")
    started = started[pieces_of_session[started] > 0]
    counts = np.bincount(session, minlength=pieces_of_session.size)
    row_off = np.concatenate(([0], np.cumsum(counts)))
    total = int(pieces.sum())
    out = (np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64))
    _schedule(started, (rows[by_session], row_off, pieces_of_session), num_samples, (batch_size, bound), out)
    return out


@njit(cache=True, nogil=True)
def _schedule(
    started: NDArray[np.int64],
    sessions: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    num_samples: NDArray[np.int64],
    batch_and_bound: tuple[int, int],
    out: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> None:
    """Emit pieces: first a session whose last piece lies B samples back, else a new one, else the longest waiting."""
    rows, row_off, pieces_left = sessions
    batch_size, bound = batch_and_bound
    out_row, out_lo, out_hi = out
    total = out_row.size
    queue = np.empty(total + started.size, np.int64)  # sessions that wait, in order of their last piece
    release = np.empty(total + started.size, np.int64)
    at_row = row_off[:-1].copy()
    at_sample = np.zeros(row_off.size - 1, np.int64)
    head, tail, fresh = 0, 0, 0
    position = np.int64(0)
    for i in range(total):
        if head < tail and (release[head] <= position or fresh == started.size):
            s = queue[head]
            head += 1
        else:
            s = started[fresh]
            fresh += 1
        r = rows[at_row[s]]
        lo = at_sample[s]
        hi = min(lo + bound, num_samples[r])
        out_row[i], out_lo[i], out_hi[i] = r, lo, hi
        if hi == num_samples[r]:
            at_row[s] += 1
            at_sample[s] = 0
        else:
            at_sample[s] = hi
        pieces_left[s] -= 1
        if pieces_left[s] > 0:
            queue[tail] = s
            release[tail] = position + batch_size
            tail += 1
        position += hi - lo
