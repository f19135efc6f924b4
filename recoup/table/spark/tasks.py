"""What Spark's tasks run: the encoder on a partition sorted by key and time, and the writer on one sorted by start.

A task may be retried or run twice (speculation): each attempt writes a part of its own name and reports it; only what
Spark accepts as the task's result reaches the driver, and the manifest names only that.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recoup.core import from_table, to_table
from recoup.log import conform
from recoup.schema import DedupGroup, Schema
from recoup.table.encode import SessionEncoder, encode_sessions
from recoup.table.errors import TableError
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean
from recoup.table.layout import CHUNK, KEY, NUM_SAMPLES, START, row_schema
from recoup.table.order import as_declared
from recoup.table.sampling import sampled_sessions
from recoup.table.sessions import SessionRule
from recoup.table.writer import TableWriter, WriterConfig

Batches = Iterable[pa.RecordBatch]


def encode_task(plan: dict[str, Any]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the function that turns a partition's sorted samples into table rows."""

    def encode(batches: Batches) -> Iterator[pa.RecordBatch]:
        source = from_table(Schema, plan["source"])
        encoder = SessionEncoder(
            source,
            from_table(SessionRule, plan["sessions"]),
            tuple(from_table(HistoryFeature, one) for one in plan["histories"]),
            tuple(from_table(HistoryMean, one) for one in plan["means"]),
            tuple(from_table(DedupGroup, one) for one in plan["groups"]),
        )
        yield from encode_sessions(
            (conform(batch, source, plan["where"]) for batch in _in_order(batches, source)), encoder
        )

    return encode


def write_task(plan: dict[str, Any]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the function that writes a partition's rows, and yields one row: JSON of its parts and counts."""

    def write(batches: Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        schema = row_schema(from_table(Schema, plan["schema"]))
        prefix = f"part-{plan['generation']:04d}-{context.partitionId():05d}-{context.taskAttemptId():08d}"
        writer = TableWriter(Path(plan["path"]), schema, from_table(WriterConfig, plan["writer"]), prefix=prefix)
        sampled_out = sessions = 0
        last: tuple[int, int] | None = None
        for batch in batches:
            rows = as_declared(batch, schema)
            last = _check_order(rows, last)
            keep = np.ones(rows.num_rows, dtype=np.bool_)
            if plan["sample_sessions"] < 1.0:
                keep = sampled_sessions(rows, plan["sample_sessions"], plan["seed"])
            samples = rows.column(NUM_SAMPLES).to_numpy()
            sampled_out += int(samples[~keep].sum())
            kept = rows.filter(pa.array(keep))
            sessions += int(np.count_nonzero(kept.column(CHUNK).to_numpy() == 0))
            if kept.num_rows:
                writer.write(kept)
        parts = [to_table(part) for part in writer.close()]
        report = {"partition": context.partitionId(), "parts": parts, "sampled_out": sampled_out, "sessions": sessions}
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(report)])], names=["report"])

    return write


def _in_order(batches: Batches, source: Schema) -> Iterator[pa.RecordBatch]:
    """Pass on the batches; refuse a partition that Spark did not sort: an unsorted one would split sessions."""
    last: tuple[Any, int] | None = None
    for batch in batches:
        if batch.num_rows:
            time = batch.column(source.time).to_numpy(zero_copy_only=False)
            key = batch.column(source.key)
            falls = np.flatnonzero(time[1:] < time[:-1])
            same_key = [int(i) for i in falls if key[int(i)] == key[int(i) + 1]]
            first = (key[0].as_py(), int(time[0]))
            if same_key or (last is not None and last[0] == first[0] and last[1] > first[1]):
                raise TableError(
                    f"expected samples by key and time in a Spark partition, got key {first[0]!r} unsorted"
                )
            last = (key[batch.num_rows - 1].as_py(), int(time[-1]))
        yield batch


def _check_order(rows: pa.RecordBatch, last: tuple[int, int] | None) -> tuple[int, int] | None:
    start = rows.column(START).to_numpy()
    if rows.num_rows == 0:
        return last
    if np.any(start[1:] < start[:-1]) or (last is not None and last[0] > int(start[0])):
        raise TableError(f"expected rows by session start in a Spark partition, got {int(start[0])} out of order")
    return int(start[-1]), int(rows.column(CHUNK).to_numpy()[-1])


ROW_ORDER = (START, KEY, CHUNK)
