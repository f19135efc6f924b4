"""Arrays for buffers of a megabyte: from Arrow's pool, which keeps freed memory.

The C library gives such pieces back to the system at once, and every page of the next one costs a fault again: 2-3 ns
an ID on a virtual machine, as much as decoding it.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray


def empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array with arbitrary content, as `np.empty`."""
    size = shape if isinstance(shape, int) else math.prod(shape)
    if not size:
        return np.empty(shape, dtype=dtype)
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(dtype).itemsize), dtype=dtype).reshape(shape)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written through; kernels then see one type, whoever decoded the array."""
    view = array.view()
    view.flags.writeable = False
    return view
