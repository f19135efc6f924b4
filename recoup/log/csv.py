"""Any user's CSV or TSV by a column mapping: fields are read as text and converted exactly, so 19-digit IDs stay."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from recoup.log.delimited import Layout, read_delimited
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import list_files
from recoup.log.mapping import SAME_NAMES, ColumnMapping, apply_mapping, needed_columns
from recoup.schema import Schema


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvLog:
    """Row-per-sample text files with a header (or `names`) and a column mapping."""

    kind: Literal["csv"] = "csv"
    path: str
    """A file or a folder of .csv, .tsv, .txt, each also .gz, .bz2 or .zst."""
    schema: Schema
    mapping: ColumnMapping = SAME_NAMES
    delimiter: str = ","
    names: tuple[str, ...] = ()
    """Field names when the files have no header."""


def open_csv(config: CsvLog) -> FileLog:
    """Return the log; files are listed now and read later.

    Raises:
        LogError: nothing is at `path`.
        ConfigError: the mapping names a column the schema does not have.
    """
    config.mapping.check(config.schema)
    layout = Layout(delimiter=config.delimiter, names=config.names)

    def read(request: Request) -> Iterator[Piece]:
        wanted = [config.mapping.source(name) for name in needed_columns(config.schema, request.columns)]
        for rows in read_delimited(request.path, layout, wanted):
            yield Piece(apply_mapping(rows.data, config.schema, config.mapping, request.columns), rows.bytes_read)

    suffixes = [name + packed for name in (".csv", ".tsv", ".txt") for packed in ("", ".gz", ".bz2", ".zst")]
    return FileLog(schema=config.schema, files=list_files(config.path, suffixes), read=read, kind=config.kind)
