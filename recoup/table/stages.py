"""The builder's stages, each resumable: samples to key buckets, buckets to encoded runs, runs to parts in time order.

    log ──spool──> key buckets ──sort, encode──> one run a bucket, cut at R times ──by time range──> parts

A bucket holds whole keys, so it is sorted and encoded alone, in memory; a bucket too large for that (one huge key) is
sorted by DuckDB, which spills. A run is an Arrow IPC file with exactly R batches: batch r holds the sessions of time
range r. Finished runs survive a kill; `state.json` says that the spool is complete and what it was made from.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recoup.core import sync_folder, temporary_path, write_json_atomic
from recoup.schema import Schema, sample_schema
from recoup.table.arrays import IntArray, compute
from recoup.table.encode import SessionEncoder
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean
from recoup.table.layout import CHUNK, KEY, NUM_SAMPLES, START, row_schema
from recoup.table.manifest import Counts
from recoup.table.order import sort_stream
from recoup.table.sampling import sampled_sessions
from recoup.table.sessions import SessionRule
from recoup.table.spool import Spool

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
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
    sample_sessions: float
    seed: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """The encoded rows of one bucket: batch r holds time range r, sorted by session start, key and chunk."""

    ranges: tuple[pa.RecordBatch, ...] | None
    path: Path
    counts: Counts

    def read(self, number: int) -> pa.RecordBatch:
        """Return the rows of one time range."""
        if self.ranges is not None:
            return self.ranges[number]
        with pa.OSFile(str(self.path), "rb") as file:
            return pa.ipc.open_file(file).get_batch(number)


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
    table = pa.Table.from_batches(spool.read(bucket), target).combine_chunks()
    indices = sort_indices(table, order)
    for batch in table.to_batches():
        for first in range(0, len(indices), _SORT_BATCH):
            yield batch.take(indices.slice(first, _SORT_BATCH))


def sort_indices(rows: pa.Table | pa.RecordBatch, order: list[str]) -> pa.Array:
    """Return the stable ascending order of rows by some columns, as indices."""
    keys = pa.Table.from_arrays([rows.column(name) for name in order], names=order)
    return compute.sort_indices(keys, sort_keys=[(name, "ascending") for name in order])


def encode_bucket(
    spool: Spool, bucket: int, encoding: Encoding, bounds: list[int]
) -> tuple[list[pa.RecordBatch], Counts]:
    """Return the encoded rows of a bucket, one batch a time range, and what was counted."""
    encoder = SessionEncoder(encoding.schema, encoding.rule, encoding.histories, encoding.means)
    target = row_schema(encoder.schema)
    encoded: list[pa.RecordBatch] = []
    for batch in sorted_bucket(spool, bucket, encoding):
        encoded += encoder.encode(batch)
    encoded += encoder.finish()
    rows = _one_batch(encoded, target)
    before = _samples(rows)
    if encoding.sample_sessions < 1.0:
        rows = rows.filter(pa.array(sampled_sessions(rows, encoding.sample_sessions, encoding.seed)))
    rows = rows.take(sort_indices(rows, [START, KEY, CHUNK]))
    ends = np.searchsorted(rows.column(START).to_numpy(), np.array(bounds, dtype=np.int64), side="left")
    cuts = [0, *ends.tolist(), rows.num_rows]
    pieces = [rows.slice(low, max(0, high - low)) for low, high in pairwise(cuts)]
    counts = Counts(
        samples=_samples(rows),
        sessions=int(np.count_nonzero(rows.column(CHUNK).to_numpy() == 0)),
        rows=rows.num_rows,
        repeated=encoder.num_repeated,
        sampled_out=before - _samples(rows),
    )
    return pieces, counts


def write_run(path: Path, pieces: list[pa.RecordBatch], counts: Counts) -> Run:
    """Write a run and its counts; the file's presence means that it is whole."""
    temporary = temporary_path(path)
    schema = pieces[0].schema.with_metadata({"counts": json.dumps(_plain(counts))})
    with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, schema, options=_OPTIONS) as writer:
        for piece in pieces:
            writer.write_batch(piece.replace_schema_metadata(schema.metadata))
    temporary.replace(path)
    return Run(None, path, counts)


def read_run(path: Path) -> Run:
    """Open a finished run of an earlier attempt."""
    with pa.OSFile(str(path), "rb") as file:
        metadata: Any = pa.ipc.open_file(file).schema.metadata
    return Run(None, path, Counts(**json.loads(metadata[b"counts"])))


def rows_in_time_order(
    runs: list[Run], schema: pa.Schema, num_ranges: int, *, skip: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield all rows but the first `skip` by session start, key and chunk, one time range after the other."""
    for number in range(num_ranges):
        pieces = [run.read(number).replace_schema_metadata(None) for run in runs]
        rows = _one_batch([piece for piece in pieces if piece.num_rows], schema)
        if rows.num_rows > skip:
            yield rows.take(sort_indices(rows, [START, KEY, CHUNK]).slice(skip))
        skip = max(0, skip - rows.num_rows)


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Say that the spool is complete."""
    write_json_atomic(folder / "state.json", state)
    sync_folder(folder)


def _one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=schema)


def _samples(rows: pa.RecordBatch) -> int:
    counts: IntArray = rows.column(NUM_SAMPLES).to_numpy(zero_copy_only=False)
    return int(counts.sum())


def _plain(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in Counts.__dataclass_fields__}
