"""A Delta Lake table of row-per-sample data as a log (needs the `delta` extra): one version's files, read as Parquet.

The table's own library reads the transaction log; the data files are streamed like any Parquet. Order: the files as
they were written, oldest first. Tables whose data files alone do not say what the rows are (deletion vectors, column
mapping) are refused: rewrite such a table first.
"""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import natural_key
from recoup.log.mapping import SAME_NAMES, ColumnMapping
from recoup.log.parquet import parquet_pieces
from recoup.schema import Schema


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaLog:
    """A Delta table with a column mapping."""

    kind: Literal["delta"] = "delta"
    path: str
    """Folder or URL of the table."""
    schema: Schema
    mapping: ColumnMapping = SAME_NAMES
    version: int = -1
    """Version to read; -1 = the newest one when the log is opened, which `describe` names."""


def open_delta(config: DeltaLog) -> FileLog:
    """Return the log of one version; its files are fixed now and read later.

    Raises:
        LogError: there is no such table or version, or it needs more than its data files to be read.
        ConfigError: the mapping names a column the schema does not have.
    """
    config.mapping.check(config.schema)
    table = _open(config)
    needed = sorted(set(table.protocol().reader_features or ()) & {"deletionVectors", "columnMapping"})
    if needed:
        raise LogError(
            f"expected a Delta table that its data files alone describe, got one with {needed[0]} (table "
            f"'{config.path}'): rewrite it without"
        )
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    actions.sort(key=_age)
    files = {f"{config.path.rstrip('/')}/{action['path']}": _partition(action) for action in actions}

    def read(request: Request) -> Iterator[Piece]:
        return parquet_pieces(request, config.schema, config.mapping, constants=files[request.path])

    facts = {"version": table.version()}
    return FileLog(schema=config.schema, files=tuple(files), read=read, kind=config.kind, facts=facts)


def _age(action: dict[str, Any]) -> tuple[int, tuple[tuple[int, int, str], ...]]:
    return action["modification_time"], natural_key(action["path"])


def _partition(action: dict[str, Any]) -> dict[str, str | None]:
    prefix = "partition."
    return {
        name.removeprefix(prefix): None if value is None else str(value)
        for name, value in action.items()
        if name.startswith(prefix)
    }


def _open(config: DeltaLog) -> Any:  # noqa: ANN401
    try:
        library = importlib.import_module("deltalake")
    except ImportError as err:
        raise LogError(f"expected the Delta reader, got: {err}: pip install 'recoup[delta]'") from err
    try:
        return library.DeltaTable(config.path, version=None if config.version < 0 else config.version)
    except Exception as err:  # the library's errors have no common base but Exception; only context is added
        raise LogError(f"expected a Delta table, got: {str(err).splitlines()[0]} (table '{config.path}')") from err
