"""What every log is to the rest of the house: a schema and a stream of record batches."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from recoup.core import Progress, no_progress
from recoup.log.errors import LogError
from recoup.schema import Schema, sample_schema

BATCH_SAMPLES = 8192
"""Samples in a batch unless asked otherwise: 23 MB of recd-like IDs, so that a few batches stay far below 600 MiB."""


class LogSource(Protocol):
    """An impression log that can be streamed from its start, any number of times, in bounded memory."""

    @property
    def schema(self) -> Schema:
        """What a sample of this log is."""
        ...

    @property
    def num_bytes(self) -> int | None:
        """Size of the files as stored, for progress; None when nothing is stored."""
        ...

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_samples: int = BATCH_SAMPLES,
        progress: Progress = no_progress,
    ) -> Iterator[pa.RecordBatch]:
        """Yield every sample once, in the log's own order, in the form of `sample_schema(schema)`.

        Args:
            columns: the columns to read, in the schema's order whatever the order given; None = all.
            batch_samples: upper bound of the rows of a batch.
            progress: called as ("read log", bytes done, `num_bytes`), or with samples where nothing is stored.
        Raises:
            LogError: the log is damaged or does not have the declared schema.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return plain facts for people and manifests: kind, files, vocabularies, rules applied."""
        ...


def selected_schema(schema: Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return `sample_schema(schema)` reduced to `columns`, canonical order kept.

    Raises:
        LogError: a column is not in the schema.
    """
    full = sample_schema(schema)
    if columns is None:
        return full
    unknown = [name for name in columns if name not in full.names]
    if unknown:
        raise LogError(f"expected columns of {full.names}, got {unknown[0]!r}")
    return pa.schema([field for field in full if field.name in columns])
