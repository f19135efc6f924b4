"""The InverseKeyedJaggedTensor and its kernels: each distinct row once, and where every sample finds it."""

from recoup.jagged import pytree
from recoup.jagged.batch import Batch
from recoup.jagged.dedup import dedup
from recoup.jagged.errors import JaggedError
from recoup.jagged.expand import expand, offsets_of, pack_rows, plain_batch
from recoup.jagged.expand_rows import expand_rows, sum_rows
from recoup.jagged.factor import dedup_factor, measured_factor, window_factor
from recoup.jagged.ikjt import InverseKeyedJaggedTensor, JaggedRows, keys_of
from recoup.jagged.interchange import from_kjt, group_kjt, to_kjt
from recoup.jagged.validate import check_lengths, check_offsets, validate

pytree.register()

__all__ = [
    "Batch",
    "InverseKeyedJaggedTensor",
    "JaggedError",
    "JaggedRows",
    "check_lengths",
    "check_offsets",
    "dedup",
    "dedup_factor",
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
