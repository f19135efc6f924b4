"""Take rows of a batch by index: list columns are copied list by list in one kernel, several times Arrow's own take."""

import numba
import numpy as np
import pyarrow as pa

from recoup.table.arrays import IntArray, NumpyArray, list_array, list_parts, new_numbers, offsets_of


def take_rows(batch: pa.RecordBatch, indices: IntArray, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Return the rows of `batch` at `indices`, in their order.

    Args:
        batch: numeric lists without nulls, and other columns.
        indices: int64 [n].
        schema: of the result: the batch's, but its lists of int64 and int32 may be of the other width. A list column
            whose numbers do not fit int32 stays int64.
    Cost: one copy of what is taken, in which the width changes too.
    """
    arrow_indices = pa.array(indices)
    fields = list(batch.schema if schema is None else schema)
    arrays = [
        _take_lists(column, indices, field.type) if _is_numeric_list(column.type) else column.take(arrow_indices)
        for column, field in zip(batch.columns, fields, strict=True)
    ]
    typed = [field.with_type(array.type) for field, array in zip(fields, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(typed))


def narrowest(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with lists of int32 for lists of int64."""
    return pa.schema([field.with_type(_narrow(field.type)) for field in schema])


def _narrow(kind: pa.DataType) -> pa.DataType:
    if not (pa.types.is_list(kind) and pa.types.is_int64(kind.value_type)):
        return kind
    return pa.list_(kind.value_field.with_type(pa.int32()))


def _is_numeric_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))
    )


def _take_lists(lists: pa.Array, indices: IntArray, kind: pa.DataType) -> pa.Array:
    values, offsets = list_parts(lists)
    low = offsets[indices]
    taken = offsets_of(offsets[indices + 1] - low)
    out = new_numbers(int(taken[-1]), kind.value_type)
    if values.dtype != np.int64 or out.dtype != np.int32:
        copy_windows(values, low, taken, out)
    elif not _narrow_windows(values, low, taken, out):
        return _take_lists(lists, indices, lists.type)
    return list_array(out, taken, kind)


@numba.njit(cache=True, nogil=True)
def copy_windows(values: NumpyArray, low: NumpyArray, offsets: NumpyArray, out: NumpyArray) -> None:
    """Fill `out[offsets[i] : offsets[i + 1]]` from `values[low[i] :]`."""
    for i in range(low.shape[0]):
        first = offsets[i]
        for j in range(offsets[i + 1] - first):
            out[first + j] = values[low[i] + j]


@numba.njit(cache=True, nogil=True)
def _narrow_windows(values: NumpyArray, low: NumpyArray, offsets: NumpyArray, out: NumpyArray) -> bool:
    """Copy windows of int64 to int32 and return whether every number fits."""
    beyond = np.int64(0)
    for i in range(low.shape[0]):
        first = offsets[i]
        for j in range(offsets[i + 1] - first):
            number = values[low[i] + j]
            out[first + j] = np.int32(number)
            beyond |= (number + np.int64(2**31)) >> 32  # 0 for -2**31 <= number < 2**31
    return beyond == 0
