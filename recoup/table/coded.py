"""Between the rows of a table, which hold IDs, and the rows of a part, which hold codes and the part's hot IDs."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from recoup.coding import HotCodes, codes_column, hot_column, ids_of
from recoup.table.arrays import IntArray, list_array, list_parts
from recoup.table.layout import feature_of_values, part_schema


def coded_rows(rows: pa.Table, codes: Mapping[str, HotCodes], *, with_hot: bool) -> pa.Table | None:
    """Return `rows` as a part stores them; None if some ID has no code.

    Args:
        rows: of `row_schema(...)`.
        codes: of every feature.
        with_hot: put the hot IDs into the first row: these rows are the first of their part.
    Cost: a probe an ID; other columns are not copied.
    """
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    for field in rows.schema:
        feature = feature_of_values(field)
        if feature is None:
            columns[field.name] = rows.column(field.name)
            continue
        coded = [_coded(chunk, codes[feature]) for chunk in rows.column(field.name).chunks]
        if any(chunk is None for chunk in coded):
            return None
        columns[codes_column(feature)] = pa.chunked_array(coded, field.type)
        hot = codes[feature].hot[: None if with_hot and rows.num_rows else 0]
        ends = np.full(rows.num_rows + 1, len(hot), dtype=np.int64)
        ends[0] = 0
        columns[hot_column(feature)] = list_array(hot, ends, field.type)
    return pa.table(columns, schema=part_schema(rows.schema))


def with_ids(stored: pa.RecordBatch, hot: Mapping[str, IntArray], rows: pa.Schema) -> pa.RecordBatch:
    """Return rows of a part, read without its hot IDs, as rows of `rows`.

    Args:
        stored: columns of `part_schema(rows)` but those of hot IDs.
        hot: of every feature whose codes are there.
        rows: of `row_schema(...)`, or some of its columns.
    Cost: a copy of the IDs.
    """
    columns: list[pa.Array] = []
    for field in rows:
        feature = feature_of_values(field)
        if feature is None:
            columns.append(stored.column(field.name))
            continue
        numbers, offsets = list_parts(stored.column(codes_column(feature)))
        ids = numbers[offsets[0] : offsets[-1]].copy()
        ids_of(ids, hot[feature])
        columns.append(list_array(ids, offsets - offsets[0], field.type))
    return pa.RecordBatch.from_arrays(columns, names=rows.names)


def _coded(lists: pa.Array, codes: HotCodes) -> pa.Array | None:
    numbers, offsets = list_parts(lists)
    coded = codes.encode(numbers[offsets[0] : offsets[-1]])
    return None if coded is None else list_array(coded, offsets - offsets[0], lists.type)
