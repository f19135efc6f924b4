"""Check everything checkable of a table: files, checksums, counts, order, codes, windows, inverses, whole sessions."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from recoup.core import Progress, no_progress
from recoup.schema import Schema
from recoup.table.arrays import IntArray, list_parts
from recoup.table.coded import coding_problems
from recoup.table.errors import TableError
from recoup.table.layout import (
    CHUNK,
    EVENT_ID,
    KEY,
    NUM_SAMPLES,
    START,
    TIME,
    inverse_column,
    length_column,
    start_column,
    values_column,
    weights_buffer_column,
)
from recoup.table.manifest import PARTS
from recoup.table.sampling import key_hashes
from recoup.table.session_table import SessionTable
from recoup.table.strays import strays
from recoup.table.writer import file_checksum


@dataclass(slots=True)
class _Totals:
    rows: int = 0
    samples: int = 0
    sessions: int = 0
    last_start: int | None = None
    seen: set[tuple[int, int, int]] = field(default_factory=set)
    """Rows of the last session start: rows are in order of start, so twins stand among equal starts."""


def verify_table(table: SessionTable, *, progress: Progress = no_progress) -> list[str]:
    """Return what is wrong, one line a finding; an intact table gives none.

    Cost: reads every byte twice: once for the checksums, once to decode. Memory: a few rows.
    """
    problems: list[str] = []
    for number, part in enumerate(table.manifest.parts):
        problems += _check_file(table, part.name, part.bytes, part.checksum)
        progress("verify files", number + 1, len(table.manifest.parts))
    if problems:
        return problems
    left = strays(table.path, table.manifest)
    problems += [f"'{PARTS}/{name}' is not in the manifest: left by a stopped build" for name in left]
    totals = _Totals()
    try:
        for part in table.manifest.parts:
            problems += coding_problems(table.part_path(part.name), table.schema.sparse_names)
        for rows in table.iter_rows():
            problems += [f"row {totals.rows + row}: {text}" for row, text in _check_rows(rows, table.schema)]
            problems += _check_order(rows, totals)
            progress("verify rows", totals.rows, table.manifest.counts.rows)
    except TableError as err:
        return [*problems, str(err)]
    counts = table.manifest.counts
    for name in ("rows", "samples", "sessions"):
        if getattr(totals, name) != getattr(counts, name):
            problems.append(f"{name}: expected {getattr(counts, name)} (the manifest), got {getattr(totals, name)}")
    return problems


def _check_file(table: SessionTable, name: str, size: int, checksum: str) -> list[str]:
    path = table.part_path(name)
    if not path.is_file():
        return [f"part '{path}': expected a file, got none"]
    if path.stat().st_size != size:
        return [f"part '{path}': expected {size} bytes, got {path.stat().st_size}"]
    found = file_checksum(path)
    return [] if found == checksum else [f"part '{path}': expected checksum {checksum}, got {found}"]


def _check_order(rows: pa.RecordBatch, totals: _Totals) -> list[str]:
    problems: list[str] = []
    start, chunk = (rows.column(name).to_numpy(zero_copy_only=False) for name in (START, CHUNK))
    samples = rows.column(NUM_SAMPLES).to_numpy(zero_copy_only=False)
    if rows.num_rows and np.any(start[1:] < start[:-1]):
        problems.append(f"rows after {totals.rows}: expected session starts in order")
    if totals.last_start is not None and rows.num_rows and int(start[0]) < totals.last_start:
        problems.append(f"row {totals.rows}: expected a session start of at least {totals.last_start}, got {start[0]}")
    for identity in zip(key_hashes(rows.column(KEY)).tolist(), start.tolist(), chunk.tolist(), strict=True):
        if identity[1] != totals.last_start:
            totals.seen.clear()
        totals.last_start = identity[1]
        if identity in totals.seen:
            problems.append(f"a session stands twice: start {identity[1]}, chunk {identity[2]}")
        totals.seen.add(identity)
    totals.rows += rows.num_rows
    totals.samples += int(samples.sum())
    totals.sessions += int((chunk == 0).sum())
    return problems


def _check_rows(rows: pa.RecordBatch, schema: Schema) -> Iterator[tuple[int, str]]:
    samples = rows.column(NUM_SAMPLES).to_numpy(zero_copy_only=False).astype(np.int64)
    event_id = (EVENT_ID,) if schema.event_id else ()
    for name in (TIME, *event_id, *schema.labels, *schema.dense_names):
        yield from _lengths(rows, name, samples, "samples")
    yield from _check_times(rows, samples)
    for group in schema.groups:
        if not group.name:
            for feature in group.features:
                yield from _check_loose(rows, schema, feature, samples)
            continue
        yield from _lengths(rows, inverse_column(group.name), samples, "samples")
        versions = _sizes(rows, length_column(group.features[0]))
        inverse, offsets = list_parts(rows.column(inverse_column(group.name)))
        yield from _inside(inverse, offsets, versions, f"inverse of {group.name!r}")
        for feature in group.features:
            yield from _check_windows(rows, schema, feature, versions)


def _check_times(rows: pa.RecordBatch, samples: IntArray) -> Iterator[tuple[int, str]]:
    times, offsets = list_parts(rows.column(TIME))
    if np.any(samples < 1) or np.any(np.diff(offsets) != samples):
        for row in np.flatnonzero(samples < 1):
            yield int(row), f"expected at least one sample, got {int(samples[row])}"
        return  # the lengths are found wrong elsewhere
    times = times[offsets[0] : offsets[-1]]
    row_of = np.repeat(np.arange(rows.num_rows), samples)
    for sample in np.flatnonzero((times[1:] < times[:-1]) & (row_of[1:] == row_of[:-1])):
        yield int(row_of[sample]), f"expected times in order, got {times[sample]} before {times[sample + 1]}"
    firsts = times[(offsets - offsets[0])[:-1]]
    start, chunk = (rows.column(name).to_numpy(zero_copy_only=False) for name in (START, CHUNK))
    for row in np.flatnonzero(np.where(chunk == 0, firsts != start, firsts < start)):
        yield int(row), f"expected its first sample at the session start {start[row]}, got {firsts[row]}"


def _check_loose(rows: pa.RecordBatch, schema: Schema, feature: str, samples: IntArray) -> Iterator[tuple[int, str]]:
    yield from _lengths(rows, length_column(feature), samples, "samples")
    length, offsets = list_parts(rows.column(length_column(feature)))
    sums = np.add.reduceat(np.append(length, 0).astype(np.int64), offsets[:-1]) if len(offsets) > 1 else np.zeros(0)
    sums = np.where(np.diff(offsets) > 0, sums, 0)
    held = _sizes(rows, values_column(feature))
    for row in np.flatnonzero(sums != held):
        yield int(row), f"{feature!r}: expected {int(sums[row])} IDs (the sum of its lengths), got {int(held[row])}"
    yield from _check_weights(rows, schema, feature, held)


def _check_windows(rows: pa.RecordBatch, schema: Schema, feature: str, versions: IntArray) -> Iterator[tuple[int, str]]:
    for column in (start_column(feature), length_column(feature)):
        yield from _lengths(rows, column, versions, "versions")
    start, offsets = list_parts(rows.column(start_column(feature)))
    length, _ = list_parts(rows.column(length_column(feature)))
    held = _sizes(rows, values_column(feature))
    row_of = np.repeat(np.arange(len(held)), np.diff(offsets))
    part = slice(int(offsets[0]), int(offsets[-1]))
    first, size = start[part].astype(np.int64), length[part].astype(np.int64)
    if len(first) == len(size) == len(row_of):
        bad = (first < 0) | (size < 0) | (first + size > held[row_of])
        for version in np.flatnonzero(bad):
            row = int(row_of[version])
            window = f"[{first[version]}, {first[version] + size[version]})"
            yield row, f"{feature!r}: expected a window inside [0, {held[row]}), got {window}"
    yield from _check_weights(rows, schema, feature, held)


def _check_weights(rows: pa.RecordBatch, schema: Schema, feature: str, held: IntArray) -> Iterator[tuple[int, str]]:
    if schema.sparse_feature(feature).weighted:
        yield from _lengths(rows, weights_buffer_column(feature), held, "IDs")


def _lengths(rows: pa.RecordBatch, column: str, expected: IntArray, unit: str) -> Iterator[tuple[int, str]]:
    found = _sizes(rows, column)
    for row in np.flatnonzero(found != expected):
        yield int(row), f"{column!r}: expected {int(expected[row])} entries ({unit}), got {int(found[row])}"


def _inside(codes: IntArray, offsets: IntArray, limit: IntArray, what: str) -> Iterator[tuple[int, str]]:
    row_of = np.repeat(np.arange(len(limit)), np.diff(offsets))
    part = codes[offsets[0] : offsets[-1]]
    for sample in np.flatnonzero((part < 0) | (part >= limit[row_of])):
        row = int(row_of[sample])
        yield row, f"{what}: expected versions in [0, {limit[row]}), got {part[sample]}"


def _sizes(rows: pa.RecordBatch, column: str) -> IntArray:
    sizes: IntArray = np.diff(list_parts(rows.column(column))[1])
    return sizes
