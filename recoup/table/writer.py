"""Write rows as Parquet parts: zstd, page checksums, row groups of whole rows capped in bytes.

Encodings and codes are chosen a part, by its first row group (`encodings`). A part is written under a hidden temporary
name, flushed, and renamed; the manifest names it later.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.core import sync_folder, temporary_path
from recoup.table.coded import coded_rows, uncoded_features
from recoup.table.encodings import DICTIONARY, judged_storage
from recoup.table.layout import NUM_SAMPLES, START, part_schema
from recoup.table.manifest import PARTS, Part, RowGroup
from recoup.table.partitions import partitioned

_FILLING = 16  # rows come in pieces of a sixteenth of a row group, so that groups fill up to near their limit


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterConfig:
    """How parts are laid out."""

    row_group_bytes: int = 32 << 20
    """A row group is closed before it passes this uncompressed size (one row may be larger)."""
    part_bytes: int = 1 << 30
    """A part is closed once its row groups' uncompressed size passes this."""
    compression_level: int = 3
    """Of zstd."""
    partition_by: Literal["none", "day", "hour"] = "none"
    """Parts of one day or hour (UTC) of session start each, in folders `day=2026-12-01` or `hour=2026-12-01-13`."""


class TableWriter:
    """Write rows in order into parts of a folder; `close` returns what was written. Not a commit."""

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        config: WriterConfig,
        *,
        prefix: str = "part",
        finished: tuple[Part, ...] = (),
    ) -> None:
        """Create the folder of the parts; go on after those that are `finished`."""
        self._folder = folder / PARTS
        self._folder.mkdir(parents=True, exist_ok=True)
        self._schema = schema
        self._config = config
        self._prefix = prefix
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._open: _OpenPart | None = None
        self._parts: list[Part] = list(finished)
        self._partition = ""

    def write(self, rows: pa.RecordBatch, on_part: Callable[[tuple[Part, ...]], None] | None = None) -> None:
        """Append rows; a row group is written when its bytes are together; `on_part` hears of every finished part."""
        num_parts = len(self._parts)
        for partition, mine in partitioned(rows, self._config.partition_by):
            if partition != self._partition:
                self._flush()
                self._close_part()
                self._partition = partition
            for piece in _pieces(mine, max(1, self._config.row_group_bytes // _FILLING)):
                size = piece.nbytes
                if self._waiting and self._waiting_bytes + size > self._config.row_group_bytes:
                    self._flush()
                self._waiting.append(piece)
                self._waiting_bytes += size
            if on_part is not None and len(self._parts) > num_parts:
                num_parts = len(self._parts)
                on_part(tuple(self._parts))

    def close(self) -> tuple[Part, ...]:
        """Write what waits, close the last part, and return all parts; a table without rows has one empty part."""
        self._flush()
        if self._open is None and not self._parts:
            empty = pa.RecordBatch.from_pylist([], schema=self._schema)
            rows = pa.Table.from_batches([empty])
            self._open = _OpenPart(self._folder, self._name(), self._schema, self._config, rows)
        self._close_part()
        sync_folder(self._folder)
        return tuple(self._parts)

    def _name(self) -> str:
        name = f"{self._prefix}-{len(self._parts):05d}.parquet"
        return f"{self._partition}/{name}" if self._partition else name

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting, self._schema)
        if self._open is None:
            self._open = _OpenPart(self._folder, self._name(), self._schema, self._config, rows)
        uncoded = self._open.uncoded(rows)
        if uncoded:
            self._close_part()
            self._open = _OpenPart(self._folder, self._name(), self._schema, self._config, rows, uncoded)
        self._open.write(rows)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._open.bytes >= self._config.part_bytes:
            self._close_part()

    def _close_part(self) -> None:
        if self._open is not None:
            self._parts.append(self._open.close())
            self._open = None


class _OpenPart:
    def __init__(
        self,
        folder: Path,
        name: str,
        schema: pa.Schema,
        config: WriterConfig,
        first: pa.Table,
        uncoded: frozenset[str] = frozenset(),
    ) -> None:
        """Open the part whose first row group will be `first`; no ID is hot in the features `uncoded`."""
        self._name = name
        self._path = folder / name
        self._path.parent.mkdir(exist_ok=True)
        self._temporary = temporary_path(self._path)
        storage = judged_storage(first, config.compression_level, uncoded)
        encodings = storage.encodings
        self._codes = storage.codes
        self._writer = pq.ParquetWriter(
            self._temporary,
            part_schema(schema),
            compression="zstd",
            compression_level=config.compression_level,
            use_dictionary=[name for name, encoding in encodings.items() if encoding == DICTIONARY],
            column_encoding={name: encoding for name, encoding in encodings.items() if encoding != DICTIONARY},
            write_page_checksum=True,
            write_statistics=["session_start", "session_key"],
        )
        self.bytes = 0
        self._groups: list[RowGroup] = []
        self._starts: list[int] = []

    def uncoded(self, rows: pa.Table) -> frozenset[str]:
        """Return the features that hold an ID which has no code in this part."""
        return uncoded_features(rows, self._codes)

    def write(self, rows: pa.Table) -> None:
        """Write a row group, whose IDs all have codes."""
        stored = coded_rows(rows, self._codes, with_hot=not self._groups)
        self._writer.write_table(stored, row_group_size=max(1, rows.num_rows))
        samples = int(np.sum(rows.column(NUM_SAMPLES).to_numpy()))
        self._groups.append(RowGroup(rows=rows.num_rows, samples=samples, bytes=rows.nbytes))
        start = rows.column(START).to_numpy()
        self._starts += [int(start.min()), int(start.max())]
        self.bytes += rows.nbytes

    def close(self) -> Part:
        self._writer.close()
        checksum = file_checksum(self._temporary, flush=True)
        size = self._temporary.stat().st_size
        self._temporary.replace(self._path)
        sync_folder(self._path.parent)
        return Part(
            name=self._name,
            rows=sum(group.rows for group in self._groups),
            samples=sum(group.samples for group in self._groups),
            bytes=size,
            checksum=checksum,
            first_start=min(self._starts, default=0),
            last_start=max(self._starts, default=0),
            row_groups=tuple(self._groups),
        )


def file_checksum(path: Path, *, flush: bool = False) -> str:
    """Return the BLAKE2b-128 of a file, hexadecimal; with `flush`, after its data reached the disk."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        if flush:
            os.fsync(file.fileno())
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _pieces(rows: pa.RecordBatch, limit: int) -> Iterable[pa.RecordBatch]:
    if rows.nbytes <= limit or rows.num_rows <= 1:
        return [rows] if rows.num_rows else []
    half = rows.num_rows // 2
    return [*_pieces(rows.slice(0, half), limit), *_pieces(rows.slice(half), limit)]
