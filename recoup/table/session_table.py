"""An open session table: its manifest, its rows, its samples, and its export to ordinary row-per-sample Parquet."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.coding import hot_column
from recoup.core import Progress, no_progress, sync_folder, temporary_path
from recoup.schema import Schema, sample_schema
from recoup.table.arrays import IntArray
from recoup.table.coded import checked_hot, with_ids
from recoup.table.errors import TableError
from recoup.table.flatten import flatten_rows
from recoup.table.gather import take_rows
from recoup.table.layout import feature_of_values, part_schema, row_columns, row_schema
from recoup.table.manifest import PARTS, Manifest, Part, read_manifest
from recoup.table.order import as_declared
from recoup.table.remote import is_remote, local_path, pull_table
from recoup.table.spool import Spool
from recoup.table.stages import TimeSample, sort_indices

_SAMPLES = 4096  # decoded at a time: 11 MB of recd-like IDs


class SessionTable:
    """A committed table; immutable."""

    def __init__(self, path: Path) -> None:
        """Read the manifest.

        Raises:
            TableError: there is no complete table in `path`.
        """
        self.path = path
        self.manifest: Manifest = read_manifest(path)

    @property
    def schema(self) -> Schema:
        """What a sample is, histories included."""
        return self.manifest.schema

    @property
    def num_samples(self) -> int:
        """Samples in all parts."""
        return self.manifest.counts.samples

    @property
    def num_bytes(self) -> int:
        """Size of all parts."""
        return sum(part.bytes for part in self.manifest.parts)

    def part_path(self, name: str) -> Path:
        """Return the path of the part called `name`."""
        return self.path / PARTS / name

    def parts_between(self, first: int, last: int) -> tuple[Part, ...]:
        """Return the parts that hold sessions which begin in [first, last], ms; no file is opened.

        In a table partitioned by time these are whole partitions, and at most the two at the ends hold others too.
        """
        return tuple(p for p in self.manifest.parts if p.rows and p.first_start <= last and p.last_start >= first)

    def iter_rows(
        self,
        columns: Collection[str] | None = None,
        *,
        batch_samples: int = _SAMPLES,
        parts: Sequence[Part] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows in table order, about `batch_samples` samples at a time; with `columns` only these are read.

        With `parts` only the rows of these.

        Raises:
            TableError: a part is missing or damaged.
        """
        full = row_schema(self.schema)
        target = full if columns is None else pa.schema([field for field in full if field.name in columns])
        features = [feature for feature in map(feature_of_values, target) if feature is not None]
        stored = [name for name in part_schema(target).names if name not in {hot_column(f) for f in features}]
        for part in self.manifest.parts if parts is None else parts:
            path = self.part_path(part.name)
            try:
                with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
                    hot = checked_hot(file, path, features)
                    for number, group in enumerate(part.row_groups):
                        size = max(1, group.rows * batch_samples // max(1, group.samples))
                        for batch in file.iter_batches(size, row_groups=[number], columns=stored):
                            _refuse_nulls(batch, path)
                            yield as_declared(with_ids(batch, hot, target), target)
            except (OSError, pa.ArrowException) as err:
                raise TableError(f"part '{path}' cannot be read: {err}: restore it or rebuild the table") from err

    def iter_samples(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all samples in table order as batches of `sample_schema(schema)`, or of its `columns` alone."""
        for rows in self.iter_rows(None if columns is None else row_columns(self.schema, columns)):
            yield flatten_rows(rows, self.schema, columns)

    def export_rows(
        self,
        path: Path,
        *,
        order: Literal["time", "session"] = "time",
        memory_bytes: int = 512_000_000,
        progress: Progress = no_progress,
    ) -> int:
        """Write the same samples as ordinary row-per-sample Parquet (zstd) to one file, and return its size.

        Args:
            path: the file; written under a temporary name, then renamed.
            order: "time" = as an ordinary log, sessions interleaved; "session" = clustered, as the table is.
            memory_bytes: limit of the sort.
            progress: called as ("export rows", samples done, samples).
        """
        schema = sample_schema(self.schema)
        batches = self._in_time_order(path, memory_bytes) if order == "time" else self.iter_samples()
        temporary = temporary_path(path)
        temporary.parent.mkdir(parents=True, exist_ok=True)
        done = 0
        options: dict[str, Any] = {"compression": "zstd", "compression_level": 3, "use_dictionary": False}
        with pq.ParquetWriter(temporary, schema, **options) as writer:
            for batch in batches:
                writer.write_batch(batch)
                done += batch.num_rows
                progress("export rows", done, self.num_samples)
        temporary.replace(path)
        sync_folder(path.parent)
        return path.stat().st_size

    def expanded_bytes(self) -> int:
        """Return about how many bytes all samples take as rows, by those of the first sessions."""
        first = next(self.iter_samples(), None)
        return 0 if first is None or not first.num_rows else first.nbytes * self.num_samples // first.num_rows

    def _in_time_order(self, path: Path, memory_bytes: int) -> Iterator[pa.RecordBatch]:
        schema, time = self.schema, self.schema.time
        sample = TimeSample()
        for batch in self.iter_samples([time]):
            sample.add(batch, time)
        num_ranges = 1 + self.expanded_bytes() // max(1, memory_bytes // 8)
        bounds = np.array(sample.bounds(num_ranges), dtype=np.int64)

        def range_of(batch: pa.RecordBatch) -> IntArray:
            return np.searchsorted(bounds, batch.column(time).to_numpy(zero_copy_only=False), side="right")

        folder = path.with_name(f".{path.name}.spill")
        spool = Spool(folder, sample_schema(schema), num_ranges, memory_bytes=memory_bytes // 4)
        try:
            spool.fill(self.iter_samples(), range_of)
            for number in range(num_ranges):
                samples = spool.whole(number)
                indices = sort_indices(samples, [time, schema.key]).to_numpy().astype(np.int64)
                for first in range(0, len(indices), 8192):
                    yield take_rows(samples, indices[first : first + 8192], sample_schema(schema))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _refuse_nulls(rows: pa.RecordBatch, path: Path) -> None:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        items = getattr(column, "values", None)
        if column.null_count or (items is not None and items.null_count):
            raise TableError(f"part '{path}': expected no nulls, got some in column {name!r}: rebuild the table")


def open_table(path: Path | str) -> SessionTable:
    """Open the session table in the folder `path`, or under a URL ("s3://bucket/table"), which is mirrored first.

    Raises:
        TableError: there is no complete table there, or the URL cannot be reached.
    Cost: a URL's parts that are not in its local mirror are fetched (`remote`).
    """
    return SessionTable(pull_table(str(path)) if is_remote(path) else local_path(path))
