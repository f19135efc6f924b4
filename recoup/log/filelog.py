"""A log kept in files: read one after another, each raw batch checked at the border."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from recoup.core import Progress, no_progress
from recoup.log.conform import conform
from recoup.log.errors import LogError
from recoup.log.files import file_bytes
from recoup.log.source import BATCH_SAMPLES, selected_schema
from recoup.schema import Schema

_logger = logging.getLogger(__name__)


class Piece(NamedTuple):
    """Some raw samples of a file, and the stored bytes of it read so far."""

    data: pa.RecordBatch
    bytes_read: int


class Request(NamedTuple):
    """What to read of one file."""

    path: str
    columns: tuple[str, ...]
    """Columns of the sample schema; a reader may yield more."""
    batch_samples: int


ReadFile: TypeAlias = Callable[[Request], Iterator[Piece]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLog:
    """A `LogSource` over files of one format, in the order given.

    Every format is this class with its own `read`; an error of the file system or of a decoder becomes one line.
    """

    schema: Schema
    files: tuple[str, ...]
    read: ReadFile
    """Yields raw samples of one file: names of the schema, any Arrow type `conform` accepts."""
    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for `describe`, such as vocabularies."""

    @property
    def num_bytes(self) -> int | None:
        """Bytes of all files as stored."""
        return sum(file_bytes(path) for path in self.files)

    def describe(self) -> dict[str, Any]:
        """Return kind, files, bytes, columns and the format's own facts."""
        columns = list(self.schema.column_names)
        return {
            "kind": self.kind,
            "files": list(self.files),
            "num_bytes": self.num_bytes,
            "columns": columns,
            **self.facts,
        }

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_samples: int = BATCH_SAMPLES,
        progress: Progress = no_progress,
    ) -> Iterator[pa.RecordBatch]:
        """Yield every sample of every file in order (see `LogSource.batches`)."""
        names = tuple(selected_schema(self.schema, columns).names)
        total = self.num_bytes
        done = 0
        for path in self.files:
            first_row = 0
            for piece in _one_line_errors(self.read, Request(path, names, batch_samples), self.kind):
                progress("read log", done + piece.bytes_read, total)
                if piece.data.num_rows:
                    yield from self._conformed(piece.data, path, first_row, names, batch_samples)
                first_row += piece.data.num_rows
            done += file_bytes(path)
            progress("read log", done, total)

    def _conformed(
        self, data: pa.RecordBatch, path: str, first_row: int, names: tuple[str, ...], batch_samples: int
    ) -> Iterator[pa.RecordBatch]:
        for start in range(0, data.num_rows, batch_samples):
            part = data.slice(start, batch_samples)
            yield conform(part, self.schema, path, first_row=first_row + start, columns=names)


def _one_line_errors(read: ReadFile, request: Request, kind: str) -> Iterator[Piece]:
    if file_bytes(request.path) == 0:
        raise LogError(
            f"expected a {kind} file, got 0 bytes (file '{request.path}'): remove it if it is meant to be empty"
        )
    try:
        yield from read(request)
    except LogError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as err:
        reason = (str(err).strip() or type(err).__name__).splitlines()[0]
        raise LogError(
            f"expected a readable {kind} file, got: {reason} (file '{request.path}'): it may be cut short or damaged"
        ) from err
