"""Measure a log and propose its dedup groups: which features change together, which are worth it, what it will gain.

A sample of whole keys is drawn in one pass, sorted and cut into sessions, and measured: for every feature d (the chance
that it stays unchanged from one sample to the next), the new IDs a change brings (few: lists shift, windows pay); for
every pair how often they change together. Groups are joined greedily while that makes a batch smaller: its bytes are
8 an ID and 8 a window for every version, 4 a sample for the group's inverse; a joined group saves an inverse and pays
where its features change apart. A group is proposed if its factor reaches `least_factor`.
Source: the factor and its threshold of about 1.5 are RecD's (arXiv 2211.05239). Differs: groups are found, not given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recoup.core import ConfigError, Progress, no_progress
from recoup.jagged import equality
from recoup.jagged.factor import dedup_factor, window_factor
from recoup.log import LogSource
from recoup.schema import DedupGroup, Schema, sample_schema
from recoup.table import versions
from recoup.table.added import with_histories
from recoup.table.arrays import BoolArray, IntArray, NumpyArray, list_parts
from recoup.table.build_config import BuildConfig
from recoup.table.encode import SessionEncoder, encode_sessions
from recoup.table.flatten import flatten_rows
from recoup.table.layout import NUM_SAMPLES
from recoup.table.manifest import GroupPrediction
from recoup.table.sampling import key_hashes
from recoup.table.stages import sort_indices
from recoup.table.weigh import bytes_per_sample

ID_BYTES = 8
WINDOW_BYTES = 8
INVERSE_BYTES = 4
_ENCODED = 8192  # samples encoded at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class SuggestConfig:
    """How much of the log is looked at, and from which factor on a group is worth it."""

    sample_bytes: int = 128_000_000
    """Uncompressed size of the sample of whole keys."""
    least_factor: float = 1.5
    """Samples a version below which a group is not proposed. RecD deduplicates from about 1.5. Measured by
    benches.worth: training gains from 2.05 on for lists of one ID, 1.2 for 5 and 1.0 for 40."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.sample_bytes < 1 or self.least_factor < 1:
            raise ConfigError(f"expected sample_bytes >= 1 and least_factor >= 1, got {self}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureFacts:
    """One sparse feature, measured alone."""

    name: str
    mean_length: float
    repeat: float
    """d."""
    new_ids: float
    """New IDs a change brings, after what windows share; `mean_length` = nothing is shared."""
    factor: float
    """Samples over versions."""
    group: str
    """Proposed group; "" = not worth it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """The proposal and what it rests on."""

    samples: int
    """Samples looked at."""
    share: float
    """Of the log's keys that were looked at."""
    samples_per_session: float
    features: tuple[FeatureFacts, ...]
    groups: tuple[DedupGroup, ...]
    predictions: tuple[GroupPrediction, ...]
    co_change: dict[tuple[str, str], float]
    """Of pairs within a proposed group: how often both change, over how often either does."""
    bytes_per_sample: float
    """Of the whole table, as proposed."""
    plain_bytes_per_sample: float
    """Of the whole table without any group: clustered, nothing encoded."""
    reader_factor: float
    """Bytes of a plain batch's lists over those of a deduplicated one."""
    trainer_factor: float
    """IDs looked up a plain sample over those looked up as proposed."""


def suggest_groups(
    source: LogSource,
    build: BuildConfig,
    config: SuggestConfig | None = None,
    *,
    progress: Progress = no_progress,
) -> Suggestion:
    """Return proposed dedup groups for a table of `source` built as `build` says.

    Cost: one pass over the log, and the sample in memory about three times.
    Raises:
        ConfigError: the log has no samples.
    """
    config = config or SuggestConfig()
    schema = with_histories(source.schema, build.histories, build.means)
    kept, share = sample_keys(source, config.sample_bytes, progress)
    samples, row_first = _cut(kept, source.schema, build)
    if not samples.num_rows:
        raise ConfigError("expected samples to measure, got an empty log")
    measured = {name: _Measured.of(samples, name, row_first) for name in schema.sparse_names}
    joined = _worthwhile(_join(list(measured.values()), row_first), row_first, samples.num_rows, config.least_factor)
    named = _named(joined, schema)
    sizes = bytes_per_sample(kept, source.schema, build, named)
    predictions = tuple(_predict(group, measured, row_first, sizes) for group in named)
    plain = bytes_per_sample(kept, source.schema, build, ())
    return Suggestion(
        samples=samples.num_rows,
        share=share,
        samples_per_session=samples.num_rows / max(1, len(row_first) - 1),
        features=tuple(_facts(measured[name], row_first, named) for name in schema.sparse_names),
        groups=named,
        predictions=predictions,
        co_change=_co_change(named, measured),
        bytes_per_sample=sum(sizes.values()),
        plain_bytes_per_sample=sum(plain.values()),
        reader_factor=_batch_bytes([], measured, row_first) / _batch_bytes(named, measured, row_first),
        trainer_factor=_looked_up([], measured, row_first) / max(1.0, _looked_up(named, measured, row_first)),
    )


def sample_keys(source: LogSource, limit: int, progress: Progress) -> tuple[pa.RecordBatch, float]:
    """Return all samples of some keys, about `limit` bytes or less, and the share of keys that they are.

    A key stays or goes by its hash; the share is halved whenever the sample grows too large.
    """
    schema, share = source.schema, 1.0
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in source.batches(progress=progress):
        kept.append(_of_share(batch, schema, share))
        size += kept[-1].nbytes
        while size > limit and share > 2.0**-40:
            share /= 2
            kept = [_of_share(one, schema, share) for one in kept]
            size = sum(one.nbytes for one in kept)
    return pa.Table.from_batches(kept, sample_schema(schema)).combine_chunks().to_batches()[0] if kept else (
        pa.RecordBatch.from_pylist([], schema=sample_schema(schema))
    ), share


def _of_share(batch: pa.RecordBatch, schema: Schema, share: float) -> pa.RecordBatch:
    if share == 1.0:
        return batch
    return batch.filter(pa.array(key_hashes(batch.column(schema.key)) < np.uint64(share * 2.0**64)))


def _cut(kept: pa.RecordBatch, schema: Schema, build: BuildConfig) -> tuple[pa.RecordBatch, IntArray]:
    """Return the samples by session, histories added, and the first sample of every session."""
    encoder = SessionEncoder(schema, build.sessions, build.histories, build.means)
    order = [name for name in (schema.key, schema.time, schema.event_id) if name]
    indices = sort_indices(kept, order)
    batches = (kept.take(indices.slice(first, _ENCODED)) for first in range(0, kept.num_rows, _ENCODED))
    rows = list(encode_sessions(batches, encoder))
    counts = [batch.column(NUM_SAMPLES).to_numpy(zero_copy_only=False).astype(np.int64) for batch in rows]
    flat = [flatten_rows(batch, encoder.schema) for batch in rows]
    row_first = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([*counts, np.zeros(0, np.int64)]))])
    empty = pa.RecordBatch.from_pylist([], schema=sample_schema(encoder.schema))
    return pa.concat_batches([*flat, empty]), row_first


@dataclass(frozen=True, slots=True)
class _Measured:
    """A set of features: when it changes, how long its lists are together, how many IDs windows store."""

    names: tuple[str, ...]
    heads: NumpyArray
    """Packed bits: the sample starts a session or differs from the one before."""
    num_heads: int
    length: float
    """IDs a sample."""
    stored: int
    """IDs that windows store."""
    first_ids: int
    """IDs of the sessions' first samples."""

    @staticmethod
    def of(samples: pa.RecordBatch, name: str, row_first: IntArray) -> "_Measured":
        values, offsets = list_parts(samples.column(name))
        no_weights = np.zeros(0, dtype=np.int32)
        new_row = np.zeros(samples.num_rows, dtype=np.bool_)
        new_row[row_first[:-1]] = True
        head: BoolArray = new_row.copy()
        equality.differs_from_previous(values, no_weights, offsets, new_row, head)
        at = np.flatnonzero(head)
        first = np.searchsorted(at, row_first)
        lengths = np.diff(offsets)
        buffer = (np.empty(int(lengths[at].sum()), dtype=np.int64), no_weights)
        layout = (np.empty(len(at), np.int32), np.empty(len(at), np.int32), np.empty(len(row_first), np.int64))
        stored = versions.lay_windows((values, no_weights, offsets), at, first, buffer, layout)
        return _Measured(
            names=(name,),
            heads=np.packbits(head),
            num_heads=len(at),
            length=float(lengths.mean()),
            stored=stored,
            first_ids=int(lengths[row_first[:-1]].sum()),
        )

    def joined(self, other: "_Measured") -> "_Measured":
        heads = self.heads | other.heads
        return _Measured(
            names=(*self.names, *other.names),
            heads=heads,
            num_heads=_count(heads),
            length=self.length + other.length,
            stored=self.stored + other.stored,
            first_ids=self.first_ids + other.first_ids,
        )

    def bytes(self, num_samples: int) -> float:
        """Return what the lists take in memory as one group."""
        return self.num_heads * (ID_BYTES * self.length + WINDOW_BYTES * len(self.names)) + INVERSE_BYTES * num_samples


def _count(bits: NumpyArray) -> int:
    return int(np.bitwise_count(bits).sum())


def _join(sets: list[_Measured], row_first: IntArray) -> list[_Measured]:
    """Join the pair that saves most, again and again, while any saves. Cost: O(F^3) bit counts, F features."""
    num_samples = int(row_first[-1])
    while len(sets) > 1:
        best, gain = None, 0.0
        for i, one in enumerate(sets):
            for j in range(i):
                both = one.joined(sets[j])
                saved = one.bytes(num_samples) + sets[j].bytes(num_samples) - both.bytes(num_samples)
                if saved > gain:
                    best, gain = (i, j, both), saved
        if best is None:
            break
        i, j, both = best
        sets = [one for k, one in enumerate(sets) if k not in (i, j)] + [both]
    return sets


def _worthwhile(sets: list[_Measured], row_first: IntArray, num_samples: int, least: float) -> list[_Measured]:
    del row_first
    return [one for one in sets if num_samples / max(1, one.num_heads) >= least]


def _named(sets: list[_Measured], schema: Schema) -> tuple[DedupGroup, ...]:
    """Return the groups in the schema's order, called after their first feature (or after a group the log declares)."""
    order = list(schema.sparse_names)
    groups: list[DedupGroup] = []
    taken = set(order)
    for one in sorted(sets, key=lambda one: min(map(order.index, one.names))):
        features = tuple(sorted(one.names, key=order.index))
        declared = {schema.sparse_feature(name).group for name in features} - {""}
        name = declared.pop() if len(declared) == 1 else f"with_{features[0]}"
        while name in taken:
            name = f"{name}_"
        taken.add(name)
        groups.append(DedupGroup(name=name, features=features))
    return tuple(groups)


def _set_of(group: DedupGroup, measured: dict[str, _Measured]) -> _Measured:
    joined = measured[group.features[0]]
    for name in group.features[1:]:
        joined = joined.joined(measured[name])
    return joined


def _repeat(one: _Measured, row_first: IntArray) -> float:
    chances = int(row_first[-1]) - (len(row_first) - 1)
    return 1 - (one.num_heads - (len(row_first) - 1)) / chances if chances else 0.0


def _new_ids(one: _Measured, row_first: IntArray) -> float:
    changes = one.num_heads - (len(row_first) - 1)
    return (one.stored - one.first_ids) / changes if changes else 0.0


def _predict(
    group: DedupGroup, measured: dict[str, _Measured], row_first: IntArray, sizes: dict[str, float]
) -> GroupPrediction:
    one = _set_of(group, measured)
    mean = int(row_first[-1]) / (len(row_first) - 1)
    repeat = _repeat(one, row_first)
    return GroupPrediction(
        name=group.name,
        repeat=repeat,
        factor=dedup_factor(mean, repeat),
        window_factor=window_factor(mean, repeat, length=one.length, new_ids=_new_ids(one, row_first))
        if one.length
        else 1.0,
        bytes_per_sample=sum(sizes.get(name, 0.0) for name in (group.name, *group.features)),
    )


def _facts(one: _Measured, row_first: IntArray, groups: Sequence[DedupGroup]) -> FeatureFacts:
    name = one.names[0]
    return FeatureFacts(
        name=name,
        mean_length=one.length,
        repeat=_repeat(one, row_first),
        new_ids=_new_ids(one, row_first),
        factor=int(row_first[-1]) / max(1, one.num_heads),
        group=next((group.name for group in groups if name in group.features), ""),
    )


def _co_change(groups: Sequence[DedupGroup], measured: dict[str, _Measured]) -> dict[tuple[str, str], float]:
    pairs = {}
    for group in groups:
        for i, name in enumerate(group.features):
            for other in group.features[:i]:
                a, b = measured[name].heads, measured[other].heads
                pairs[other, name] = _count(a & b) / max(1, _count(a | b))
    return pairs


def _batch_bytes(groups: Sequence[DedupGroup], measured: dict[str, _Measured], row_first: IntArray) -> float:
    num_samples = int(row_first[-1])
    grouped = {name for group in groups for name in group.features}
    plain = sum(num_samples * (ID_BYTES * m.length + 4) for name, m in measured.items() if name not in grouped)
    return max(1.0, plain + sum(_set_of(group, measured).bytes(num_samples) for group in groups))


def _looked_up(groups: Sequence[DedupGroup], measured: dict[str, _Measured], row_first: IntArray) -> float:
    grouped = {name for group in groups for name in group.features}
    plain = sum(int(row_first[-1]) * m.length for name, m in measured.items() if name not in grouped)
    sets = [_set_of(group, measured) for group in groups]
    return plain + sum(one.num_heads * one.length for one in sets)
