"""Histories built from the log itself: the last k items of a user's earlier samples, frozen so that nothing leaks.

A sample's history holds items of the same key's samples *strictly earlier* than its cut-off: the start of its session
(`freeze = "session"`), of its UTC day (`"day"`), or the sample itself (`"rolling"`). Oldest first.
State: the current key's items since the last cut-off, and the k before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np
import pyarrow as pa

from recoup.core import ConfigError
from recoup.schema import Schema
from recoup.table.arrays import IntArray, NumpyArray, list_array, list_parts

_DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryFeature:
    """A sparse feature made from the log: the last `last` IDs of `source` in the key's earlier samples.

    Raises:
        ConfigError: `last` is not positive, or a bound is given without a label.
    """

    name: str
    source: str
    """Sparse feature whose IDs are remembered."""
    last: int = 50
    freeze: Literal["session", "day", "rolling"] = "session"
    group: str = "history"
    """Dedup group of the new feature."""
    label: str = ""
    """Only samples whose label of this name is at least `at_least` are remembered; "" = all."""
    at_least: float = 1.0

    def __post_init__(self) -> None:
        """Check the length."""
        if self.last <= 0:
            raise ConfigError(f"history {self.name!r}: expected last > 0, got {self.last}")


def cutoffs(freeze: Literal["session", "day", "rolling"], time: IntArray, session_start: IntArray) -> IntArray:
    """Return for each sample the time before which a sample must lie to be in its history."""
    return {"session": session_start, "day": time - time % _DAY_MS, "rolling": time}[freeze]


class HistoryBuilder:
    """Add history columns to sorted, cut batches."""

    def __init__(self, schema: Schema, histories: Sequence[HistoryFeature]) -> None:
        """Start before the first sample of the first key."""
        self._schema = schema
        self._histories = tuple(histories)
        self._kept = [(np.zeros(0, np.int64), np.zeros(0, np.int64)) for _ in histories]

    def extend(self, batch: pa.RecordBatch, new_key: NumpyArray, session_start: IntArray) -> pa.RecordBatch:
        """Return `batch` with one list<int64> column a history, after the others."""
        if not self._histories or batch.num_rows == 0:
            return _with_columns(batch, [h.name for h in self._histories], [_empty()] * len(self._histories))
        time = batch.column(self._schema.time).to_numpy(zero_copy_only=False)
        columns = []
        for i, history in enumerate(self._histories):
            cutoff = cutoffs(history.freeze, time, session_start)
            column, self._kept[i] = self._one(batch, history, (new_key, time, cutoff), self._kept[i])
            columns.append(column)
        return _with_columns(batch, [history.name for history in self._histories], columns)

    def _one(
        self,
        batch: pa.RecordBatch,
        history: HistoryFeature,
        stream: tuple[NumpyArray, IntArray, IntArray],
        kept: tuple[IntArray, IntArray],
    ) -> tuple[pa.Array, tuple[IntArray, IntArray]]:
        values, offsets = list_parts(batch.column(history.source))
        remember = np.ones(batch.num_rows, dtype=np.bool_)
        if history.label:
            remember = batch.column(history.label).to_numpy(zero_copy_only=False) >= history.at_least
        lengths = np.diff(offsets)
        room = len(kept[0]) + int(lengths[remember].sum())
        items, times = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
        items[: len(kept[0])], times[: len(kept[1])] = kept
        ends = np.empty((batch.num_rows, 2), dtype=np.int64)
        low, high = _windows((values, offsets, remember), stream, (items, times, len(kept[0])), history.last, ends)
        size = ends[:, 1] - ends[:, 0]
        out_offsets = np.zeros(len(size) + 1, dtype=np.int64)
        np.cumsum(size, out=out_offsets[1:])
        out = np.empty(int(out_offsets[-1]), dtype=np.int64)
        _gather(items, ends, out)
        return list_array(out, out_offsets, _history_type()), (items[low:high].copy(), times[low:high].copy())


def _history_type() -> pa.DataType:
    return pa.list_(pa.field("item", pa.int64(), nullable=False))


def _empty() -> pa.Array:
    return list_array(np.zeros(0, np.int64), np.zeros(1, np.int64), _history_type())


def _with_columns(batch: pa.RecordBatch, names: Sequence[str], columns: Sequence[pa.Array]) -> pa.RecordBatch:
    added = [pa.field(name, _history_type(), nullable=False) for name in names]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=pa.schema([*batch.schema, *added]))


@numba.njit(cache=True, nogil=True)
def _windows(
    source: tuple[NumpyArray, NumpyArray, NumpyArray],
    stream: tuple[NumpyArray, NumpyArray, NumpyArray],
    kept: tuple[NumpyArray, NumpyArray, int],
    last: int,
    ends: NumpyArray,
) -> tuple[int, int]:
    """Append the remembered items to `kept` and set each sample's window on them; return what is still needed."""
    values, offsets, remember = source
    new_key, time, cutoff = stream
    items, times, used = kept
    first = 0  # where the key's items begin
    until = 0  # items before this one are earlier than the cut-off
    for i in range(time.shape[0]):
        if new_key[i]:
            first = used
            until = used
        while until < used and times[until] < cutoff[i]:
            until += 1
        ends[i, 0] = max(first, until - last)
        ends[i, 1] = until
        if remember[i]:
            for j in range(offsets[i], offsets[i + 1]):
                items[used] = values[j]
                times[used] = time[i]
                used += 1
    return max(first, until - last), used


@numba.njit(cache=True, nogil=True)
def _gather(items: NumpyArray, ends: NumpyArray, out: NumpyArray) -> None:
    at = 0
    for i in range(ends.shape[0]):
        for j in range(ends[i, 0], ends[i, 1]):
            out[at] = items[j]
            at += 1
