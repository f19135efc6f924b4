"""Which samples a rank trains, in which order: a pure function of the table's row groups and of what was trained.

Words: a `RowGroupSlice` is a run of session rows of one row group; a `Stripe` is what is decoded and shuffled together
(one or several slices); a `Span` is a run of samples of one stripe, counted in the stripe's own epoch order; a rank's
`sequence` is a tuple of spans, cut into batches of B samples.

Guarantees: the spans of all ranks hold every sample once; ranks' sample counts differ by at most one, so that all
ranks make the same number of steps (the last batches of some may be smaller or empty); a stage (so many steps by so
many ranks) takes the heads of the ranks' sequences off, and what remains is dealt anew, to any number of ranks.
Not guaranteed: that a stripe is read by one rank only (at most `world_size - 1` stripes are cut).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from recoup.core import generator

ShuffleKind: TypeAlias = Literal["chronological", "window", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroupSlice:
    """Session rows `first_row .. first_row + num_rows - 1` of one row group of one part."""

    ordinal: int
    """Number of the row group in the table, those without rows left out."""
    part: int
    row_group: int
    first_row: int
    num_rows: int
    num_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Stripe:
    """Row-group slices that are decoded and shuffled together; `number` counts stripes in epoch order."""

    number: int
    slices: tuple[RowGroupSlice, ...]

    @property
    def num_samples(self) -> int:
        """Samples of all slices."""
        return sum(piece.num_samples for piece in self.slices)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Samples `first .. end - 1` of stripe number `stripe`, in the stripe's epoch order."""

    stripe: int
    first: int
    end: int

    @property
    def num_samples(self) -> int:
        """Samples of the span."""
        return self.end - self.first


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """`num_steps` steps that `world_size` ranks trained with `batch_size` samples each."""

    world_size: int
    batch_size: int
    num_steps: int


def plan_stripes(
    slices: Sequence[RowGroupSlice], *, shuffle: ShuffleKind, window_sessions: int, seed: int, epoch: int
) -> tuple[Stripe, ...]:
    """Return the epoch's stripes in order.

    `full` draws a permutation of the slices; a stripe then takes slices until it has `window_sessions` session rows.
    Within a stripe slices are in table order (its sessions are shuffled when it is read).
    Slices without samples are left out (an empty row group in the middle is legal).
    """
    kept = [piece for piece in slices if piece.num_samples]
    if shuffle == "full":
        kept = [kept[i] for i in generator(seed, "stripes", epoch).permutation(len(kept))]
    stripes: list[Stripe] = []
    current: list[RowGroupSlice] = []
    for piece in kept:
        current.append(piece)
        if sum(member.num_rows for member in current) >= window_sessions:
            stripes.append(_stripe(len(stripes), current))
            current = []
    if current:
        stripes.append(_stripe(len(stripes), current))
    return tuple(stripes)


def _stripe(number: int, slices: Sequence[RowGroupSlice]) -> Stripe:
    return Stripe(number=number, slices=tuple(sorted(slices, key=lambda piece: piece.ordinal)))


def plan_sequences(stripes: Sequence[Stripe], stages: Sequence[Stage], world_size: int) -> tuple[tuple[Span, ...], ...]:
    """Return every rank's remaining sequence after `stages`, dealt to `world_size` ranks."""
    spans: tuple[Span, ...] = tuple(Span(stripe=s.number, first=0, end=s.num_samples) for s in stripes)
    for stage in stages:
        tails = [drop_head(seq, stage.num_steps * stage.batch_size) for seq in deal(spans, stage.world_size)]
        spans = _joined(sorted((span for tail in tails for span in tail), key=lambda span: (span.stripe, span.first)))
    return deal(spans, world_size)


def deal(spans: Sequence[Span], world_size: int) -> tuple[tuple[Span, ...], ...]:
    """Deal spans in order, each to the rank that has least, so that counts differ by at most one sample."""
    total = sum(span.num_samples for span in spans)
    open_quota = [total // world_size + (rank < total % world_size) for rank in range(world_size)]
    dealt: list[list[Span]] = [[] for _ in range(world_size)]
    taken = [0] * world_size
    for span in spans:
        first = span.first
        while first < span.end:
            rank = min((r for r in range(world_size) if open_quota[r]), key=lambda r: (taken[r], r))
            count = min(span.end - first, open_quota[rank])
            dealt[rank].append(Span(stripe=span.stripe, first=first, end=first + count))
            open_quota[rank] -= count
            taken[rank] += count
            first += count
    return tuple(tuple(_joined(spans_of_rank)) for spans_of_rank in dealt)


def drop_head(sequence: Sequence[Span], num_samples: int) -> tuple[Span, ...]:
    """Return `sequence` without its first `num_samples` samples."""
    rest: list[Span] = []
    for span in sequence:
        cut = min(num_samples, span.num_samples)
        num_samples -= cut
        if cut < span.num_samples:
            rest.append(Span(stripe=span.stripe, first=span.first + cut, end=span.end))
    return tuple(rest)


def num_steps(sequences: Sequence[Sequence[Span]], batch_size: int, *, drop_last: bool) -> int:
    """Return the steps that every rank makes: with `drop_last` only while every rank has a full batch."""
    counts = [sum(span.num_samples for span in sequence) for sequence in sequences]
    return min(counts) // batch_size if drop_last else -(-max(counts) // batch_size)


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last is not None and last.stripe == span.stripe and last.end == span.first:
            joined[-1] = Span(stripe=span.stripe, first=last.first, end=span.end)
        else:
            joined.append(span)
    return tuple(joined)
