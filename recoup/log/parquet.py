"""Any user's row-per-sample Parquet: a file, a folder, or a Hive-partitioned folder (`date=2024-05-01/part-0.parquet`).

Files are read in natural order of their whole path, a few row-group slices at a time (`iter_batches`): memory does not
grow with the file. Schema drift between files is judged file by file against the configured schema, never against the
first file. A `key=value` folder name is a column of its files, if the schema asks for it and the file has none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        return parquet_pieces(request, config.schema, config.mapping, constants=hive_values(request.path))

    return FileLog(
        schema=config.schema, files=list_files(config.path, (".parquet", ".parq")), read=read, kind=config.kind
    )


def same_names(names: Sequence[str], file_schema: pa.Schema) -> dict[str, str]:
    """Say that a file's columns have the table's names."""
    return {name: name for name in names if name in file_schema.names}


def parquet_pieces(
    request: Request,
    schema: Schema,
    mapping: ColumnMapping,
    *,
    constants: Mapping[str, str | None],
    find: Callable[[Sequence[str], pa.Schema], Mapping[str, str]] = same_names,
) -> Iterator[Piece]:
    """Stream the raw samples of one Parquet file in slices of its row groups.

    Args:
        request: the file and the columns of the schema.
        schema: what a sample is.
        mapping: schema column -> table column.
        constants: table columns that the file does not hold, one text value each (partition values).
        find: tells under which name the file holds each table column; absent ones are left out.
    """
    wanted = [mapping.source(name) for name in needed_columns(schema, request.columns)]
    total_bytes = file_bytes(request.path)
    with pq.ParquetFile(
        open_file(request.path), buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    ) as file:  # pre_buffer, pyarrow's default, holds what it has read of a file until the end
        _refuse_twins(file.schema_arrow.names, wanted, request.path)
        held = find(wanted, file.schema_arrow)
        table_name = {in_file: name for name, in_file in held.items()}
        added = {name: value for name, value in constants.items() if name in wanted and name not in held}
        num_rows = max(file.metadata.num_rows, 1)
        done = 0
        for batch in file.iter_batches(request.batch_samples, columns=list(table_name), use_threads=False):
            data = batch.rename_columns([table_name[name] for name in batch.schema.names])
            done += batch.num_rows
            mapped = apply_mapping(_with_constants(data, added), schema, mapping, request.columns)
            yield Piece(mapped, total_bytes * done // num_rows)


def hive_values(path: str) -> dict[str, str | None]:
    """Return the `key=value` folders of `path` as columns; Hive's default partition is null."""
    pairs = [part.split("=", 1) for part in path.split("/")[:-1] if "=" in part]
    return {key: None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for key, value in pairs}


def _with_constants(batch: pa.RecordBatch, values: Mapping[str, str | None]) -> pa.RecordBatch:
    added = [pa.array([value] * batch.num_rows, pa.string()) for value in values.values()]
    return (
        pa.RecordBatch.from_arrays([*batch.columns, *added], names=[*batch.schema.names, *values]) if added else batch
    )


def _refuse_twins(names: list[str], wanted: list[str], path: str) -> None:
    twins = sorted(name for name in set(wanted) if names.count(name) > 1)
    if twins:
        raise LogError(f"expected one column '{twins[0]}', got {names.count(twins[0])} (file '{path}')")
