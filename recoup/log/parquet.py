"""Any user's row-per-sample Parquet: a file, a folder, or a Hive-partitioned folder (`date=2024-05-01/part-0.parquet`).

Files are read in natural order of their whole path, a few row-group slices at a time (`iter_batches`): memory does not
grow with the file. Schema drift between files is judged file by file against the configured schema, never against the
first file. A `key=value` folder name is a column of its files, if the schema asks for it and the file has none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import file_bytes, list_files, open_file
from recoup.log.mapping import SAME_NAMES, ColumnMapping, apply_mapping, needed_columns
from recoup.schema import Schema

_BUFFER_BYTES = 1 << 20  # bytes read ahead a column chunk: a huge row group is streamed, not held


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetLog:
    """Row-per-sample Parquet files with a column mapping."""

    kind: Literal["parquet"] = "parquet"
    path: str
    """A file, a folder, or a URL for fsspec (`s3://...`); names starting with `.` or `_` are ignored."""
    schema: Schema
    mapping: ColumnMapping = SAME_NAMES


def open_parquet(config: ParquetLog) -> FileLog:
    """Return the log; files are listed now and read later.

    Raises:
        LogError: nothing is at `path`.
        ConfigError: the mapping names a column the schema does not have.
    """
    config.mapping.check(config.schema)

    def read(request: Request) -> Iterator[Piece]:
        return _read(request, config)

    return FileLog(
        schema=config.schema, files=list_files(config.path, (".parquet", ".parq")), read=read, kind=config.kind
    )


def _read(request: Request, config: ParquetLog) -> Iterator[Piece]:
    wanted = [config.mapping.source(name) for name in needed_columns(config.schema, request.columns)]
    total_bytes = file_bytes(request.path)
    with pq.ParquetFile(open_file(request.path), buffer_size=_BUFFER_BYTES, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        _refuse_twins(names, wanted, request.path)
        present = [name for name in wanted if name in names]
        folders = {k: v for k, v in hive_values(request.path).items() if k in wanted and k not in names}
        num_rows = max(file.metadata.num_rows, 1)
        done = 0
        for batch in file.iter_batches(request.batch_samples, columns=present, use_threads=False):
            data = _with_constants(batch, folders)
            done += batch.num_rows
            mapped = apply_mapping(data, config.schema, config.mapping, request.columns)
            yield Piece(mapped, total_bytes * done // num_rows)


def hive_values(path: str) -> dict[str, str | None]:
    """Return the `key=value` folders of `path` as columns; Hive's default partition is null."""
    pairs = [part.split("=", 1) for part in path.split("/")[:-1] if "=" in part]
    return {key: None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for key, value in pairs}


def _with_constants(batch: pa.RecordBatch, values: dict[str, str | None]) -> pa.RecordBatch:
    for name, value in values.items():
        batch = batch.append_column(name, pa.array([value] * batch.num_rows, pa.string()))
    return batch


def _refuse_twins(names: list[str], wanted: list[str], path: str) -> None:
    twins = sorted(name for name in set(wanted) if names.count(name) > 1)
    if twins:
        raise LogError(f"expected one column '{twins[0]}', got {names.count(twins[0])} (file '{path}')")
