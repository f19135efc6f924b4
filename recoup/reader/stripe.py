"""Decode a stripe: the selected columns of its row groups as flat NumPy views on Arrow's buffers.

No Python object is made per row: a list column is its offsets and its values. Only selected columns are read.
Guarantee: what the kernels index later was checked here (list lengths agree, inverse and windows stay in bounds), so a
damaged file is an error that names the file, never a wild read. Memory: one stripe, decoded.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray

from recoup.reader.errors import ReaderError
from recoup.reader.gather import Buffers, buffers
from recoup.reader.plan import RowGroupSlice, Stripe
from recoup.reader.selection import Selection

Offsets: TypeAlias = NDArray[np.int32]

MAX_OPEN_FILES = 16
TIME = "time"


@dataclass(frozen=True, kw_only=True, slots=True)
class ListBlock:
    """The features of one group of a stripe, as the gather kernels take them: one buffer a feature."""

    features: tuple[str, ...]
    value_off: Buffers
    """int32 [rows + 1]."""
    start: Buffers
    """int32, one a version; no buffers outside groups."""
    length: Buffers
    """int32, one a version, or one a sample outside groups."""
    values: Buffers
    """int64, or float32 for the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupColumns:
    """One dedup group of a stripe, or the features outside every group (`inverse` is empty)."""

    inverse: NDArray[np.int32]
    version_off: Offsets
    lists: ListBlock
    weights: ListBlock
    """The weighted ones among the features, their weights in place of IDs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedStripe:
    """Flat columns of a stripe; `sample_off` bounds each session row in every per-sample column."""

    num_samples: NDArray[np.int64]
    session_of_row: NDArray[np.int64]
    continues: bool
    """True: the first row is a later chunk of the session before it."""
    sample_off: Offsets
    time: Buffers
    labels: Buffers
    dense: Buffers
    groups: dict[str, GroupColumns]


class StripeFiles:
    """The table's part files, opened when first needed; the most recently used stay open."""

    def __init__(self, parts: Sequence[str], selection: Selection) -> None:
        """Open nothing yet."""
        self._parts = parts
        self._selection = selection
        self._open: OrderedDict[int, pq.ParquetFile] = OrderedDict()

    def decode(self, stripe: Stripe) -> DecodedStripe:
        """Read and check the stripe.

        Raises:
            ReaderError: a file is missing, damaged, or lacks a column that may not be missing.
        """
        tables = [self._read(piece) for piece in stripe.slices]
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
        where = ", ".join(dict.fromkeys(self._parts[piece.part] for piece in stripe.slices))
        return _decode(table, self._selection, where)

    def _read(self, piece: RowGroupSlice) -> pa.Table:
        path = self._parts[piece.part]
        try:
            file = self._file(piece.part)
            names = self._columns(file.schema_arrow.names, path)
            table = file.read_row_group(piece.row_group, columns=names, use_threads=False)
        except (OSError, pa.ArrowException) as err:
            raise ReaderError(
                f"expected a readable table part at {path}, got: {str(err).splitlines()[0]}: "
                f"check it with 'table verify'"
            ) from err
        if piece.first_row or piece.num_rows != table.num_rows:
            table = table.slice(piece.first_row, piece.num_rows)
        return table

    def _file(self, part: int) -> pq.ParquetFile:
        if part in self._open:
            self._open.move_to_end(part)
            return self._open[part]
        file = pq.ParquetFile(self._parts[part], page_checksum_verification=True, pre_buffer=False)
        self._open[part] = file
        if len(self._open) > MAX_OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return file

    def _columns(self, found: Sequence[str], path: str) -> list[str]:
        selection = self._selection
        names = ["num_samples", "chunk", TIME, *selection.labels]
        names += [name for name in selection.dense if _is_there(name, name, found, selection, path)]
        for group, features in selection.groups:
            if group:
                names.append(f"{group}__inverse")
            for feature in features:
                if not _is_there(feature, f"{feature}__values", found, selection, path):
                    continue
                names += [f"{feature}__values", f"{feature}__length"]
                names += [f"{feature}__start"] if group else []
                names += [f"{feature}__weights"] if feature in selection.weighted else []
        absent = [name for name in names if name not in found]
        if absent:
            raise ReaderError(f"expected column {absent[0]!r} in {path}, got {sorted(found)}: rebuild the table")
        return names


def _is_there(feature: str, column: str, found: Sequence[str], selection: Selection, path: str) -> bool:
    if column in found:
        return True
    if feature in selection.may_be_missing:
        return False
    raise ReaderError(
        f"expected column {column!r} of feature {feature!r} in {path}, got none: rebuild the table, or declare "
        f"missing = 'empty' for the feature in the schema"
    )


def _decode(table: pa.Table, selection: Selection, where: str) -> DecodedStripe:
    time_off, time = _list_column(table, TIME)
    num_samples = table.column("num_samples").to_numpy().astype(np.int64)
    chunk = table.column("chunk").to_numpy()
    if not np.array_equal(np.diff(time_off), num_samples):
        raise _damaged(f"num_samples equal to the length of list {TIME!r}", where)
    session = np.cumsum(chunk == 0, dtype=np.int64) - 1
    return DecodedStripe(
        num_samples=num_samples,
        session_of_row=session - session[0] if session.size else session,
        continues=bool(chunk.size and chunk[0] > 0),
        sample_off=time_off,
        time=buffers([time]),
        labels=buffers([_per_sample(table, name, time_off, where) for name in selection.labels]),
        dense=buffers([_per_sample(table, name, time_off, where) for name in selection.dense]),
        groups={
            group: _group(table, (group, features), time_off, selection, where) for group, features in selection.groups
        },
    )


def _group(
    table: pa.Table, named: tuple[str, Sequence[str]], sample_off: Offsets, selection: Selection, where: str
) -> GroupColumns:
    group, features = named
    inverse, version_off = np.empty(0, dtype=np.int32), sample_off
    if group:
        inverse_off, inverse = _list_column(table, f"{group}__inverse")
        _same_offsets(inverse_off, sample_off, f"{group}__inverse", where)
        present = [feature for feature in features if f"{feature}__length" in table.column_names]
        if present:
            version_off, _ = _list_column(table, f"{present[0]}__length")
        else:
            version_off = _count_versions(sample_off, inverse)
        if version_off.size != sample_off.size or not _inverse_is_valid(sample_off, version_off, inverse):
            raise _damaged(f"entries of {group}__inverse below the session's number of versions", where)
    columns = {feature: _sparse(table, feature, version_off, where, grouped=bool(group)) for feature in features}
    weighted = [feature for feature in features if feature in selection.weighted]
    weights = {feature: _weights(table, feature, columns[feature].value_off, where) for feature in weighted}
    return GroupColumns(
        inverse=inverse,
        version_off=version_off,
        lists=_block(features, columns, {feature: columns[feature].values for feature in features}),
        weights=_block(weighted, columns, weights),
    )


@dataclass(frozen=True, slots=True)
class _Sparse:
    value_off: Offsets
    values: NDArray[np.int64]
    length: NDArray[np.int32]
    start: NDArray[np.int32] | None


def _block(features: Sequence[str], columns: Mapping[str, _Sparse], values: Mapping[str, NDArray[Any]]) -> ListBlock:
    chosen = [columns[feature] for feature in features]
    return ListBlock(
        features=tuple(features),
        value_off=buffers([column.value_off for column in chosen]),
        start=buffers([column.start for column in chosen if column.start is not None]),
        length=buffers([column.length for column in chosen]),
        values=buffers([values[feature] for feature in features]),
    )


def _sparse(table: pa.Table, feature: str, row_off: Offsets, where: str, *, grouped: bool) -> _Sparse:
    """Return a feature's columns; `row_off` bounds each session's rows (versions, or samples outside groups)."""
    if f"{feature}__values" not in table.column_names:
        zeros = np.zeros(int(row_off[-1]), dtype=np.int32)
        return _Sparse(np.zeros_like(row_off), np.empty(0, dtype=np.int64), zeros, zeros if grouped else None)
    value_off, values = _list_column(table, f"{feature}__values")
    length_off, length = _list_column(table, f"{feature}__length")
    _same_offsets(length_off, row_off, f"{feature}__length", where)
    start = None
    if grouped:
        start_off, start = _list_column(table, f"{feature}__start")
        _same_offsets(start_off, row_off, f"{feature}__start", where)
        valid = _windows_are_valid(row_off, value_off, start, length)
    else:
        valid = _lengths_are_valid(row_off, value_off, length)
    if not valid:
        raise _damaged(f"windows of {feature} inside its values", where)
    return _Sparse(value_off, values, length, start)


def _weights(table: pa.Table, feature: str, value_off: Offsets, where: str) -> NDArray[np.float32]:
    if f"{feature}__weights" not in table.column_names:
        return np.empty(0, dtype=np.float32)
    weights_off, weights = _list_column(table, f"{feature}__weights")
    _same_offsets(weights_off, value_off, f"{feature}__weights", where)
    return weights


def _per_sample(table: pa.Table, name: str, sample_off: Offsets, where: str) -> NDArray[np.float32]:
    if name not in table.column_names:
        return np.zeros(int(sample_off[-1]), dtype=np.float32)
    off, values = _list_column(table, name)
    _same_offsets(off, sample_off, name, where)
    return values


def _list_column(table: pa.Table, name: str) -> tuple[Offsets, NDArray[Any]]:
    """Return (offsets, values) of a list column, without a copy when it is one chunk."""
    column = table.column(name)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=column.type)
    return array.offsets.to_numpy(), array.values.to_numpy(zero_copy_only=True)


def _same_offsets(found: Offsets, expected: Offsets, column: str, where: str) -> None:
    if found is not expected and not np.array_equal(found, expected):
        raise _damaged(f"lists of column {column!r} as long as their session", where)


def _damaged(expected: str, where: str) -> ReaderError:
    return ReaderError(f"expected {expected}, got a contradiction in {where}: check it with 'table verify'")


@njit(cache=True, nogil=True)
def _inverse_is_valid(sample_off: Offsets, version_off: Offsets, inverse: NDArray[np.int32]) -> bool:
    bad = 0
    for r in range(sample_off.size - 1):
        count = np.uint32(version_off[r + 1] - version_off[r])
        for i in range(sample_off[r], sample_off[r + 1]):
            bad += np.uint32(inverse[i]) >= count
    return bad == 0


@njit(cache=True, nogil=True)
def _windows_are_valid(
    row_off: Offsets, value_off: Offsets, start: NDArray[np.int32], length: NDArray[np.int32]
) -> bool:
    bad = 0
    for r in range(row_off.size - 1):
        size = np.int64(value_off[r + 1] - value_off[r])
        for v in range(row_off[r], row_off[r + 1]):
            bad += (start[v] < 0) | (length[v] < 0) | (np.int64(start[v]) + np.int64(length[v]) > size)
    return bad == 0


@njit(cache=True, nogil=True)
def _lengths_are_valid(row_off: Offsets, value_off: Offsets, length: NDArray[np.int32]) -> bool:
    bad = 0
    for r in range(row_off.size - 1):
        total = np.int64(0)
        signs = np.int32(0)
        for i in range(row_off[r], row_off[r + 1]):
            signs |= length[i]
            total += length[i]
        bad += (signs < 0) | (total != value_off[r + 1] - value_off[r])
    return bad == 0


@njit(cache=True, nogil=True)
def _count_versions(sample_off: Offsets, inverse: NDArray[np.int32]) -> NDArray[np.int32]:
    version_off = np.zeros(sample_off.size, dtype=np.int32)
    for r in range(sample_off.size - 1):
        count = 0
        for i in range(sample_off[r], sample_off[r + 1]):
            count = max(count, inverse[i] + 1)
        version_off[r + 1] = version_off[r] + count
    return version_off
