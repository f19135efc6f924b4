"""The encoder: a stream of samples sorted by key, time and event id becomes rows of the session table.

It knows no engine: DuckDB, Spark (through mapInArrow) or a test feeds it, batch after batch. A row is complete when
the next row begins, so at most `max_samples_per_row` samples wait for the next batch.
Guarantee: the rows hold exactly the samples that came, less the repeated ones, which are counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recoup.jagged import equality
from recoup.schema import DedupGroup, Schema, weights_column
from recoup.table import versions
from recoup.table.added import regrouped, with_histories
from recoup.table.arrays import BoolArray, IntArray, NumpyArray, compute, list_array, list_parts
from recoup.table.histories import HistoryBuilder, HistoryFeature
from recoup.table.history_means import HistoryMean, MeanBuilder
from recoup.table.layout import (
    CHUNK,
    EVENT_ID,
    KEY,
    NUM_SAMPLES,
    START,
    TIME,
    inverse_column,
    length_column,
    row_schema,
    start_column,
    values_column,
    weights_buffer_column,
)
from recoup.table.sessions import SessionCutter, SessionRule

ENCODE_SAMPLES = 8192
"""Samples encoded at a time; larger batches gain nothing once a batch leaves the L2 cache."""


class SessionEncoder:
    """Turn sorted batches of `sample_schema(source)` into batches of `row_schema(schema)`.

    `schema` is the source's schema with the histories added and, if given, regrouped.
    State: the cut, the histories and the open row.
    """

    def __init__(
        self,
        source: Schema,
        rule: SessionRule,
        histories: Sequence[HistoryFeature] = (),
        means: Sequence[HistoryMean] = (),
        groups: Sequence[DedupGroup] = (),
        border: int | None = None,
    ) -> None:
        """Start before the first sample; no session goes over the time `border`.

        Raises:
            SchemaError: a history or a column name contradicts the schema.
        """
        self.schema = regrouped(with_histories(source, histories, means), groups)
        self.num_repeated = 0
        self.num_samples = 0
        self.num_sessions = 0
        self._source = source
        self._rows = row_schema(self.schema)
        self._cutter = SessionCutter(rule, border)
        self._histories = HistoryBuilder(source, histories)
        self._means = MeanBuilder(means, source.time)
        self._waiting: list[_Cut] = []
        numbers = len(source.labels) + len(self.schema.dense) + 3 * len(self.schema.sparse) + 4
        self._fixed_bytes = 4 * numbers + sum(8 * history.last for history in histories)

    def encode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are complete after the next `batch`."""
        for first in range(0, batch.num_rows, ENCODE_SAMPLES):
            self._waiting.append(self._cut(batch.slice(first, ENCODE_SAMPLES)))
            if sum(cut.samples.num_rows for cut in self._waiting) >= ENCODE_SAMPLES:
                yield from self._flush(last=False)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the last rows."""
        yield from self._flush(last=True)

    def _cut(self, batch: pa.RecordBatch) -> "_Cut":
        source = self._source
        event_id = batch.column(source.event_id) if source.event_id else None
        time = batch.column(source.time).to_numpy(zero_copy_only=False)
        cut = self._cutter.cut(batch.column(source.key), time, event_id, self._sizes(batch))
        start, chunk, new_row, new_key = cut.session_start, cut.chunk, cut.new_row, cut.new_key
        if cut.repeated.any():
            keep = ~cut.repeated
            batch = batch.filter(pa.array(keep))
            start, chunk, new_row, new_key = start[keep], chunk[keep], new_row[keep], new_key[keep]
            self.num_repeated += int(cut.repeated.sum())
        self.num_samples += batch.num_rows
        self.num_sessions += int(np.count_nonzero(new_row & (chunk == 0)))
        extended = self._means.extend(self._histories.extend(batch, new_key, start), new_key, start)
        return _Cut(extended, start, chunk, new_row)

    def _sizes(self, batch: pa.RecordBatch) -> IntArray:
        """Return an upper bound of what each sample takes in a row: its own lists, a window and an inverse each."""
        sizes = np.full(batch.num_rows, self._fixed_bytes, dtype=np.int64)
        for feature in self._source.sparse:
            sizes += np.diff(list_parts(batch.column(feature.name))[1]) * (12 if feature.weighted else 8)
        if self._source.event_id:
            sizes += compute.binary_length(batch.column(self._source.event_id)).to_numpy(zero_copy_only=False)
        return sizes

    def _flush(self, *, last: bool) -> Iterator[pa.RecordBatch]:
        if not self._waiting:
            return
        cut = _join(self._waiting)
        heads = np.flatnonzero(cut.new_row)
        size = cut.samples.num_rows
        complete = size if last else int(heads[-1]) if len(heads) else 0
        self._waiting = [cut.part(complete, size)] if complete < size else []
        if complete:
            yield encode_rows(cut.part(0, complete), self.schema, self._rows)


@dataclass(frozen=True, slots=True)
class _Cut:
    samples: pa.RecordBatch
    session_start: IntArray
    chunk: IntArray
    new_row: BoolArray

    def part(self, first: int, last: int) -> "_Cut":
        pieces = self.samples.slice(first, last - first)
        return _Cut(pieces, self.session_start[first:last], self.chunk[first:last], self.new_row[first:last])


def _join(cuts: Sequence[_Cut]) -> _Cut:
    if len(cuts) == 1:
        return cuts[0]
    return _Cut(
        pa.concat_batches([cut.samples for cut in cuts]),
        np.concatenate([cut.session_start for cut in cuts]),
        np.concatenate([cut.chunk for cut in cuts]),
        np.concatenate([cut.new_row for cut in cuts]),
    )


def encode_sessions(batches: Iterable[pa.RecordBatch], encoder: SessionEncoder) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows of a whole sorted stream."""
    for batch in batches:
        yield from encoder.encode(batch)
    yield from encoder.finish()


def encode_rows(cut: _Cut, schema: Schema, rows: pa.Schema) -> pa.RecordBatch:
    """Return the rows of samples that begin and end with a row."""
    samples, heads = cut.samples, np.flatnonzero(cut.new_row)
    assert samples.num_rows == 0 or heads[0] == 0, "the first sample begins a row"
    row_first = np.append(heads, samples.num_rows).astype(np.int64)
    columns: dict[str, pa.Array | NumpyArray] = {
        KEY: samples.column(schema.key).take(pa.array(heads)),
        START: cut.session_start[heads],
        CHUNK: cut.chunk[heads].astype(np.int32),
        NUM_SAMPLES: np.diff(row_first).astype(np.int32),
    }
    per_sample = {TIME: schema.time, **{name: name for name in (*schema.labels, *schema.dense_names)}}
    if schema.event_id:
        per_sample[EVENT_ID] = schema.event_id
    for column, source in per_sample.items():
        columns[column] = list_array(samples.column(source), row_first, rows.field(column).type)
    for group in schema.groups:
        if group.name:
            columns |= _encode_group(samples, schema, group.name, group.features, (cut.new_row, row_first), rows)
        else:
            for feature in group.features:
                columns |= _encode_loose(samples, schema, feature, row_first, rows)
    arrays = [columns[field.name] for field in rows]
    typed = [a if isinstance(a, pa.Array) else pa.array(a, f.type) for a, f in zip(arrays, rows, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=rows)


@dataclass(frozen=True, slots=True)
class _Lists:
    values: NumpyArray
    weights: NumpyArray
    offsets: IntArray


def _lists(samples: pa.RecordBatch, schema: Schema, feature: str) -> _Lists:
    values, offsets = list_parts(samples.column(feature))
    if not schema.sparse_feature(feature).weighted:
        return _Lists(values, np.zeros(0, dtype=np.int32), offsets)
    weights, weight_offsets = list_parts(samples.column(weights_column(feature)))
    low, high = int(offsets[0]), int(offsets[-1])
    values, offsets = values[low:high], offsets - low
    weights = weights[int(weight_offsets[0]) : int(weight_offsets[-1])]
    assert len(weights) == len(values), "one weight an ID"
    return _Lists(values, np.ascontiguousarray(weights).view(np.int32), offsets)


def _encode_loose(
    samples: pa.RecordBatch, schema: Schema, feature: str, row_first: IntArray, rows: pa.Schema
) -> dict[str, pa.Array]:
    lists = _lists(samples, schema, feature)
    low, high = int(lists.offsets[0]), int(lists.offsets[-1])
    row_offsets = lists.offsets[row_first] - low
    lengths = np.diff(lists.offsets).astype(np.int32)
    values, length = values_column(feature), length_column(feature)
    columns = {
        values: list_array(lists.values[low:high], row_offsets, rows.field(values).type),
        length: list_array(lengths, row_first, rows.field(length).type),
    }
    if len(lists.weights) or schema.sparse_feature(feature).weighted:
        weights = weights_buffer_column(feature)
        floats = lists.weights.view(np.float32)
        columns[weights] = list_array(floats, row_offsets, rows.field(weights).type)
    return columns


def _encode_group(
    samples: pa.RecordBatch,
    schema: Schema,
    group: str,
    features: Sequence[str],
    cut: tuple[BoolArray, IntArray],
    rows: pa.Schema,
) -> dict[str, pa.Array]:
    new_row, row_first = cut
    lists = {feature: _lists(samples, schema, feature) for feature in features}
    head = new_row.copy()
    for one in lists.values():
        equality.differs_from_previous(one.values, one.weights, one.offsets, new_row, head)
    hashes = np.zeros(len(head), dtype=np.uint64)
    for one in lists.values():
        equality.add_hashes(one.values, one.weights, one.offsets, head, hashes)
    proposed = np.empty(len(head), dtype=np.int64)
    equality.propose(row_first, head, hashes, proposed)
    for one in lists.values():
        equality.refuse_unequal(one.values, one.weights, one.offsets, proposed)
    inverse = np.empty(len(head), dtype=np.int32)
    sample_of = np.empty(int(head.sum()), dtype=np.int64)
    version_first = np.empty(len(row_first), dtype=np.int64)
    count = equality.number_versions(row_first, head, proposed, inverse, sample_of, version_first)
    columns = {inverse_column(group): list_array(inverse, row_first, rows.field(inverse_column(group)).type)}
    for feature in features:
        columns |= _lay(lists[feature], feature, (sample_of[:count], version_first), rows)
    return columns


def _lay(lists: _Lists, feature: str, places: tuple[IntArray, IntArray], rows: pa.Schema) -> dict[str, pa.Array]:
    sample_of, version_first = places
    room = int((lists.offsets[sample_of + 1] - lists.offsets[sample_of]).sum())
    weighted = weights_buffer_column(feature) in rows.names
    buffer = (np.empty(room, dtype=np.int64), np.empty(room if weighted else 0, dtype=np.int32))
    start, length = np.empty(len(sample_of), dtype=np.int32), np.empty(len(sample_of), dtype=np.int32)
    buffer_first = np.empty(len(version_first), dtype=np.int64)
    source = (lists.values, lists.weights, lists.offsets)
    used = versions.lay_windows(source, sample_of, version_first, buffer, (start, length, buffer_first))
    columns: dict[str, tuple[NumpyArray, IntArray]] = {
        values_column(feature): (buffer[0][:used], buffer_first),
        start_column(feature): (start, version_first),
        length_column(feature): (length, version_first),
    }
    if weighted:
        columns[weights_buffer_column(feature)] = (buffer[1][:used].view(np.float32), buffer_first)
    return {name: list_array(items, offsets, rows.field(name).type) for name, (items, offsets) in columns.items()}
