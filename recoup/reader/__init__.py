"""The reader: from a session table to batches of unique rows, resumable at every batch, in or beside the process.

Worker processes import this package too and need no torch; what needs it is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING

from recoup.reader.config import ReaderConfig, SampleRange
from recoup.reader.errors import ReaderError
from recoup.reader.transforms.config import (
    Bucketise,
    Clamp,
    Cross,
    Fill,
    Hash,
    Log1p,
    Modulo,
    NGram,
    TransformConfig,
    Truncate,
    UniqueIds,
    Vocabulary,
)

if TYPE_CHECKING:
    from recoup.reader.session_reader import ReaderReport, SessionReader

__all__ = [
    "Bucketise",
    "Clamp",
    "Cross",
    "Fill",
    "Hash",
    "Log1p",
    "Modulo",
    "NGram",
    "ReaderConfig",
    "ReaderError",
    "ReaderReport",
    "SampleRange",
    "SessionReader",
    "TransformConfig",
    "Truncate",
    "UniqueIds",
    "Vocabulary",
]

_NEEDS_TORCH = {"ReaderReport", "SessionReader"}


def __getattr__(name: str) -> object:
    """Import what needs torch when it is first asked for."""
    if name in _NEEDS_TORCH:
        return getattr(importlib.import_module("recoup.reader.session_reader"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
