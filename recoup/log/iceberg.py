"""An Iceberg table of row-per-sample data as a log (needs the `iceberg` extra): the files of one snapshot, as Parquet.

The table's own library plans the snapshot from its metadata file; the data files are streamed like any Parquet. Columns
are found by Iceberg's field IDs, so a renamed column reads right from old files too. Snapshots with delete files are
refused: compact such a table first.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import is_remote, natural_key
from recoup.log.mapping import SAME_NAMES, ColumnMapping
from recoup.log.parquet import parquet_pieces
from recoup.schema import Schema

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, kw_only=True, slots=True)
class IcebergLog:
    """An Iceberg table, named by its metadata, with a column mapping."""

    kind: Literal["iceberg"] = "iceberg"
    path: str
    """A `*.metadata.json` file, or the local folder of a table (its newest metadata file is taken)."""
    schema: Schema
    mapping: ColumnMapping = SAME_NAMES
    snapshot: int = -1
    """Snapshot to read; -1 = the current one of the metadata file, which `describe` names."""


def open_iceberg(config: IcebergLog) -> FileLog:
    """Return the log of one snapshot; its files are fixed now and read later.

    Raises:
        LogError: there is no such table or snapshot, or it has delete files.
        ConfigError: the mapping names a column the schema does not have.
    """
    config.mapping.check(config.schema)
    metadata = _metadata_file(config.path)
    table = _open(metadata, config.path)
    current = table.current_snapshot()
    snapshot = config.snapshot if config.snapshot >= 0 else (current.snapshot_id if current else -1)
    if snapshot >= 0 and table.snapshot_by_id(snapshot) is None:
        raise LogError(f"expected a snapshot of the table, got {snapshot} (table '{config.path}')")
    tasks = list(table.scan(snapshot_id=snapshot).plan_files()) if snapshot >= 0 else []
    if any(task.delete_files for task in tasks):
        raise LogError(f"expected a snapshot without delete files, got {snapshot} (table '{config.path}'): compact it")
    files = sorted((task.file.file_path.removeprefix("file://") for task in tasks), key=natural_key)
    fields = {field.name: field.field_id for field in table.schema().fields}

    def find(names: Sequence[str], file_schema: pa.Schema) -> dict[str, str]:
        held = {_id_of(field): field.name for field in file_schema}
        return {name: held[fields[name]] for name in names if fields.get(name) in held}

    def read(request: Request) -> Iterator[Piece]:
        return parquet_pieces(request, config.schema, config.mapping, constants={}, find=find)

    facts = {"snapshot": snapshot, "metadata": metadata}
    return FileLog(schema=config.schema, files=tuple(files), read=read, kind=config.kind, facts=facts)


def _id_of(field: pa.Field) -> int:
    return int((field.metadata or {}).get(_FIELD_ID, b"-1"))


def _metadata_file(path: str) -> str:
    if is_remote(path) or path.endswith(".json"):
        return path
    found = sorted((str(file) for file in Path(path, "metadata").glob("*.metadata.json")), key=natural_key)
    if not found:
        raise LogError(f"expected an Iceberg table with metadata files, got none (folder '{path}')")
    return found[-1]


def _open(metadata: str, path: str) -> Any:  # noqa: ANN401
    try:
        library = importlib.import_module("pyiceberg.table")
    except ImportError as err:
        raise LogError(f"expected the Iceberg reader, got: {err}: pip install 'recoup[iceberg]'") from err
    try:
        return library.StaticTable.from_metadata(metadata)
    except Exception as err:  # the library's errors have no common base but Exception; only context is added
        raise LogError(f"expected an Iceberg table, got: {str(err).splitlines()[0]} (table '{path}')") from err
