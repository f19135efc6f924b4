"""From one row an impression with a list of candidates to one row a candidate."""

import numpy as np
import pyarrow as pa

from recoup.log.arrays import NumpyArray


def parents(lengths: NumpyArray) -> NumpyArray:
    """Return the row of every candidate, int64 [sum of lengths]."""
    return np.repeat(np.arange(len(lengths)), lengths)


def positions(lengths: NumpyArray) -> NumpyArray:
    """Return the place of every candidate within its row, int64 [sum of lengths]."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(starts, lengths)


def take(array: pa.Array, rows: NumpyArray) -> pa.Array:
    """Return `array` at `rows`."""
    return array.take(pa.array(rows))
