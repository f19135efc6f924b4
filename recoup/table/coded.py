"""Between the rows of a table, which hold IDs, and the rows of a part, which hold codes and the part's hot IDs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.coding import HotCodes, codes_column, hot_column, ids_of, read_hot, stored_feature
from recoup.table.arrays import IntArray, list_array, list_parts
from recoup.table.errors import TableError
from recoup.table.layout import feature_of_values, part_schema


def uncoded_features(rows: pa.Table, codes: Mapping[str, HotCodes]) -> frozenset[str]:
    """Return the features of `rows`, of `row_schema(...)`, that hold an ID without a code. Cost: of one look each."""
    found: set[str] = set()
    for field in rows.schema:
        feature = feature_of_values(field)
        if feature is None:
            continue
        for chunk in rows.column(field.name).chunks:
            numbers, offsets = list_parts(chunk)
            if not codes[feature].holds(numbers[offsets[0] : offsets[-1]]):
                found.add(feature)
    return frozenset(found)


def coded_rows(rows: pa.Table, codes: Mapping[str, HotCodes], *, with_hot: bool) -> pa.Table:
    """Return `rows` as a part stores them.

    Args:
        rows: of `row_schema(...)`.
        codes: of every feature; all IDs have one (`uncoded_features`).
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


def checked_hot(part: pq.ParquetFile, path: Path, features: Sequence[str]) -> dict[str, IntArray]:
    """Return the hot IDs of each of `features`, int64 [K], of the open part at `path`.

    Raises:
        TableError: a feature is not stored as lists of int64.
        OSError, pa.ArrowException: the part is damaged.
    """
    for feature in features:
        wrong = stored_feature(part.schema_arrow, feature)
        if wrong:
            raise TableError(f"part '{path}': {wrong}: restore it or rebuild the table")
    return read_hot(part, features)


def coding_problems(path: Path, features: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the hot IDs and codes of the part at `path`, one line a finding.

    Raises:
        TableError: the part cannot be read.
    Cost: decodes the codes, and encodes them again.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as part:
            for feature, hot in checked_hot(part, path, features).items():
                yield from (f"part '{path}': {feature!r}: {text}" for text in _coding_problems(part, feature, hot))
    except (OSError, pa.ArrowException) as err:
        raise TableError(f"part '{path}' cannot be read: {err}: restore it or rebuild the table") from err


def _coding_problems(part: pq.ParquetFile, feature: str, hot: IntArray) -> Iterator[str]:
    if np.unique(hot).size != hot.size:
        yield f"expected distinct hot IDs, got {hot.size} of which {np.unique(hot).size} are distinct"
        return
    codes, listed = HotCodes(hot), 0
    for number in range(part.num_row_groups):
        rows = part.read_row_group(number, columns=[codes_column(feature), hot_column(feature)], use_threads=False)
        for chunk in rows.column(hot_column(feature)).chunks:
            listed += len(chunk.flatten())
        for chunk in rows.column(codes_column(feature)).chunks:
            if chunk.null_count or chunk.values.null_count:
                yield f"expected no nulls, got some in {codes_column(feature)!r} (row group {number})"
                return
            stored = chunk.flatten().to_numpy()
            ids = stored.copy()
            ids_of(ids, hot)
            for at in np.flatnonzero(codes.encode(ids) != stored)[:1]:
                yield f"expected the place of a hot ID as its code, got {stored[at]} for {ids[at]} (row group {number})"
    if listed != hot.size:
        yield f"expected hot IDs in the first row only, got {listed - hot.size} elsewhere"


def _coded(lists: pa.Array, codes: HotCodes) -> pa.Array:
    numbers, offsets = list_parts(lists)
    return list_array(codes.encode(numbers[offsets[0] : offsets[-1]]), offsets - offsets[0], lists.type)
