"""Text files with separated fields, streamed as Arrow batches of strings or of declared types.

What a line must be: as many fields as the header or the layout says. A line with another count is refused with its
line number. Nothing is inferred from the values, so no file can change a type.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv as pa_csv

from recoup.log.errors import LogError
from recoup.log.files import CountedFile, ends_with_newline

_logger = logging.getLogger(__name__)

BLOCK_BYTES = 4 << 20  # bytes parsed at a time; a line must be shorter

_HEAD_BYTES = 1 << 20  # bytes in which the header must end


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a text file is laid out."""

    delimiter: str = ","
    names: tuple[str, ...] = ()
    """Field names of a file without a header; () = the first line names them."""
    types: dict[str, pa.DataType] = field(default_factory=dict)
    """Types of columns; those not named are strings."""
    quotes: bool = True
    """Whether a field may stand in double quotes."""


class TextRows(NamedTuple):
    """Rows of a text file."""

    data: pa.RecordBatch
    bytes_read: int
    """Stored bytes read so far."""
    first_row: int
    """Data rows of the file before these."""


def read_delimited(path: str, layout: Layout, columns: Sequence[str] | None = None) -> Iterator[TextRows]:
    """Yield the rows of a text file in order.

    Empty fields are null. Columns absent from the file are left out.

    Args:
        path: the file; `.gz`, `.bz2` and `.zst` are decompressed while reading.
        layout: separator, names and types.
        columns: the columns to keep, None = all.
    Raises:
        LogError: no header, a line with another number of fields, a value of another type, or a cut archive.
    """
    if not ends_with_newline(path):
        _logger.warning("'%s' does not end with a newline: it may be cut short", path)
    names = layout.names or _header(path, layout)
    keep = [name for name in names if columns is None or name in columns]
    types = {name: layout.types.get(name, pa.string()) for name in keep}
    file = CountedFile(path)
    try:
        reader = pa_csv.open_csv(
            file.stream,
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=list(layout.names) or None
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=layout.delimiter,
                quote_char='"' if layout.quotes else False,
                ignore_empty_lines=len(names) > 1,
            ),
            convert_options=pa_csv.ConvertOptions(
                include_columns=keep,
                column_types=types,
                strings_can_be_null=True,
                null_values=[""],
                true_values=["1", "true", "True"],
                false_values=["0", "false", "False"],
            ),
        )
        first_row = 0
        for batch in reader:
            yield TextRows(batch, file.position, first_row)
            first_row += batch.num_rows
    except pa.ArrowInvalid as err:
        raise _line_error(str(err), path) from err


def _header(path: str, layout: Layout) -> tuple[str, ...]:
    parse = pa_csv.ParseOptions(delimiter=layout.delimiter, quote_char='"' if layout.quotes else False)
    with CountedFile(path).stream as stream:
        head = bytes(stream.read(_HEAD_BYTES))
    if len(head) == _HEAD_BYTES:
        head = head[: head.rfind(b"\n") + 1]
    try:
        read = pa_csv.ReadOptions(use_threads=False)
        with pa_csv.open_csv(pa.BufferReader(head), read_options=read, parse_options=parse) as reader:
            names = tuple(reader.schema.names)
    except pa.ArrowInvalid as err:
        raise _line_error(str(err), path) from err
    twins = sorted(name for name in set(names) if names.count(name) > 1)
    if twins:
        raise LogError(
            f"expected distinct column names, got {names.count(twins[0])} times '{twins[0]}' (file '{path}')"
        )
    return names


def _line_error(text: str, path: str) -> LogError:
    reason = text.splitlines()[0].removeprefix("CSV parse error: ").removeprefix("In ")
    if "Empty CSV" in reason:
        return LogError(f"expected a header line or rows, got an empty file (file '{path}')")
    short = reason if len(reason) <= 200 else reason[:200] + "..."
    return LogError(f"expected one value a field on every line, got: {short} (file '{path}')")
