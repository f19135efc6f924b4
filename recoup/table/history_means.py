"""A user's mean label so far, as a dense feature, frozen so that nothing leaks: the plainest fact about a user.

value = (sum of earlier labels + strength * prior) / (number of earlier samples + strength), over the key's samples
strictly earlier than the cut-off (as in `histories`); without earlier samples it is the prior.
State: the current key's sums up to the last cut-off, and the samples since.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np
import pyarrow as pa

from recoup.core import ConfigError
from recoup.table.arrays import IntArray, NumpyArray
from recoup.table.histories import cutoffs


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryMean:
    """A dense feature made from the log: the smoothed mean of a label over the key's earlier samples.

    Raises:
        ConfigError: the strength is not positive.
    """

    name: str
    label: str
    prior: float = 0.5
    """Value without earlier samples: about the label's mean over the log."""
    strength: float = 3.0
    """How many samples the prior weighs."""
    freeze: Literal["session", "day", "rolling"] = "session"

    def __post_init__(self) -> None:
        """Check the strength."""
        if not self.strength > 0:
            raise ConfigError(f"history mean {self.name!r}: expected strength > 0, got {self.strength}")


class MeanBuilder:
    """Add mean columns to sorted, cut batches."""

    def __init__(self, means: Sequence[HistoryMean], time_column: str) -> None:
        """Start before the first sample of the first key."""
        self._means = tuple(means)
        self._time = time_column
        self._pending = [(np.zeros(0, np.int64), np.zeros(0, np.float64)) for _ in means]
        self._sums = [np.zeros(2, dtype=np.float64) for _ in means]

    def extend(self, batch: pa.RecordBatch, new_key: NumpyArray, session_start: IntArray) -> pa.RecordBatch:
        """Return `batch` with one float32 column a mean, after the others."""
        time = batch.column(self._time).to_numpy(zero_copy_only=False)
        columns, fields = list(batch.columns), list(batch.schema)
        for i, mean in enumerate(self._means):
            label = batch.column(mean.label).to_numpy(zero_copy_only=False).astype(np.float64)
            times = np.concatenate([self._pending[i][0], time])
            labels = np.concatenate([self._pending[i][1], label])
            out = np.empty(len(time), dtype=np.float32)
            cutoff = cutoffs(mean.freeze, time, session_start)
            low = _means((times, labels), (new_key, cutoff), (mean.prior, mean.strength), self._sums[i], out)
            self._pending[i] = times[low:].copy(), labels[low:].copy()
            columns.append(pa.array(out))
            fields.append(pa.field(mean.name, pa.float32(), nullable=False))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@numba.njit(cache=True, nogil=True)
def _means(
    samples: tuple[NumpyArray, NumpyArray],
    stream: tuple[NumpyArray, NumpyArray],
    smoothing: tuple[float, float],
    sums: NumpyArray,
    out: NumpyArray,
) -> int:
    times, labels = samples
    new_key, cutoff = stream
    prior, strength = smoothing
    waiting = times.shape[0] - out.shape[0]
    until = 0  # samples before this one are in the sums, or of another key
    for i in range(out.shape[0]):
        if new_key[i]:
            until = waiting + i
            sums[0] = 0.0
            sums[1] = 0.0
        while until < waiting + i and times[until] < cutoff[i]:
            sums[0] += labels[until]
            sums[1] += 1.0
            until += 1
        out[i] = (sums[0] + strength * prior) / (sums[1] + strength)
    return until
