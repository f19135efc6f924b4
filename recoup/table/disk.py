"""How much disk a build needs beside the table, stated before it starts.

The spool holds every sample once (never more than uncompressed); a bucket's file goes when its run is complete, and
runs hold each repeat once. So the work folder never passes the log's uncompressed size by more than one run, plus
the histories that the builder adds. The size is extrapolated from the log's first samples.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from recoup.log import LogSource
from recoup.table.arrays import compute
from recoup.table.errors import TableError

_LOOKED_AT = 8_192  # samples
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSize:
    """About how many bytes all samples of a log take; exact for a log of fewer samples than are looked at."""

    rows: int
    """As they are."""
    spooled: int
    """As the spool keeps them, IDs as int32 where they fit."""


def log_size(source: LogSource) -> LogSize:
    """Return the size of all samples of `source`, for which the first stand. Cost: reads the first 8,192 samples."""
    read: list[tuple[int, int | None]] = [(0, None)]

    def note(_task: str, done: int, total: int | None) -> None:
        read[0] = (done, total)

    num_samples = num_bytes = num_spooled = 0
    for batch in source.batches(progress=note):
        num_samples += batch.num_rows
        num_bytes += batch.nbytes
        num_spooled += batch.nbytes - _saved(batch)
        if num_samples >= _LOOKED_AT:
            done, total = read[0]
            scale = 1.0 if not done or total is None else max(1.0, total / done)
            return LogSize(rows=int(num_bytes * scale), spooled=int(num_spooled * scale))
    return LogSize(rows=num_bytes, spooled=num_spooled)


def _saved(batch: pa.RecordBatch) -> int:
    """Return the bytes that the spool saves by int32."""
    saved = 0
    for column in batch.columns:
        if pa.types.is_list(column.type) and pa.types.is_int64(column.type.value_type):
            numbers = column.flatten()
            bounds = compute.min_max(numbers).as_py()
            fits = not len(numbers) or (bounds["min"] >= _INT32.min and bounds["max"] <= _INT32.max)
            saved += 4 * len(numbers) if fits else 0
    return saved


def disk_needed(source: LogSource) -> int:
    """Return about how many bytes of disk a build of `source` takes beside the table while it runs, at most.

    Exact for a log of fewer samples than are looked at; otherwise the first samples stand for the rest.
    Cost: reads the first 8,192 samples.
    """
    return log_size(source).rows


def check_disk(folder: Path, needed: int) -> None:
    """Refuse to start a build that needs more disk than is free.

    Raises:
        TableError: less is free in `folder` than `needed` bytes.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise TableError(
            f"expected {needed} free bytes for spilling in '{folder}', got {free}: free some, or build on another disk"
        )
