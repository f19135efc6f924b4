"""Take rows of a batch by index: list columns are copied list by list in one kernel, several times Arrow's own take."""

import numba
import numpy as np
import pyarrow as pa

from recoup.table.arrays import IntArray, NumpyArray, list_array, list_parts, offsets_of


def take_rows(batch: pa.RecordBatch, indices: IntArray) -> pa.RecordBatch:
    """Return the rows of `batch` at `indices`, in their order. Cost: one copy of what is taken."""
    arrow_indices = pa.array(indices)
    arrays = [
        _take_lists(column, indices) if _is_numeric_list(column.type) else column.take(arrow_indices)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _is_numeric_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))
    )


def _take_lists(lists: pa.Array, indices: IntArray) -> pa.Array:
    values, offsets = list_parts(lists)
    low = offsets[indices]
    taken = offsets_of(offsets[indices + 1] - low)
    out = np.empty(int(taken[-1]), dtype=values.dtype)
    copy_windows(values, low, taken, out)
    return list_array(out, taken, lists.type)


@numba.njit(cache=True, nogil=True)
def copy_windows(values: NumpyArray, low: NumpyArray, offsets: NumpyArray, out: NumpyArray) -> None:
    """Fill `out[offsets[i] : offsets[i + 1]]` from `values[low[i] :]`."""
    for i in range(low.shape[0]):
        first = offsets[i]
        for j in range(offsets[i + 1] - first):
            out[first + j] = values[low[i] + j]
