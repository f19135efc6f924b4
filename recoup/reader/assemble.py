"""From a decoded stripe and an order of samples to fragments: the whole work of one reader task.

Data in: a `ReadTask` (stripe, order, cuts). Data out: one fragment a cut, transformed, IDs checked, plain if asked.
The same code runs in the training process and in worker processes; it needs no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from recoup.reader import gather
from recoup.reader.errors import ReaderError
from recoup.reader.fragment import Fragment, Rows
from recoup.reader.memory import empty
from recoup.reader.order import stripe_order
from recoup.reader.plan import Stripe
from recoup.reader.selection import Selection
from recoup.reader.stripe import DecodedStripe, GroupColumns, ListBlock, StripeFiles
from recoup.reader.transforms.config import TransformConfig
from recoup.reader.transforms.pipeline import Pipeline, compile_transforms


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadJob:
    """What is the same for all tasks of a reader; plain, so that it crosses process borders."""

    parts: tuple[str, ...]
    selection: Selection
    transforms: tuple[TransformConfig, ...]
    num_embeddings: dict[str, int]
    dedup: bool
    batch_size: int
    max_per_session: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadTask:
    """One stripe to read, and the sample ranges (in its epoch order) to cut it into."""

    number: int
    stripe: Stripe
    shuffle_seed: int | None
    cuts: tuple[tuple[int, int], ...]


class Assembler:
    """Reads tasks; holds open files and the compiled transforms."""

    def __init__(self, job: ReadJob) -> None:
        """Compile the transforms.

        Raises:
            ReaderError: the transforms do not fit the selected features.
        """
        self._job = job
        self._files = StripeFiles(job.parts, job.selection)
        self.pipeline: Pipeline = compile_transforms(job.transforms, job.selection)
        known = [feature for _, features in self.pipeline.groups for feature in features]
        for name in job.num_embeddings:
            if name not in known:
                raise ReaderError(f"num_embeddings: expected a sparse feature of {sorted(known)}, got {name!r}")

    def read(self, task: ReadTask) -> Iterator[Fragment]:
        """Yield one fragment a cut of `task`."""
        stripe = self._files.decode(task.stripe)
        order = stripe_order(
            stripe.num_samples,
            stripe.session_of_row,
            shuffle_seed=task.shuffle_seed,
            batch_size=self._job.batch_size,
            max_per_session=self._job.max_per_session,
        )
        for first, end in task.cuts:
            pieces = order.cut(first, end)
            fragment = self._gather(stripe, pieces, end - first)
            fragment.continues = stripe.continues and first == 0 and task.shuffle_seed is None
            yield self._finish(fragment, task, pieces)

    def empty(self) -> Fragment:
        """Return a fragment of no samples with the dtypes of any other."""
        ints = np.empty(0, dtype=np.int64)
        selection = self._job.selection
        fragment = Fragment(
            dense_FB=np.empty((len(selection.dense), 0), dtype=np.float32),
            labels_LB=np.empty((len(selection.labels), 0), dtype=np.float32),
            time=ints,
            session=ints.copy(),
            rows={
                name: Rows(
                    values=ints.copy(),
                    start=ints.copy(),
                    length=ints.copy(),
                    weights=np.empty(0, dtype=np.float32) if name in selection.weighted else None,
                )
                for name in selection.sparse
            },
            inverse={group: ints.copy() for group, _ in selection.groups if group},
            groups=self.pipeline.groups,
        )
        self.pipeline.apply(fragment)
        return fragment if self._job.dedup else plain(fragment)

    def _gather(self, stripe: DecodedStripe, pieces: gather.Pieces, num_samples: int) -> Fragment:
        runs = _runs(pieces, stripe.sample_off, num_samples)

        def columns(source: gather.Buffers, dtype: type[np.generic]) -> NDArray[Any]:
            out_CB = empty((source.addresses.size, num_samples), dtype)
            gather.gather_columns(runs, stripe.sample_off, source.addresses, out_CB)
            return out_CB

        session = np.empty(num_samples, dtype=np.int64)
        gather.gather_sessions(pieces, stripe.session_of_row, session)
        rows: dict[str, Rows] = {}
        inverse: dict[str, NDArray[np.int64]] = {}
        for group, _ in self._job.selection.groups:
            source = stripe.groups[group]
            if group:
                inverse[group], piece_rows = _group_rows(stripe, source, pieces, num_samples)
                rows |= gather_block(_Windows(stripe, source, piece_rows), source, self.pipeline.keep_last)
            else:
                rows |= gather_block(_Lists(stripe, pieces[0], runs, num_samples), source, self.pipeline.keep_last)
        return Fragment(
            dense_FB=columns(stripe.dense, np.float32),
            labels_LB=columns(stripe.labels, np.float32),
            time=columns(stripe.time, np.int64)[0],
            session=session,
            rows=rows,
            inverse=inverse,
            groups=self.pipeline.groups,
        )

    def _finish(self, fragment: Fragment, task: ReadTask, pieces: gather.Pieces) -> Fragment:
        self.pipeline.apply(fragment)
        for name, size in self._job.num_embeddings.items():
            rows = fragment.rows[name]
            at = first_outside(rows.values, size)
            if at >= 0:
                raise self._outside(fragment, name, task, pieces)
        return fragment if self._job.dedup else plain(fragment)

    def _outside(self, fragment: Fragment, name: str, task: ReadTask, pieces: gather.Pieces) -> ReaderError:
        """Name the first sample (in batch order) whose list has an ID outside the table."""
        size = self._job.num_embeddings[name]
        plain_rows = plain(fragment).rows[name]
        at = first_outside(plain_rows.values, size)
        sample = int(np.searchsorted(np.cumsum(plain_rows.length), at, side="right"))
        row, lo, hi = pieces
        ends = np.cumsum(hi - lo)
        piece = int(np.searchsorted(ends, sample, side="right"))
        in_session = int(lo[piece] + sample - (ends[piece] - (hi[piece] - lo[piece])))
        session_row = int(row[piece])
        for part in task.stripe.slices:
            if session_row < part.num_rows:
                break
            session_row -= part.num_rows
        return ReaderError(
            f"expected IDs 0 .. {size - 1} of feature {name!r} (num_embeddings {size}), got {plain_rows.values[at]} "
            f"({self._job.parts[part.part]}, row group {part.row_group}, row {part.first_row + session_row}, "
            f"sample {in_session}): enlarge the table, or map IDs with a 'modulo' or 'hash' transform"
        )


def plain(fragment: Fragment) -> Fragment:
    """Return the same samples as plain rows: one group "", U = B, every list copied in full."""
    rows: dict[str, Rows] = {}
    for group, features in fragment.groups:
        for feature in features:
            source = fragment.rows[feature]
            inverse = fragment.inverse.get(group)
            start = source.start if inverse is None else source.start[inverse]
            length = source.length if inverse is None else source.length[inverse]
            values = empty(int(length.sum()), np.int64)
            gather.expand_lists(source.values, start, length, values)
            weights = None
            if source.weights is not None:
                weights = np.empty(values.size, dtype=np.float32)
                gather.expand_lists(source.weights, start, length, weights)
            rows[feature] = Rows(values=values, start=np.cumsum(length) - length, length=length, weights=weights)
    return Fragment(
        dense_FB=fragment.dense_FB,
        labels_LB=fragment.labels_LB,
        time=fragment.time,
        session=fragment.session,
        rows=rows,
        inverse={},
        groups=(("", tuple(rows)),) if rows else (),
        continues=fragment.continues,
    )


@njit(cache=True, nogil=True)
def first_outside(values: NDArray[np.int64], size: int) -> int:
    """Return the index of the first ID outside 0 .. size-1, or -1."""
    bad = False
    for i in range(values.size):
        bad = bad or np.uint64(values[i]) >= np.uint64(size)
    if not bad:
        return -1
    for i in range(values.size):
        if np.uint64(values[i]) >= np.uint64(size):
            return i
    return -1


def _runs(pieces: gather.Pieces, sample_off: NDArray[np.int32], num_samples: int) -> gather.Pieces:
    """Return the pieces as one, if they are neighbours in the stripe: per-sample columns are then one copy each.

    Such a run may reach over the end of its first session row: per-sample columns of all rows lie back to back.
    """
    row, lo, hi = pieces
    if row.size > 1 and row[-1] - row[0] == row.size - 1 and (np.diff(row) == 1).all():
        span = int(sample_off[row[-1]] + hi[-1] - sample_off[row[0]] - lo[0])
        if span == num_samples:  # no piece in between is cut, as the IID guard's are
            return row[:1], lo[:1], lo[:1] + num_samples
    return pieces


@dataclass(frozen=True, slots=True)
class _Lists:
    """How the features outside every group are gathered."""

    stripe: DecodedStripe
    row: NDArray[np.int64]
    runs: gather.Pieces
    num_rows: int

    def gather(self, block: ListBlock, keep_last: NDArray[np.int64], out: gather.Out) -> None:
        columns = (block.value_off.addresses, block.length.addresses, block.values.addresses)
        gather.gather_lists(self.runs, self.stripe.sample_off, columns, keep_last, out)


@dataclass(frozen=True, slots=True)
class _Windows:
    """How the features of a dedup group are gathered."""

    stripe: DecodedStripe
    source: GroupColumns
    piece_rows: gather.Rows

    @property
    def row(self) -> NDArray[np.int64]:
        return self.piece_rows[0]

    @property
    def num_rows(self) -> int:
        return self.piece_rows[2].size

    def gather(self, block: ListBlock, keep_last: NDArray[np.int64], out: gather.Out) -> None:
        columns = (
            block.value_off.addresses,
            block.start.addresses,
            block.length.addresses,
            block.values.addresses,
        )
        sizes = (self.source.version_off.size - 1, int(self.source.version_off[-1]))
        gather.gather_windows(self.piece_rows, sizes, columns, keep_last, out)


def gather_block(how: _Lists | _Windows, source: GroupColumns, keep_last: Mapping[str, int]) -> dict[str, Rows]:
    """Gather all features of a group: one buffer for their values, one call for their rows."""
    rows = _gather_values(how, source.lists, keep_last, np.int64)
    if source.weights.features:
        for name, weights in _gather_values(how, source.weights, keep_last, np.float32).items():
            rows[name].weights = weights.values
    return rows


def _gather_values(
    how: _Lists | _Windows, block: ListBlock, keep_last: Mapping[str, int], dtype: type[np.generic]
) -> dict[str, Rows]:
    count = len(block.features)
    first, end = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    num_offsets = block.value_off.owners[0].size
    values = empty(gather.value_bounds(how.row, num_offsets, block.value_off.addresses, first), dtype)
    start_FU, length_FU = empty((2, count, how.num_rows), np.int64)
    keep = np.array([keep_last[name] for name in block.features], dtype=np.int64)
    how.gather(block, keep, (start_FU, length_FU, values, first, end))
    return {
        name: Rows(values=values[first[f] : end[f]], start=start_FU[f], length=length_FU[f])
        for f, name in enumerate(block.features)
    }


def _group_rows(
    stripe: DecodedStripe, source: GroupColumns, pieces: gather.Pieces, num_samples: int
) -> tuple[NDArray[np.int64], gather.Rows]:
    row, _, _ = pieces
    inverse = empty(num_samples, np.int64)
    version = np.empty(int((source.version_off[row + 1] - source.version_off[row]).sum()), dtype=np.int64)
    end = np.empty(row.size, dtype=np.int64)
    out = (inverse, version, end)
    count = gather.group_rows(pieces, stripe.sample_off, source.version_off, source.inverse, out)
    return inverse, (row, end, version[:count])
