"""Decode a stripe: the selected columns of its row groups as flat arrays, checked.

No Python object is made per row: a list column is its offsets and its values. Only selected columns are read.
Guarantee: what the kernels index later was checked here (list lengths agree, inverse and windows stay in bounds), so a
damaged file is an error that names the file, never a wild read. Memory: one stripe, decoded.

The spelling of column names is the table layout's (recoup/table/layout.py); most of it is repeated here because
importing recoup.table would cost every worker half a second and the database engine. A test holds both together.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from recoup.coding import codes_column, hot_column
from recoup.reader.columns import Column, PartFile
from recoup.reader.errors import ReaderError
from recoup.reader.gather import Buffers, buffers
from recoup.reader.memory import frozen
from recoup.reader.plan import RowGroupSlice, Stripe
from recoup.reader.selection import Selection

Array: TypeAlias = NDArray[Any]
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
        self._open: OrderedDict[int, PartFile] = OrderedDict()

    def decode(self, stripe: Stripe) -> DecodedStripe:
        """Read and check the stripe.

        Raises:
            ReaderError: a file is missing, damaged, or lacks a column that may not be missing.
        """
        pieces = [self._piece(piece) for piece in stripe.slices]
        for before, here, piece in zip(stripe.slices, stripe.slices[1:], pieces[1:], strict=False):
            if here.ordinal != before.ordinal + 1:
                piece.chunk[:1] = 0  # its first chunks do not belong to the session before them here
        return _stripe(pieces[0] if len(pieces) == 1 else _joined(pieces, self._selection), self._selection)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _piece(self, piece: RowGroupSlice) -> "_Piece":
        path = self._parts[piece.part]
        try:
            file = self._file(piece.part)
            names, with_offsets = _column_names(self._selection, file.names, path)
            columns = file.read(piece.row_group, names, with_offsets)
        except (OSError, pa.ArrowException) as err:
            raise ReaderError(
                f"expected a readable table part at {path}, got: {str(err).splitlines()[0]}: "
                f"check it with 'table verify'"
            ) from err
        whole = _checked(columns, self._selection, path)
        return whole.rows(piece.first_row, piece.num_rows)

    def _file(self, part: int) -> PartFile:
        if part in self._open:
            self._open.move_to_end(part)
            return self._open[part]
        file = PartFile(self._parts[part])
        self._open[part] = file
        if len(self._open) > MAX_OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return file


@dataclass(frozen=True, slots=True)
class _Sparse:
    """One feature; offsets bound the session rows."""

    value_off: Offsets
    values: NDArray[np.int64]
    length: NDArray[np.int32]
    start: NDArray[np.int32] | None
    weights: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Session rows of one row group; offsets need not begin at 0."""

    num_samples: NDArray[np.int64]
    chunk: NDArray[np.int32]
    sample_off: Offsets
    per_sample: dict[str, Array]
    inverse: dict[str, NDArray[np.int32]]
    version_off: dict[str, Offsets]
    """Of every group; the sample offsets for the group ""."""
    sparse: dict[str, _Sparse]

    def rows(self, first: int, count: int) -> "_Piece":
        """Return the piece cut to some of its rows; no values are copied."""
        if first == 0 and count == self.num_samples.size:
            return self
        edges = slice(first, first + count + 1)
        return _Piece(
            num_samples=self.num_samples[first : first + count],
            chunk=self.chunk[first : first + count],
            sample_off=self.sample_off[edges],
            per_sample=self.per_sample,
            inverse=self.inverse,
            version_off={group: offsets[edges] for group, offsets in self.version_off.items()},
            sparse={
                name: _Sparse(s.value_off[edges], s.values, s.length, s.start, s.weights)
                for name, s in self.sparse.items()
            },
        )


def _column_names(selection: Selection, found: frozenset[str], path: str) -> tuple[list[str], set[str]]:
    """Return the columns to read, and those among them whose list lengths no other column tells."""
    names = ["num_samples", "chunk", TIME, *selection.labels]
    names += [name for name in selection.dense if _is_there(name, name, found, selection, path)]
    with_offsets: set[str] = set()
    for group, features in selection.groups:
        if group:
            names.append(f"{group}__inverse")
        present = [f for f in features if _is_there(f, codes_column(f), found, selection, path)]
        for feature in present:
            names += [f"{feature}__values", f"{feature}__length"]
            names += [f"{feature}__start"] if group else []
            if feature in selection.weighted:
                names.append(f"{feature}__weights")
                with_offsets.add(f"{feature}__weights")
        if group:
            with_offsets |= {f"{feature}__values" for feature in present} | {f"{f}__length" for f in present[:1]}
    absent = [name for name in names if name not in found]
    if absent:
        feature = absent[0].removesuffix("__values")
        columns = f"column {absent[0]!r}"
        if feature != absent[0]:  # IDs are stored otherwise
            columns = f"columns {codes_column(feature)!r} and {hot_column(feature)!r} of lists of int64"
        raise ReaderError(f"expected {columns} in {path}, got {sorted(found)}: rebuild the table")
    return names, with_offsets


def _is_there(feature: str, column: str, found: frozenset[str], selection: Selection, path: str) -> bool:
    if column in found:
        return True
    if feature in selection.may_be_missing:
        return False
    raise ReaderError(
        f"expected column {column!r} of feature {feature!r} in {path}, got none: rebuild the table, or declare "
        f"missing = 'empty' for the feature in the schema"
    )


def _checked(columns: Mapping[str, Column], selection: Selection, where: str) -> _Piece:
    """Resolve all offsets of a row group and check what the kernels rely on."""
    num_samples = columns["num_samples"].values.astype(np.int64)
    ends = np.zeros(num_samples.size + 1, dtype=np.int32)
    np.cumsum(num_samples, out=ends[1:])
    sample_off = frozen(ends)

    def per_sample(name: str) -> Array:
        return _values(columns, name, sample_off, where)

    inverse: dict[str, NDArray[np.int32]] = {}
    version_off: dict[str, Offsets] = {}
    sparse: dict[str, _Sparse] = {}
    for group, features in selection.groups:
        version_off[group] = sample_off
        if group:
            inverse[group] = per_sample(f"{group}__inverse")
            version_off[group] = _version_offsets(columns, features, sample_off, inverse[group])
            if not _inverse_is_valid(sample_off, version_off[group], inverse[group]):
                raise _damaged(f"entries of {group}__inverse below the session's number of versions", where)
        for feature in features:
            sparse[feature] = _sparse(columns, feature, version_off[group], (bool(group), where))
    zeros = np.zeros(int(sample_off[-1]), dtype=np.float32)
    return _Piece(
        num_samples=num_samples,
        chunk=columns["chunk"].values.copy(),
        sample_off=sample_off,
        per_sample={TIME: per_sample(TIME)}
        | {name: per_sample(name) if name in columns else zeros for name in (*selection.labels, *selection.dense)},
        inverse=inverse,
        version_off=version_off,
        sparse=sparse,
    )


def _version_offsets(
    columns: Mapping[str, Column], features: Sequence[str], sample_off: Offsets, inverse: NDArray[np.int32]
) -> Offsets:
    for feature in features:
        if f"{feature}__length" in columns:
            offsets = columns[f"{feature}__length"].offsets
            assert offsets is not None  # asked for
            return offsets
    return _count_versions(sample_off, inverse)


def _sparse(columns: Mapping[str, Column], feature: str, row_off: Offsets, how: tuple[bool, str]) -> _Sparse:
    """Return a feature's arrays; `row_off` bounds each session's rows (versions, or samples outside groups)."""
    grouped, where = how
    if f"{feature}__values" not in columns:
        zeros = np.zeros(int(row_off[-1]), dtype=np.int32)
        empty = np.empty(0, dtype=np.int64)
        return _Sparse(np.zeros_like(row_off), empty, zeros, zeros if grouped else None, empty.astype(np.float32))
    column = columns[f"{feature}__values"]
    length = _values(columns, f"{feature}__length", row_off, where)
    start: NDArray[np.int32] | None = None
    if grouped:
        assert column.offsets is not None  # asked for
        value_off = column.offsets
        start = _values(columns, f"{feature}__start", row_off, where)
        valid = _windows_are_valid(row_off, value_off, start, length)
    else:
        value_off = np.zeros_like(row_off)
        valid = _add_lengths(row_off, length, value_off)
        valid &= value_off[-1] == column.values.size
        valid &= column.offsets is None or np.array_equal(column.offsets, value_off)
    if not valid:
        raise _damaged(f"windows of {feature} inside its values", where)
    weights = None
    if f"{feature}__weights" in columns:
        weights = _values(columns, f"{feature}__weights", value_off, where)
    return _Sparse(value_off, column.values, length, start, weights)


def _values(columns: Mapping[str, Column], name: str, row_off: Offsets, where: str) -> Array:
    """Return a column's values after checking that its lists are as long as `row_off` says."""
    column = columns[name]
    same = column.values.size == row_off[-1]
    if column.offsets is not None and column.offsets is not row_off:
        same = np.array_equal(column.offsets, row_off)
    if not same:
        raise _damaged(f"lists of column {name!r} as long as their session", where)
    return column.values


def _damaged(expected: str, where: str) -> ReaderError:
    return ReaderError(f"expected {expected}, got a contradiction in {where}: check it with 'table verify'")


def _joined(pieces: Sequence[_Piece], selection: Selection) -> _Piece:
    """Return the rows of all pieces as one, everything copied."""
    sample_offs = [piece.sample_off for piece in pieces]
    first = pieces[0]

    def join(offsets: Sequence[Offsets], arrays: Callable[[_Piece], Array]) -> Array:
        return np.concatenate([arrays(p)[o[0] : o[-1]] for p, o in zip(pieces, offsets, strict=True)])

    sparse: dict[str, _Sparse] = {}
    group_of = {name: group for group, names in selection.groups for name in names}
    for name, source in first.sparse.items():
        rows = [piece.version_off[group_of[name]] for piece in pieces]
        values = [piece.sparse[name].value_off for piece in pieces]

        sparse[name] = _Sparse(
            value_off=_join_offsets(values),
            values=join(values, partial(_field, name, "values")),
            length=join(rows, partial(_field, name, "length")),
            start=None if source.start is None else join(rows, partial(_field, name, "start")),
            weights=None if source.weights is None else join(values, partial(_field, name, "weights")),
        )
    return _Piece(
        num_samples=np.concatenate([piece.num_samples for piece in pieces]),
        chunk=np.concatenate([piece.chunk for piece in pieces]),
        sample_off=_join_offsets(sample_offs),
        per_sample={name: join(sample_offs, lambda p, n=name: p.per_sample[n]) for name in first.per_sample},
        inverse={group: join(sample_offs, lambda p, g=group: p.inverse[g]) for group in first.inverse},
        version_off={group: _join_offsets([p.version_off[group] for p in pieces]) for group in first.version_off},
        sparse=sparse,
    )


def _field(name: str, field: str, piece: _Piece) -> Array:
    return getattr(piece.sparse[name], field)


def _join_offsets(offsets: Sequence[Offsets]) -> Offsets:
    lengths = np.concatenate([np.diff(o) for o in offsets])
    joined = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if joined[-1] > np.iinfo(np.int32).max:
        raise ReaderError(
            f"expected a window of at most 2**31 - 1 IDs a feature, got {joined[-1]}: lower window_sessions"
        )
    return joined.astype(np.int32)


def _stripe(piece: _Piece, selection: Selection) -> DecodedStripe:
    session = np.cumsum(piece.chunk == 0, dtype=np.int64) - 1
    groups: dict[str, GroupColumns] = {}
    for group, features in selection.groups:
        chosen = {feature: piece.sparse[feature] for feature in features}
        weighted = {name: s for name, s in chosen.items() if name in selection.weighted}
        groups[group] = GroupColumns(
            inverse=frozen(piece.inverse.get(group, np.empty(0, dtype=np.int32))),
            version_off=frozen(piece.version_off[group]),
            lists=_block(chosen, [s.values for s in chosen.values()]),
            weights=_block(weighted, [s.weights for s in weighted.values() if s.weights is not None]),
        )
    return DecodedStripe(
        num_samples=piece.num_samples,
        session_of_row=session - session[0] if session.size else session,
        continues=bool(piece.chunk.size and piece.chunk[0] > 0),
        sample_off=frozen(piece.sample_off),
        time=buffers([piece.per_sample[TIME]]),
        labels=buffers([piece.per_sample[name] for name in selection.labels]),
        dense=buffers([piece.per_sample[name] for name in selection.dense]),
        groups=groups,
    )


def _block(chosen: Mapping[str, _Sparse], values: Sequence[Array]) -> ListBlock:
    columns = list(chosen.values())
    return ListBlock(
        features=tuple(chosen),
        value_off=buffers([column.value_off for column in columns]),
        start=buffers([column.start for column in columns if column.start is not None]),
        length=buffers([column.length for column in columns]),
        values=buffers(values),
    )


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
def _add_lengths(row_off: Offsets, length: NDArray[np.int32], value_off: Offsets) -> bool:
    """Write where each session's values end; False when a length is negative."""
    signs = np.int32(0)
    total = np.int64(0)
    for r in range(row_off.size - 1):
        for i in range(row_off[r], row_off[r + 1]):
            signs |= length[i]
            total += length[i]
        value_off[r + 1] = total
    return bool(signs >= 0 and total < (1 << 31))


@njit(cache=True, nogil=True)
def _count_versions(sample_off: Offsets, inverse: NDArray[np.int32]) -> NDArray[np.int32]:
    version_off = np.zeros(sample_off.size, dtype=np.int32)
    for r in range(sample_off.size - 1):
        count = 0
        for i in range(sample_off[r], sample_off[r + 1]):
            count = max(count, inverse[i] + 1)
        version_off[r + 1] = version_off[r] + count
    return version_off
