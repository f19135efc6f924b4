"""JSON lines: one object a line. Integers are read as integers (no float on the way), a null is a null.

Decoded by the standard library, a line at a time: about 60 k samples of 10 fields a second a core, exact for every
integer; Arrow's own JSON reader infers a type a block, so a null or a large ID in another block would change it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import CountedFile, list_files
from recoup.log.mapping import SAME_NAMES, ColumnMapping, apply_mapping, needed_columns
from recoup.log.where import Where
from recoup.schema import Schema

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLinesLog:
    """Row-per-sample JSON lines with a column mapping."""

    kind: Literal["jsonlines"] = "jsonlines"
    path: str
    """A file or a folder of .jsonl, .ndjson, .json, each also .gz, .bz2 or .zst."""
    schema: Schema
    mapping: ColumnMapping = SAME_NAMES


def open_jsonlines(config: JsonLinesLog) -> FileLog:
    """Return the log; files are listed now and read later.

    Raises:
        LogError: nothing is at `path`.
        ConfigError: the mapping names a column the schema does not have.
    """
    config.mapping.check(config.schema)

    def read(request: Request) -> Iterator[Piece]:
        file = CountedFile(request.path)
        wanted = [config.mapping.source(name) for name in needed_columns(config.schema, request.columns)]
        rows: list[dict[str, Any]] = []
        first_row = 0
        for row, line in enumerate(_lines(file)):
            rows.append(parse_object(line, request.path, row))
            if len(rows) == request.batch_samples:
                data = objects_to_batch(rows, wanted, Where(request.path, first_row))
                yield Piece(apply_mapping(data, config.schema, config.mapping, request.columns), file.position)
                first_row = row + 1
                rows.clear()
        if rows:
            data = objects_to_batch(rows, wanted, Where(request.path, first_row))
            yield Piece(apply_mapping(data, config.schema, config.mapping, request.columns), file.position)

    suffixes = [name + packed for name in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz", ".bz2", ".zst")]
    return FileLog(schema=config.schema, files=list_files(config.path, suffixes), read=read, kind=config.kind)


def parse_object(line: bytes, file: str, row: int) -> dict[str, Any]:
    """Return the JSON object on a line.

    Raises:
        LogError: the line is not one JSON object, with the row.
    """
    try:
        value = json.loads(line)
    except ValueError as err:
        raise LogError(f"expected a JSON object, got {_short(line)!r} (file '{file}', row {row})") from err
    if not isinstance(value, dict):
        raise LogError(f"expected a JSON object, got {_short(line)!r} (file '{file}', row {row})")
    return value


def objects_to_batch(rows: Sequence[dict[str, Any]], wanted: Sequence[str], where: Where) -> pa.RecordBatch:
    """Return the wanted columns of JSON objects as Arrow; a key that no row has is left out.

    Raises:
        LogError: values of one column are of different kinds, or an integer needs more than 64 bits.
    """
    names = [name for name in dict.fromkeys(wanted) if any(name in row for row in rows)]
    arrays = [_column([row.get(name) for row in rows], where.column(name)) for name in names]
    if not names:
        return pa.RecordBatch.from_arrays([pa.nulls(len(rows))], names=[""])
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _column(values: list[Any], where: Where) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        row = _first_bad(values)
        raise where.error(
            f"expected values of one kind, 64-bit integers at most, got {str(values[row])[:80]}", row=row
        ) from None


def _first_bad(values: list[Any]) -> int:
    """Return the first row that makes the rows up to it unreadable as one column, by halving."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pa.array(values[:middle])
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            high = middle
        else:
            low = middle
    return low


def _lines(file: CountedFile) -> Iterator[bytes]:
    rest = b""
    while chunk := file.stream.read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _short(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 80 else text[:80] + "..."
