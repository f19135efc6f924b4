"""The order of samples inside a stripe: whole sessions in stored or random order, or spread by the IID guard.

The order is a list of pieces; a piece is samples lo .. hi-1 of one session row. It depends on the stripe's rows, the
seed, B and the guard only, so that any process finds the same order again.

The guard lays the stripe's samples, session by session, into W = ceil(B / bound) lanes of equal length and reads them
across: neighbours of a session come W samples apart, so any B samples in a row hold at most `bound` of them. Exact for
sessions of up to (samples of the stripe) / W - bound samples; longer ones exceed it by what does not fit. (McNaughton's
wrap-around rule, 1959.) Within a batch, samples of a session are put together again, so that they still share rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recoup.core import derive_seed


@dataclass(frozen=True, kw_only=True, slots=True)
class StripeOrder:
    """Pieces in order; `end[p]` counts the samples up to and including piece p."""

    row: NDArray[np.int64]
    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    end: NDArray[np.int64]
    regroup: bool
    """True: pieces are single samples, and a cut puts those of a session together."""

    def cut(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the pieces (row, lo, hi) of samples `first` .. `end - 1`; the outer ones may be shortened."""
        if end <= first:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty, empty
        if self.regroup:
            return _joined(self.row[first:end], self.lo[first:end])
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
    sizes = num_samples[rows]
    if not max_per_session:
        return StripeOrder(row=rows, lo=np.zeros_like(sizes), hi=sizes, end=np.cumsum(sizes), regroup=False)
    row = np.repeat(rows, sizes)
    sample = np.arange(row.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    spread = _across(row.size, -(-batch_size // max_per_session))
    row, sample = row[spread], sample[spread]
    return StripeOrder(row=row, lo=sample, hi=sample + 1, end=np.arange(1, row.size + 1), regroup=True)


def _across(count: int, num_lanes: int) -> NDArray[np.int64]:
    """Return 0 .. count-1, laid into lanes one after the other, in the order in which they are read across."""
    in_lane = np.full(num_lanes, count // num_lanes, dtype=np.int64)
    in_lane[: count % num_lanes] += 1
    lane = np.repeat(np.arange(num_lanes), in_lane)
    place = np.arange(count) - np.repeat(np.cumsum(in_lane) - in_lane, in_lane)
    order = np.empty(count, dtype=np.int64)
    order[place * num_lanes + lane] = np.arange(count)
    return order


def _joined(
    row: NDArray[np.int64], sample: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return single samples as pieces, in order of row and sample."""
    order = np.lexsort((sample, row))
    row, sample = row[order], sample[order]
    begins = np.flatnonzero(np.concatenate(([True], (np.diff(row) != 0) | (np.diff(sample) != 1))))
    ends = np.concatenate((begins[1:], [row.size]))
    return row[begins], sample[begins], sample[ends - 1] + 1
