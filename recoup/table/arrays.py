"""Arrays of this floor, and lists of Arrow as flat buffers: no copy, no Python object a row."""

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute

NumpyArray: TypeAlias = np.ndarray[Any, Any]
IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
BoolArray: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

compute: Any = pyarrow.compute
"""Generated when imported, so a type checker cannot see its functions."""


def list_parts(array: pa.Array) -> tuple[NumpyArray, IntArray]:
    """Return the items buffer of a list array and its n + 1 offsets into it, int64; views where Arrow allows it.

    Without nulls. A sliced array keeps its whole buffer: offsets need not start at 0.
    """
    assert pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    assert array.null_count == array.values.null_count == 0, "lists of a table have no nulls"
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return array.values.to_numpy(zero_copy_only=False), offsets


def list_array(items: pa.Array | NumpyArray, offsets: IntArray, kind: pa.DataType) -> pa.Array:
    """Return the lists `items[offsets[i] : offsets[i + 1]]` as an array of type `kind` (list<...>)."""
    assert offsets[-1] < 2**31, "a batch holds fewer than 2**31 items a column"
    values = items if isinstance(items, pa.Array) else pa.array(items, type=kind.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=kind)


def new_numbers(size: int, kind: pa.DataType) -> NumpyArray:
    """Return `size` numbers of a type, not initialised, in memory of Arrow's pool.

    Arrow hands out the pages of freed buffers again; NumPy's large arrays are fresh pages each time, and touching those
    doubles the time of a copy (27 against 50 ms for 230 MB, 2-core AMD EPYC).
    """
    dtype = np.dtype(kind.to_pandas_dtype())
    return np.frombuffer(pa.allocate_buffer(size * dtype.itemsize), dtype=dtype)


def offsets_of(lengths: NumpyArray) -> IntArray:
    """Return the n + 1 offsets of lists of these lengths laid back to back."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
