"""JSON lines: one object a line. Integers are read as integers (no float on the way), a null is a null.

Blocks of lines go through Arrow's parser where that is exact (recoup/log/json_blocks.py), else line by line.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import CountedFile, list_files
from recoup.log.json_blocks import JsonShape, fast_batch, json_shape
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
        shape = json_shape(config.schema, needed_columns(config.schema, request.columns), config.mapping)
        first_row = 0
        for lines in _batched(_lines(file), request.batch_samples):
            data = lines_to_batch(lines, shape, Where(request.path, first_row))
            yield Piece(apply_mapping(data, config.schema, config.mapping, request.columns), file.position)
            first_row += len(lines)

    suffixes = [name + packed for name in (".jsonl", ".ndjson", ".json") for packed in ("", ".gz", ".bz2", ".zst")]
    return FileLog(schema=config.schema, files=list_files(config.path, suffixes), read=read, kind=config.kind)


def lines_to_batch(lines: Sequence[bytes], shape: JsonShape, where: Where) -> pa.RecordBatch:
    """Return the wanted keys of the objects on `lines`; a key that no object has is left out.

    Raises:
        LogError: a line is not one JSON object, or values of one key are of different kinds.
    """
    batch = fast_batch(lines, shape)
    if batch is not None:
        return batch
    rows = [parse_object(line, where.file, where.first_row + i) for i, line in enumerate(lines)]
    return objects_to_batch(rows, shape, where)


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


def objects_to_batch(rows: Sequence[dict[str, Any]], shape: JsonShape, where: Where) -> pa.RecordBatch:
    """Return the wanted keys of JSON objects as Arrow; a key that no row has is left out.

    Raises:
        LogError: values of one column are of different kinds, or an integer needs more than 64 bits.
    """
    names = [name for name in shape.wanted if any(name in row for row in rows)]
    arrays: list[pa.Array] = []
    for name in names:
        values = [row.get(name) for row in rows]
        arrays.append(
            _column([_as_float(one) for one in values] if name in shape.floats else values, where.column(name))
        )
    if not names:
        return pa.RecordBatch.from_arrays([pa.nulls(len(rows))], names=[""])
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _as_float(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_as_float(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


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


def _batched(lines: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while batch := list(islice(lines, size)):
        yield batch


def _short(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 80 else text[:80] + "..."
