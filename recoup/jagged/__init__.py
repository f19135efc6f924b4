"""The InverseKeyedJaggedTensor and its kernels: each distinct row once, and where every sample finds it.

Kernels and formulas need no torch, and processes that build tables have none: what needs it is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING

from recoup.jagged.errors import JaggedError
from recoup.jagged.factor import dedup_factor, measured_factor, window_factor

if TYPE_CHECKING:
    from recoup.jagged.batch import Batch, plain_batch
    from recoup.jagged.deduplication import dedup
    from recoup.jagged.expansion import drop_unused, expand, offsets_of, pack_rows
    from recoup.jagged.ikjt import InverseKeyedJaggedTensor, JaggedRows, keys_of
    from recoup.jagged.interchange import from_kjt, group_kjt, to_kjt
    from recoup.jagged.row_expansion import expand_rows, sum_rows
    from recoup.jagged.validation import check_lengths, check_offsets, validate

__all__ = [
    "Batch",
    "InverseKeyedJaggedTensor",
    "JaggedError",
    "JaggedRows",
    "check_lengths",
    "check_offsets",
    "dedup",
    "dedup_factor",
    "drop_unused",
    "expand",
    "expand_rows",
    "from_kjt",
    "group_kjt",
    "keys_of",
    "measured_factor",
    "offsets_of",
    "pack_rows",
    "plain_batch",
    "sum_rows",
    "to_kjt",
    "validate",
    "window_factor",
]

_MODULE_OF = {
    "Batch": "batch",
    "plain_batch": "batch",
    "dedup": "deduplication",
    "drop_unused": "expansion",
    "expand": "expansion",
    "offsets_of": "expansion",
    "pack_rows": "expansion",
    "InverseKeyedJaggedTensor": "ikjt",
    "JaggedRows": "ikjt",
    "keys_of": "ikjt",
    "from_kjt": "interchange",
    "group_kjt": "interchange",
    "to_kjt": "interchange",
    "expand_rows": "row_expansion",
    "sum_rows": "row_expansion",
    "check_lengths": "validation",
    "check_offsets": "validation",
    "validate": "validation",
}


def __getattr__(name: str) -> object:
    """Import what needs torch when it is first asked for."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"recoup.jagged.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
