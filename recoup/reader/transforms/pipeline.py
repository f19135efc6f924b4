"""Compile declared transforms into steps on fragments, and what must happen while rows are gathered.

A truncation is pushed down into the gather kernel (IDs that it cuts off are never copied) as long as only per-ID
transforms come before it; they commute. Everything else runs after, in the order declared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from recoup.reader import gather
from recoup.reader.errors import ReaderError
from recoup.reader.fragment import Fragment, Rows
from recoup.reader.selection import Groups, Selection
from recoup.reader.transforms import dense_kernels, id_kernels, list_kernels
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
from recoup.reader.transforms.vocabulary import VocabularyTable

Step: TypeAlias = Callable[[Fragment], None]

KEEP_ALL = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the gather kernels and the steps after them must do."""

    groups: Groups
    """Groups with the features that transforms add."""
    keep_last: dict[str, int]
    """Longest list of each feature that is gathered."""
    steps: tuple[Step, ...]

    def apply(self, fragment: Fragment) -> None:
        """Run all steps on `fragment`, changing it."""
        for step in self.steps:
            step(fragment)


def compile_transforms(transforms: Sequence[TransformConfig], selection: Selection) -> Pipeline:
    """Check the transforms against the selected features and compile them.

    Raises:
        ReaderError: an unknown feature, an output that exists, a cross of two groups, a weighted feature where
            weights would lose their meaning.
    """
    compiler = _Compiler(selection)
    for transform in transforms:
        compiler.add(transform)
    return compiler.pipeline()


class _Compiler:
    def __init__(self, selection: Selection) -> None:
        self._group_of = {feature: group for group, features in selection.groups for feature in features}
        self._order = [group for group, _ in selection.groups]
        self._dense = {name: i for i, name in enumerate(selection.dense)}
        self._weighted = selection.weighted
        self._keep_last: dict[str, int] = dict.fromkeys(self._group_of, KEEP_ALL)
        self._only_per_id = set(self._group_of)
        self._steps: list[Step] = []

    def pipeline(self) -> Pipeline:
        groups = tuple((g, tuple(f for f, of in self._group_of.items() if of == g)) for g in self._order)
        return Pipeline(groups=groups, keep_last=self._keep_last, steps=tuple(self._steps))

    def add(self, transform: TransformConfig) -> None:  # noqa: C901 -- one flat match over the union
        match transform:
            case Modulo():
                self._per_id(transform, lambda values: id_kernels.modulo_in_place(values, transform.size))
            case Hash():
                self._per_id(transform, lambda values: id_kernels.hash_in_place(values, transform.size, transform.seed))
            case Vocabulary():
                self._per_id(transform, VocabularyTable(transform).remap_in_place)
            case Clamp():
                self._clamp(transform)
            case Log1p():
                self._per_value(transform.kind, transform.features, _log1p(transform))
            case Truncate():
                self._truncate(transform)
            case Fill():
                for name in self._sparse(transform.kind, transform.features, weights=False):
                    self._steps.append(_fill(name, transform.value))
            case UniqueIds():
                for name in self._sparse(transform.kind, transform.features, weights=False):
                    self._only_per_id.discard(name)
                    self._steps.append(_unique_ids(name))
            case NGram():
                self._sparse(transform.kind, (transform.feature,), weights=False)
                self._output(transform.kind, transform.output, (transform.feature,))
                self._steps.append(_ngram(transform))
            case Cross():
                self._cross(transform)
            case Bucketise():
                self._bucketise(transform)

    def _sparse(self, kind: str, names: Sequence[str], *, weights: bool) -> Sequence[str]:
        for name in names:
            if name not in self._group_of:
                raise ReaderError(f"{kind}: expected a sparse feature of {sorted(self._group_of)}, got {name!r}")
            if not weights and name in self._weighted:
                raise ReaderError(f"{kind}: expected a feature without weights, got {name!r}, which has weights")
        return names

    def _per_id(self, transform: Modulo | Hash | Vocabulary, change: Callable[[np.ndarray], None]) -> None:
        for name in self._sparse(transform.kind, transform.features, weights=True):
            self._steps.append(_on_values(name, change))

    def _per_value(self, kind: str, names: Sequence[str], change: Callable[[np.ndarray], None]) -> None:
        for name in names:
            if name not in self._dense:
                raise ReaderError(f"{kind}: expected a dense feature of {sorted(self._dense)}, got {name!r}")
        self._steps += [_on_columns(run, change) for run in _runs([self._dense[name] for name in names])]

    def _clamp(self, transform: Clamp) -> None:
        low, high = transform.low, transform.high
        dense = [name for name in transform.features if name in self._dense]
        limits = (np.float32(low), np.float32(high))
        self._per_value(transform.kind, dense, lambda column: dense_kernels.clamp_in_place(column, *limits))
        for name in transform.features:
            if name in self._dense:
                continue
            self._sparse(transform.kind, (name,), weights=True)
            if not (low.is_integer() and high.is_integer()):
                raise ReaderError(f"clamp: expected whole numbers for sparse feature {name!r}, got {low} and {high}")
            clamp = partial(id_kernels.clamp_ids_in_place, low=int(low), high=int(high))
            self._steps.append(_on_values(name, clamp))

    def _truncate(self, transform: Truncate) -> None:
        for name in self._sparse(transform.kind, transform.features, weights=True):
            if name in self._only_per_id:
                self._keep_last[name] = min(self._keep_last[name], transform.last)
            else:
                self._steps.append(_truncate(name, transform.last))

    def _cross(self, transform: Cross) -> None:
        pair = (transform.first, transform.second)
        self._sparse(transform.kind, pair, weights=False)
        first, second = (self._group_of[name] for name in pair)
        if first != second:
            raise ReaderError(
                f"cross: expected two features of one dedup group, got {pair[0]!r} of group {first!r} and {pair[1]!r} "
                f"of group {second!r}: a pair of their rows would not repeat as the rows do"
            )
        self._output(transform.kind, transform.output, pair)
        self._steps.append(_cross(transform))

    def _bucketise(self, transform: Bucketise) -> None:
        if transform.feature not in self._dense:
            raise ReaderError(
                f"bucketise: expected a dense feature of {sorted(self._dense)}, got {transform.feature!r}"
            )
        self._output(transform.kind, transform.output, ())
        self._steps.append(_bucketise(transform, self._dense[transform.feature]))

    def _output(self, kind: str, name: str, sources: Sequence[str]) -> None:
        """Register a new feature; from here on its sources may not be truncated while gathering."""
        if name in self._group_of or name in self._dense:
            raise ReaderError(f"{kind}: expected a new name as output, got {name!r}, which is a feature already")
        group = self._group_of[sources[0]] if sources else ""
        if group not in self._order:
            self._order.append(group)
        self._group_of[name] = group
        self._only_per_id.difference_update(sources)


def _on_values(name: str, change: Callable[[np.ndarray], None]) -> Step:
    def step(fragment: Fragment) -> None:
        change(fragment.rows[name].values)

    return step


def _on_columns(columns: slice, change: Callable[[np.ndarray], None]) -> Step:
    def step(fragment: Fragment) -> None:
        change(fragment.dense_FB[columns].reshape(-1))  # neighbouring columns are one contiguous piece: a view

    return step


def _runs(numbers: Sequence[int]) -> list[slice]:
    """Return the distinct numbers as runs of neighbours."""
    runs: list[slice] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1].stop == number:
            runs[-1] = slice(runs[-1].start, number + 1)
        else:
            runs.append(slice(number, number + 1))
    return runs


def _log1p(transform: Log1p) -> Callable[[np.ndarray], None]:
    return lambda column: dense_kernels.log1p_in_place(column, transform.negative == "symmetric")


def _truncate(name: str, last: int) -> Step:
    def step(fragment: Fragment) -> None:
        rows = fragment.rows[name]
        fragment.rows[name] = _compact(rows, rows.values, last)
        if rows.weights is not None:
            fragment.rows[name].weights = _compact(rows, rows.weights, last).values

    return step


def _compact(rows: Rows, values: np.ndarray, last: int) -> Rows:
    """Return the rows cut to their last `last` entries, what is cut off left out, sharing kept."""
    out_values = np.empty_like(values)
    start, length = np.empty((2, 1, rows.length.size), dtype=np.int64)
    zero, end = np.zeros(1, dtype=np.int64), np.empty(1, dtype=np.int64)
    offsets = gather.buffers([np.array([0, values.size], dtype=np.int32)])
    starts, lengths = gather.buffers([rows.start.astype(np.int32)]), gather.buffers([rows.length.astype(np.int32)])
    source = gather.buffers([values])
    gather.gather_windows(
        (zero, zero + rows.length.size, np.arange(rows.length.size)),
        (1, rows.length.size),
        (offsets.addresses, starts.addresses, lengths.addresses, source.addresses),
        np.array([last], dtype=np.int64),
        (start, length, out_values, zero, end),
    )
    return Rows(values=out_values[: end[0]], start=start[0], length=length[0])


def _fill(name: str, value: int) -> Step:
    def step(fragment: Fragment) -> None:
        rows = fragment.rows[name]
        empty = rows.length == 0
        if empty.any():
            rows.start[empty] = rows.values.size
            rows.length[empty] = 1
            rows.values = np.append(rows.values, np.int64(value))

    return step


def _unique_ids(name: str) -> Step:
    def step(fragment: Fragment) -> None:
        rows = fragment.rows[name]
        values = np.empty(int(rows.length.sum()), dtype=np.int64)
        length = np.empty_like(rows.length)
        count = list_kernels.unique_ids(rows.values, rows.start, rows.length, values, length)
        fragment.rows[name] = _back_to_back(values[:count], length)

    return step


def _ngram(transform: NGram) -> Step:
    def step(fragment: Fragment) -> None:
        rows = fragment.rows[transform.feature]
        length = np.maximum(rows.length - transform.n + 1, 0)
        values = np.empty(int(length.sum()), dtype=np.int64)
        list_kernels.ngrams(rows.values, rows.start, rows.length, values, (transform.n, transform.size))
        fragment.rows[transform.output] = _back_to_back(values, length)

    return step


def _cross(transform: Cross) -> Step:
    def step(fragment: Fragment) -> None:
        first, second = fragment.rows[transform.first], fragment.rows[transform.second]
        length = first.length * second.length
        values = np.empty(int(length.sum()), dtype=np.int64)
        list_kernels.crosses(
            (first.values, first.start, first.length),
            (second.values, second.start, second.length),
            values,
            transform.size,
        )
        fragment.rows[transform.output] = _back_to_back(values, length)

    return step


def _bucketise(transform: Bucketise, index: int) -> Step:
    boundaries = np.asarray(transform.boundaries, dtype=np.float64)

    def step(fragment: Fragment) -> None:
        values = np.empty(fragment.num_samples, dtype=np.int64)
        dense_kernels.bucketise(fragment.dense_FB[index], boundaries, values)
        fragment.rows[transform.output] = _back_to_back(values, np.ones_like(values))

    return step


def _back_to_back(values: np.ndarray, length: np.ndarray) -> Rows:
    return Rows(values=values, start=np.cumsum(length) - length, length=length)
