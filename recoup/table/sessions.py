"""Where one session ends and the next begins, in a stream sorted by key and time.

A session is a run of one key's samples; it ends where the next sample comes more than `gap` later, or where the
session has reached its size or age. A row of the table is a session, or a chunk of it of `max_samples_per_row`.
State: the last sample's key, time and session; so the cut is the same whatever the batches are.
"""

from dataclasses import dataclass
from datetime import timedelta

import numba
import numpy as np
import pyarrow as pa

from recoup.core import ConfigError
from recoup.table.arrays import BoolArray, IntArray, NumpyArray, compute

_NEVER = np.int64(2**62)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRule:
    """How samples become sessions.

    Raises:
        ConfigError: a bound is not positive.
    """

    gap: timedelta | None = None
    """A pause longer than this ends a session; None = one key is one session."""
    max_session_samples: int | None = None
    """A session ends at this many samples."""
    max_session_age: timedelta | None = None
    """A session ends when the next sample is later than this after its first."""
    lateness: timedelta | None = None
    """A sample that arrives this much after a later one is late: left out and counted; None = none is late."""
    max_samples_per_row: int = 4096
    """A longer session is stored as several rows (chunks); bounds the memory of a row."""
    max_row_bytes: int = 16 << 20
    """A row also ends before its samples, each with its own lists, pass this size; half of a row group by default."""

    def __post_init__(self) -> None:
        """Check that every bound is positive."""
        for name in ("gap", "max_session_samples", "max_session_age", "max_samples_per_row", "max_row_bytes"):
            value = getattr(self, name)
            if value is not None and not value > type(value)(0):
                raise ConfigError(f"{name}: expected a positive bound, got {value!r}")


@dataclass(frozen=True, slots=True)
class Cut:
    """For n samples of a sorted stream: which repeat the sample before, and where sessions and rows begin."""

    repeated: BoolArray
    """bool [n]: same key, time and event id as the sample before; to be left out."""
    session_start: IntArray
    """int64 [n]: time of the first sample of the sample's session."""
    chunk: IntArray
    """int64 [n]: number of the sample's row within its session."""
    new_row: BoolArray
    """bool [n]: the sample is the first of a row."""
    new_key: BoolArray
    """bool [n]: the sample is the first of its key."""


class SessionCutter:
    """Cut a stream sorted by (key, time, event id), batch after batch."""

    def __init__(self, rule: SessionRule, border: int | None = None) -> None:
        """Start before the first sample; no session goes over the time `border`."""
        self._bounds = np.array(
            [
                _milliseconds(rule.gap),
                _NEVER if rule.max_session_samples is None else rule.max_session_samples,
                _milliseconds(rule.max_session_age),
                rule.max_samples_per_row,
                rule.max_row_bytes,
                _NEVER if border is None else border,
            ],
            dtype=np.int64,
        )
        # Last time, session start, samples in the session, chunk, samples and bytes in the row.
        self._state = np.zeros(6, dtype=np.int64)
        self._last: pa.RecordBatch | None = None

    def cut(self, key: pa.Array, time: IntArray, event_id: pa.Array | None, sizes: IntArray) -> Cut:
        """Return the cut of the next n samples, of these sizes in bytes."""
        new_key = self._changes(key, 0)
        repeated = np.zeros(len(time), dtype=np.bool_)
        if event_id is not None and len(time):
            same_time = np.empty(len(time), dtype=np.bool_)
            same_time[1:] = time[1:] == time[:-1]
            same_time[0] = bool(time[0] == self._state[0])
            repeated = ~new_key & same_time & ~self._changes(event_id, 1)
        session_start = np.empty(len(time), dtype=np.int64)
        chunk = np.empty(len(time), dtype=np.int64)
        new_row = np.zeros(len(time), dtype=np.bool_)
        _cut((new_key, time, repeated, sizes), self._bounds, self._state, (session_start, chunk, new_row))
        if len(time):
            last = [key.slice(len(key) - 1)] + ([event_id.slice(len(key) - 1)] if event_id is not None else [])
            self._last = pa.RecordBatch.from_arrays(last, names=["key", "event_id"][: len(last)])
        return Cut(repeated, session_start, chunk, new_row, new_key)

    def _changes(self, array: pa.Array, column: int) -> BoolArray:
        if not len(array):
            return np.zeros(0, dtype=np.bool_)
        changes = np.empty(len(array), dtype=np.bool_)
        changes[1:] = compute.not_equal(array.slice(1), array.slice(0, len(array) - 1)).to_numpy(zero_copy_only=False)
        changes[0] = self._last is None or self._last.column(column)[0] != array[0]
        return changes


def _milliseconds(duration: timedelta | None) -> np.int64:
    return _NEVER if duration is None else np.int64(round(duration.total_seconds() * 1000))


@numba.njit(cache=True, nogil=True)
def _cut(
    stream: tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray],
    bounds: NumpyArray,
    state: NumpyArray,
    out: tuple[NumpyArray, NumpyArray, NumpyArray],
) -> None:
    new_key, time, repeated, sizes = stream
    session_start, chunk_of, new_row = out
    gap, max_samples, max_age, max_row_samples, max_row_bytes, border = bounds
    last, start, count, chunk, row_samples, row_bytes = state
    for i in range(time.shape[0]):
        if not repeated[i]:
            t = time[i]
            over = last < border <= t
            if new_key[i] or over or t - last > gap or count >= max_samples or t - start > max_age:
                start, count, chunk, row_samples = t, 0, 0, 0
                new_row[i] = True
            elif row_samples >= max_row_samples or row_bytes + sizes[i] > max_row_bytes:
                chunk, row_samples = chunk + 1, 0
                new_row[i] = True
            if row_samples == 0:
                row_bytes = 0
            count += 1
            row_samples += 1
            row_bytes += sizes[i]
            last = t
        session_start[i] = start
        chunk_of[i] = chunk
    state[:] = np.array([last, start, count, chunk, row_samples, row_bytes])
