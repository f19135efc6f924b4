"""The table's row groups as slices, cut down to a range of samples by time; and the identity of its parts."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.reader.config import SampleRange
from recoup.reader.errors import ReaderError
from recoup.reader.plan import RowGroupSlice
from recoup.schema import Schema


class _RowGroup(Protocol):
    @property
    def rows(self) -> int: ...
    @property
    def samples(self) -> int: ...


class _Part(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def row_groups(self) -> Sequence[_RowGroup]: ...
    @property
    def checksum(self) -> str: ...
    @property
    def first_start(self) -> int: ...
    @property
    def last_start(self) -> int: ...


class _Manifest(Protocol):
    @property
    def parts(self) -> Sequence[_Part]: ...


class ReadableTable(Protocol):
    """What the reader needs of a `recoup.table.SessionTable`."""

    @property
    def path(self) -> Path:
        """The table's folder."""
        ...

    @property
    def schema(self) -> Schema:
        """Features as stored, built histories included."""
        ...

    @property
    def manifest(self) -> _Manifest:
        """Parts in order, with the rows and samples of their row groups."""
        ...


def part_paths(table: ReadableTable) -> tuple[str, ...]:
    """Return the paths of the parts in manifest order."""
    return tuple(str(table.path / "parts" / part.name) for part in table.manifest.parts)


def part_digests(table: ReadableTable) -> tuple[str, ...]:
    """Return one running digest a part: equal digests mean equal parts up to there."""
    digests: list[str] = []
    running = hashlib.blake2b(digest_size=8)
    for part in table.manifest.parts:
        running.update(repr((part.name, part.rows, part.samples, part.checksum)).encode())
        digests.append(running.hexdigest())
    return tuple(digests)


def row_group_slices(table: ReadableTable, samples: SampleRange, num_parts: int) -> tuple[RowGroupSlice, ...]:
    """Return the slices of the first `num_parts` parts that hold the sessions of the range.

    A session belongs to the range in which its first sample lies.

    Raises:
        ReaderError: no session begins between the moments of the range, or a part is missing or damaged.
    Cost: reads the counts of at most two row groups, or the session starts of at most two parts.
    """
    groups = [
        (p, g, group)
        for p, part in enumerate(table.manifest.parts[:num_parts])
        for g, group in enumerate(part.row_groups)
        if group.rows
    ]
    whole = [
        RowGroupSlice(ordinal=ordinal, part=p, row_group=g, first_row=0, num_rows=group.rows, num_samples=group.samples)
        for ordinal, (p, g, group) in enumerate(groups)
    ]
    paths = part_paths(table)
    if samples.by_time:
        first, end = _between(table, whole, samples)
    else:
        total = sum(piece.num_samples for piece in whole)
        bounds = [round(fraction * total) for fraction in (samples.from_fraction, samples.to_fraction)]
        first, end = (_first_session(whole, paths, bound) for bound in bounds)
    kept: list[RowGroupSlice] = []
    for index, piece in enumerate(whole):
        row_0 = first[1] if index == first[0] else (0 if index > first[0] else piece.num_rows)
        row_1 = end[1] if index == end[0] else (piece.num_rows if index < end[0] else 0)
        if row_0 >= row_1:
            continue
        count = piece.num_samples
        if (row_0, row_1) != (0, piece.num_rows):
            count = int(_counts(piece, paths)[0][row_0:row_1].sum())
        kept.append(replace(piece, first_row=row_0, num_rows=row_1 - row_0, num_samples=count))
    return tuple(kept)


def _first_session(whole: Sequence[RowGroupSlice], paths: Sequence[str], bound: int) -> tuple[int, int]:
    """Return (slice, row) of the first session whose first sample is number `bound` or later."""
    before = 0
    for index, piece in enumerate(whole):
        if before + piece.num_samples > bound or before >= bound:
            if bound == 0:
                return index, 0
            num_samples, chunk = _counts(piece, paths)
            starts = before + np.cumsum(num_samples) - num_samples
            found = np.flatnonzero((starts >= bound) & (chunk == 0))
            if found.size:
                return index, int(found[0])
        before += piece.num_samples
    return len(whole), 0


def _between(
    table: ReadableTable, whole: Sequence[RowGroupSlice], samples: SampleRange
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (slice, row) of the first session of a range by time, and of the first after it."""
    first, end = (0, 0), (len(whole), 0)
    if samples.from_time is not None:
        first = _first_since(table, whole, _milliseconds(samples.from_time))
    if samples.to_time is not None:
        end = _first_since(table, whole, _milliseconds(samples.to_time))
    if whole and first >= end:
        parts = table.manifest.parts
        held = [datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat() for ms in (_starts(parts, 0), _starts(parts, -1))]
        bounds = [None if bound is None else bound.isoformat() for bound in (samples.from_time, samples.to_time)]
        raise ReaderError(
            f"expected sessions that begin from {bounds[0] or 'the first'} to before {bounds[1] or 'the end'}, got "
            f"none (the table's begin from {held[0]} to {held[1]} in {table.path}): change from_time and to_time"
        )
    return first, end


def _first_since(table: ReadableTable, whole: Sequence[RowGroupSlice], time: int) -> tuple[int, int]:
    """Return (slice, row) of the first session that begins at `time` (ms) or later; rows lie in order of start."""
    paths = part_paths(table)
    for index, piece in enumerate(whole):
        if table.manifest.parts[piece.part].last_start >= time:
            row = int(np.searchsorted(_columns(piece, paths, ["session_start"])[0], time))
            if row < piece.num_rows:
                return index, row
    return len(whole), 0


def _starts(parts: Sequence[_Part], end: int) -> int:
    full = [part for part in parts if part.rows]
    return full[end].last_start if end else full[end].first_start


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _counts(piece: RowGroupSlice, paths: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    num_samples, chunk = _columns(piece, paths, ["num_samples", "chunk"])
    return num_samples.astype(np.int64), chunk


def _columns(piece: RowGroupSlice, paths: Sequence[str], names: list[str]) -> list[np.ndarray]:
    path = paths[piece.part]
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            table = file.read_row_group(piece.row_group, columns=names, use_threads=False)
    except (OSError, pa.ArrowException) as err:
        raise ReaderError(f"expected a readable table part at {path}, got: {str(err).splitlines()[0]}") from err
    return [table.column(name).to_numpy() for name in names]
