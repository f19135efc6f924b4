"""Spread a stream over buckets on disk, so that each bucket can be sorted in memory: an external bucket sort.

Rows keep their order within a bucket. A bucket is one Arrow IPC stream (LZ4), read back whole or batch by batch.
Small streams stay in memory. Disk needed: at most the stream's uncompressed size.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recoup.table.arrays import IntArray
from recoup.table.errors import TableError
from recoup.table.gather import take_rows

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_SPLIT_BYTES = 24_000_000  # rows split over the buckets at a time


class Spool:
    """`num_buckets` buckets of rows of one schema in a folder, or in memory while the whole is small."""

    def __init__(self, folder: Path, schema: pa.Schema, num_buckets: int, *, memory_bytes: int) -> None:
        """Write nothing yet; files are opened when more than `memory_bytes` have come."""
        self.num_buckets = num_buckets
        self.bytes = np.zeros(num_buckets, dtype=np.int64)
        self._folder = folder
        self._schema = schema
        self._memory_bytes = memory_bytes
        self._memory: list[list[pa.RecordBatch]] | None = [[] for _ in range(num_buckets)]
        self._writers: list[Any] = []

    def fill(self, batches: Iterable[pa.RecordBatch], bucket_of: Callable[[pa.RecordBatch], IntArray]) -> None:
        """Append every row of `batches` to its bucket, and close.

        Raises:
            TableError: the disk is full or the folder is not writable.
        """
        try:
            for batch in joined(batches, _SPLIT_BYTES):
                self._append(batch, bucket_of(batch))
            for writer in self._writers:
                writer.close()
        except OSError as err:
            raise TableError(f"spilling to '{self._folder}' failed: {err}: nothing was committed") from err

    @property
    def in_memory(self) -> bool:
        """Whether nothing was spilled."""
        return self._memory is not None

    def reopen(self, sizes: Sequence[int]) -> None:
        """Use the complete files of an earlier attempt, of these uncompressed sizes."""
        self._memory = None
        self.bytes[:] = sizes

    def path(self, bucket: int) -> Path:
        """Return the file of `bucket`."""
        return self._folder / f"bucket-{bucket:04d}.arrow"

    def read(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `bucket` in the order they came."""
        if self._memory is not None:
            yield from self._memory[bucket]
        else:
            yield from read_stream(self.path(bucket))

    def _append(self, batch: pa.RecordBatch, buckets: IntArray) -> None:
        order = np.argsort(buckets, kind="stable")
        bounds = np.searchsorted(buckets[order], np.arange(self.num_buckets + 1))
        grouped = take_rows(batch, order) if self.num_buckets > 1 else batch
        for bucket in np.flatnonzero(np.diff(bounds)):
            piece = grouped.slice(int(bounds[bucket]), int(bounds[bucket + 1] - bounds[bucket]))
            self.bytes[bucket] += piece.nbytes
            if self._memory is not None:
                self._memory[bucket].append(piece)
            else:
                self._writers[bucket].write_batch(piece)
        if self._memory is not None and self.bytes.sum() > self._memory_bytes:
            self._spill()

    def _spill(self) -> None:
        assert self._memory is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        waiting, self._memory = self._memory, None
        for bucket in range(self.num_buckets):
            writer = pa.ipc.new_stream(pa.OSFile(str(self.path(bucket)), "wb"), self._schema, options=_OPTIONS)
            self._writers.append(writer)
            for piece in waiting[bucket]:
                writer.write_batch(piece)


def joined(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about `size` bytes, so that a bucket's pieces are not tiny."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= size:
            yield pa.concat_batches(waiting) if len(waiting) > 1 else batch
            waiting.clear()
            waiting_bytes = 0
    if waiting:
        yield pa.concat_batches(waiting)


def read_stream(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an IPC stream file.

    Raises:
        TableError: the file is missing or damaged.
    """
    try:
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            yield from reader
    except (OSError, pa.ArrowInvalid) as err:
        raise TableError(f"spill file '{path}' cannot be read: {err}: build again") from err
