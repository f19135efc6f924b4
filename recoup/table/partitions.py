"""Partitions of a table by time: which day or hour (UTC) a row's session begins in, and its folder's name."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from recoup.table.layout import START

_MS = {"day": 86_400_000, "hour": 3_600_000}
_FORMAT = {"day": "day=%Y-%m-%d", "hour": "hour=%Y-%m-%d-%H"}


def partitioned(rows: pa.RecordBatch, by: Literal["none", "day", "hour"]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield rows in order of session start as runs of one partition, with its folder's name ("" without partitions)."""
    if by == "none":
        yield "", rows
        return
    number = rows.column(START).to_numpy(zero_copy_only=False) // _MS[by]
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), rows.num_rows]
    for low, high in pairwise(edges):
        if low < high:
            moment = datetime.fromtimestamp(int(number[low]) * _MS[by] / 1000, tz=UTC)
            yield moment.strftime(_FORMAT[by]), rows.slice(low, high - low)
