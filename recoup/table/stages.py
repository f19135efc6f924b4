"""The builder's stages, each resumable: samples to key buckets, buckets to encoded runs, runs to parts in time order.

    log ──spool──> key buckets ──sort, encode──> one run a bucket, by start ──range by range of starts──> parts

A bucket holds whole keys, so it is sorted and encoded alone, in memory; a bucket too large for that (one huge key) is
sorted by DuckDB, which spills. Its rows, by session start, are a run (`runs`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from recoup.schema import DedupGroup, Schema, sample_schema
from recoup.table.arrays import IntArray, compute
from recoup.table.encode import SessionEncoder
from recoup.table.gather import take_rows
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean
from recoup.table.layout import CHUNK, KEY, NUM_SAMPLES, START, row_schema
from recoup.table.manifest import Counts
from recoup.table.order import sort_stream
from recoup.table.sampling import sampled_sessions
from recoup.table.sessions import SessionRule
from recoup.table.spool import Spool

_SORT_BATCH = 8192


@dataclass(slots=True)
class TimeSample:
    """Evenly spaced times of every batch, from which the ranges are cut; grows by 32 numbers a batch."""

    times: list[int] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch, column: str) -> None:
        """Remember some times of `batch`."""
        times = np.sort(batch.column(column).to_numpy(zero_copy_only=False))
        if len(times):
            self.times += times[np.linspace(0, len(times) - 1, 32).astype(np.int64)].tolist()

    def bounds(self, num_ranges: int) -> list[int]:
        """Return the num_ranges - 1 times at which a range ends and the next begins."""
        if not self.times or num_ranges == 1:
            return [0] * (num_ranges - 1)
        return np.quantile(self.times, np.arange(1, num_ranges) / num_ranges).astype(np.int64).tolist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """What a bucket is encoded with."""

    schema: Schema
    rule: SessionRule
    histories: tuple[HistoryFeature, ...]
    means: tuple[HistoryMean, ...]
    groups: tuple[DedupGroup, ...]
    sample_sessions: float
    seed: int
    memory_bytes: int
    border: int | None = None
    """Of an append: sessions that begin before this time are in the table already."""


def sorted_bucket(spool: Spool, bucket: int, encoding: Encoding) -> Iterator[pa.RecordBatch]:
    """Yield a bucket's samples by key, time and event id; ties keep their order of arrival where it fits memory."""
    schema = encoding.schema
    order = [name for name in (schema.key, schema.time, schema.event_id) if name]
    target = sample_schema(schema)
    if spool.bytes[bucket] > encoding.memory_bytes // 2:
        yield from sort_stream(
            spool.read(bucket),
            target,
            order,
            memory_bytes=max(encoding.memory_bytes, 384_000_000),
            spill=spool.path(bucket).with_suffix(".sort"),
            batch_rows=_SORT_BATCH,
        )
        return
    samples = spool.whole(bucket)
    indices = sort_indices(samples, order).to_numpy().astype(np.int64)
    for first in range(0, len(indices), _SORT_BATCH):
        yield take_rows(samples, indices[first : first + _SORT_BATCH], target)


def sort_indices(rows: pa.Table | pa.RecordBatch, order: list[str]) -> pa.Array:
    """Return the stable ascending order of rows by some columns, as indices."""
    keys = pa.Table.from_arrays([rows.column(name) for name in order], names=order)
    return compute.sort_indices(keys, sort_keys=[(name, "ascending") for name in order])


def encode_bucket(spool: Spool, bucket: int, encoding: Encoding) -> tuple[pa.RecordBatch, Counts]:
    """Return the encoded rows of a bucket by session start, key and chunk, and what was counted."""
    made = (encoding.histories, encoding.means, encoding.groups)
    encoder = SessionEncoder(encoding.schema, encoding.rule, *made, border=encoding.border)
    encoded: list[pa.RecordBatch] = []
    for batch in sorted_bucket(spool, bucket, encoding):
        encoded += encoder.encode(batch)
    encoded += encoder.finish()
    rows = one_batch(encoded, row_schema(encoder.schema))
    encoded.clear()
    if encoding.border is not None:
        rows = rows.filter(compute.greater_equal(rows.column(START), encoding.border))
    before = _samples(rows)
    if encoding.sample_sessions < 1.0:
        rows = rows.filter(pa.array(sampled_sessions(rows, encoding.sample_sessions, encoding.seed)))
    rows = in_start_order(rows)
    counts = Counts(
        samples=_samples(rows),
        sessions=int(np.count_nonzero(rows.column(CHUNK).to_numpy() == 0)),
        rows=rows.num_rows,
        repeated=encoder.num_repeated,
        sampled_out=before - _samples(rows),
    )
    return rows, counts


def in_start_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows by session start, key and chunk: the table's order."""
    return take_rows(rows, sort_indices(rows, [START, KEY, CHUNK]).to_numpy().astype(np.int64))


def one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return all rows as one batch; of `schema` if there are none."""
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=schema)


def _samples(rows: pa.RecordBatch) -> int:
    counts: IntArray = rows.column(NUM_SAMPLES).to_numpy(zero_copy_only=False)
    return int(counts.sum())
