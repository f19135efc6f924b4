"""How a table part stores the IDs of a feature: a column of codes, as lists, and one of the part's hot IDs.

The list of hot IDs stands in the part's first row; in every other row it is empty.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.coding.popularity import IntArray


def codes_column(feature: str) -> str:
    """Return the column of a part that holds the IDs of `feature` as codes."""
    return f"{feature}__codes"


def hot_column(feature: str) -> str:
    """Return the column of a part that holds the hot IDs of `feature`."""
    return f"{feature}__hot"


def stored_feature(part: pa.Schema, feature: str) -> str:
    """Return what is wrong with the two columns of `feature` in a part; empty if they are there, lists of int64."""
    for name in (codes_column(feature), hot_column(feature)):
        found = part.field(name).type if name in part.names else None
        is_list = found is not None and (pa.types.is_list(found) or pa.types.is_large_list(found))
        if not is_list or found.value_type != pa.int64():
            return f"expected column {name!r} of lists of int64, got {'none' if found is None else found}"
    return ""


def read_hot(part: pq.ParquetFile, features: Iterable[str]) -> dict[str, IntArray]:
    """Return the hot IDs of each of `features`, int64 [K], of an open part that stores them (`stored_feature`).

    Raises:
        OSError, pa.ArrowException: the part is damaged.
    Cost: reads these columns of the first row group.
    """
    columns = {feature: hot_column(feature) for feature in features}
    number = _first_with_rows(part)
    if not columns or number is None:
        return dict.fromkeys(columns, np.empty(0, dtype=np.int64))
    rows = part.read_row_group(number, columns=list(columns.values()), use_threads=False)
    return {feature: rows.column(name).chunk(0).slice(0, 1).flatten().to_numpy() for feature, name in columns.items()}


def _first_with_rows(part: pq.ParquetFile) -> int | None:
    metadata = part.metadata
    return next((n for n in range(metadata.num_row_groups) if metadata.row_group(n).num_rows), None)
