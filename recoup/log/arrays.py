"""Two names for typing: a NumPy array of any element type, and Arrow's compute functions."""

from typing import Any, TypeAlias

import numpy as np
import pyarrow.compute

NumpyArray: TypeAlias = "np.ndarray[Any, Any]"

compute: Any = pyarrow.compute
"""Generated when imported, so a type checker cannot see its functions."""
