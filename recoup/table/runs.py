"""Runs: the encoded rows of one bucket, by session start; and their merge, range by range of starts.

A run is an Arrow IPC file of small batches. Its schema's metadata holds what was counted and, for each batch, its
first and last start and its size, so that a range of starts is read from every run without reading the rest. A run's
presence under its name means that it is whole. Small builds keep their runs in memory.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recoup.core import from_table, temporary_path, to_table
from recoup.table.layout import START
from recoup.table.manifest import Counts
from recoup.table.stages import in_start_order, one_batch

_PIECE_BYTES = 256 << 10  # of a batch: 64 runs, each with a batch at a range's edge, are 16 MB


@dataclass(frozen=True, slots=True)
class Piece:
    """One batch of a run."""

    first_start: int
    last_start: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run; `rows` if it was kept in memory."""

    path: Path
    counts: Counts
    pieces: tuple[Piece, ...]
    rows: pa.RecordBatch | None = None

    def open(self) -> "OpenRun":
        """Return the run, open for reading range by range."""
        return OpenRun(self)


class OpenRun:
    """A run's file, opened once: a build of n ranges reads n times from every run. State: the open file."""

    def __init__(self, run: Run) -> None:
        """Open the file, unless the rows are in memory."""
        self._run = run
        self._firsts = np.array([piece.first_start for piece in run.pieces], dtype=np.int64)
        self._lasts = np.array([piece.last_start for piece in run.pieces], dtype=np.int64)
        self._batches: Any = None if run.rows is not None else pa.ipc.open_file(pa.OSFile(str(run.path), "rb"))

    def read(self, low: int, high: int) -> list[pa.RecordBatch]:
        """Return the rows with low <= session start < high."""
        if self._run.rows is not None:
            return _between(self._run.rows, low, high)
        overlapping = np.flatnonzero((self._firsts < high) & (self._lasts >= low)).tolist()
        batches = [self._batches.get_batch(i).replace_schema_metadata(None) for i in overlapping]
        return [rows for batch in batches for rows in _between(batch, low, high)]


def write_run(path: Path, rows: pa.RecordBatch, counts: Counts, *, in_memory: bool) -> Run:
    """Write the rows of a bucket, in order of start, and what was counted; or only return them."""
    size = max(1, rows.num_rows * _PIECE_BYTES // max(1, rows.nbytes))
    batches = [rows.slice(first, size) for first in range(0, rows.num_rows, size)]
    bytes_a_row = rows.nbytes / max(1, rows.num_rows)  # to weigh every piece would cost more than to write it
    pieces = tuple(_piece(batch, bytes_a_row) for batch in batches)
    if in_memory:
        return Run(path, counts, pieces, rows)
    facts = {"counts": to_table(counts), "pieces": [[p.first_start, p.last_start, p.bytes] for p in pieces]}
    schema = rows.schema.with_metadata({"run": json.dumps(facts)})
    temporary = temporary_path(path)
    with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    temporary.replace(path)
    return Run(path, counts, pieces)


def read_run(path: Path) -> Run:
    """Open a finished run of an earlier attempt."""
    with pa.OSFile(str(path), "rb") as file:
        metadata: Any = pa.ipc.open_file(file).schema.metadata
    facts = json.loads(metadata[b"run"])
    return Run(path, from_table(Counts, facts["counts"], where=str(path)), tuple(Piece(*p) for p in facts["pieces"]))


def start_bounds(runs: Sequence[Run], range_bytes: int) -> list[int]:
    """Return rising starts b such that the rows with b[i] <= start < b[i + 1] are about `range_bytes` in all runs."""
    pieces = sorted(((p.first_start, p.bytes) for run in runs for p in run.pieces), key=lambda piece: piece[0])
    bounds, size = [-(2**63)], 0
    for start, num_bytes in pieces:
        if size >= range_bytes and start > bounds[-1]:
            bounds.append(start)
            size = 0
        size += num_bytes
    return [*bounds, 2**63 - 1]


def rows_in_order(
    runs: Sequence[Run], schema: pa.Schema, *, range_bytes: int, skip: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield all rows but the first `skip` by session start, key and chunk, in batches of about `range_bytes`."""
    opened = [run.open() for run in runs]
    for low, high in pairwise(start_bounds(runs, range_bytes)):
        rows = one_batch([batch for run in opened for batch in run.read(low, high)], schema)
        if rows.num_rows > skip:
            yield in_start_order(rows).slice(skip)
        skip = max(0, skip - rows.num_rows)


def _piece(rows: pa.RecordBatch, bytes_a_row: float) -> Piece:
    starts = rows.column(START)
    return Piece(starts[0].as_py(), starts[len(starts) - 1].as_py(), round(rows.num_rows * bytes_a_row))


def _between(rows: pa.RecordBatch, low: int, high: int) -> list[pa.RecordBatch]:
    starts = rows.column(START).to_numpy()
    first, last = np.searchsorted(starts, np.array([low, high], dtype=np.int64), side="left").tolist()
    return [rows.slice(first, last - first)] if last > first else []
