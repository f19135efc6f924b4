"""The allowed lateness: samples that arrive too long after a later one are left out and counted.

The watermark is the greatest time seen so far, in arrival order, less the lateness. A sample behind it is late.
So every arrival order in which no sample lags more than the lateness gives the same samples, hence the same sessions.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta

import numpy as np
import pyarrow as pa


class LatenessFilter:
    """Pass on the samples of a stream in arrival order, less the late ones; state: the greatest time so far."""

    def __init__(self, time_column: str, lateness: timedelta | None) -> None:
        """Start before the first sample; without a lateness nothing is late."""
        self._column = time_column
        self._lateness = None if lateness is None else round(lateness.total_seconds() * 1000)
        self._greatest = np.int64(-(2**62))
        self.num_late = 0
        self.num_samples = 0

    def on_time(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches without their late samples."""
        for batch in batches:
            self.num_samples += batch.num_rows
            yield batch if self._lateness is None or batch.num_rows == 0 else self._filter(batch, self._lateness)

    def _filter(self, batch: pa.RecordBatch, lateness: int) -> pa.RecordBatch:
        time = batch.column(self._column).to_numpy(zero_copy_only=False)
        greatest = np.maximum(np.maximum.accumulate(time), self._greatest)
        self._greatest = greatest[-1]
        late = time < greatest - lateness
        self.num_late += int(late.sum())
        return batch.filter(pa.array(~late)) if late.any() else batch
