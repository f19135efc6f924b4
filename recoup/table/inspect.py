"""What a table holds: samples a session, dedup factors measured and by formula, bytes by feature.

The factor of a group is samples over versions, as stored (a session is one row). The formula takes the session's mean
length S and the measured chance d that the group stays unchanged from one sample to the next:
S / (1 + (S - 1)(1 - d)). Source: RecD (arXiv 2211.05239).
"""

from dataclasses import dataclass

import numpy as np

from recoup.core import Progress, no_progress
from recoup.jagged.factor import dedup_factor, window_factor
from recoup.table.arrays import IntArray, list_parts
from recoup.table.layout import NUM_SAMPLES, inverse_column, length_column, values_column
from recoup.table.manifest import GroupPrediction
from recoup.table.session_table import SessionTable
from recoup.table.weigh import column_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFacts:
    """One dedup group."""

    name: str
    features: tuple[str, ...]
    repeat: float
    """d: share of samples, after a row's first, whose version is the sample's before."""
    measured_factor: float
    """Samples over versions."""
    predicted_factor: float
    """By formula from the mean row length and d."""
    window_factor: float
    """IDs of all samples over IDs stored: repeats and shared windows together."""
    predicted_window_factor: float
    """By formula, from the mean row length, d, the mean list length and the new IDs a change brings."""
    new_ids: float
    """k: IDs stored a change, after what windows share; the mean length where lists do not shift."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFacts:
    """A whole table."""

    samples: int
    sessions: int
    rows: int
    bytes: int
    samples_per_session: float
    longest_session: int
    groups: tuple[GroupFacts, ...]
    bytes_by_feature: dict[str, int]
    """Compressed bytes of the columns of each feature, group inverse and other column."""
    predictions: tuple[GroupPrediction, ...]
    """What `table suggest` foretold, if the build was told."""


def inspect_table(table: SessionTable, *, progress: Progress = no_progress) -> TableFacts:
    """Read the table once and return its facts. Cost: one pass over inverses, lengths and values' offsets."""
    counters = {group.name: _Counter() for group in table.schema.groups if group.name}
    longest, done = 0, 0
    for rows in table.iter_rows():
        samples = rows.column(NUM_SAMPLES).to_numpy(zero_copy_only=False).astype(np.int64)
        longest = max(longest, int(samples.max(initial=0)))
        for group in table.schema.groups:
            if not group.name:
                continue
            inverse, offsets = list_parts(rows.column(inverse_column(group.name)))
            lengths = [list_parts(rows.column(length_column(feature))) for feature in group.features]
            stored = [list_parts(rows.column(values_column(feature)))[1] for feature in group.features]
            counters[group.name].add(inverse, offsets, lengths, stored)
        done += int(samples.sum())
        progress("inspect", done, table.num_samples)
    counts = table.manifest.counts
    mean = counts.samples / counts.sessions if counts.sessions else 0.0
    groups = [
        counters[group.name].facts(group.name, group.features, mean) for group in table.schema.groups if group.name
    ]
    return TableFacts(
        samples=counts.samples,
        sessions=counts.sessions,
        rows=counts.rows,
        bytes=table.num_bytes,
        samples_per_session=mean,
        longest_session=longest,
        groups=tuple(groups),
        bytes_by_feature=column_bytes([table.part_path(part.name) for part in table.manifest.parts]),
        predictions=table.manifest.predictions,
    )


class _Counter:
    def __init__(self) -> None:
        self._samples = self._versions = self._rows = self._same = 0
        self._expanded = self._stored = self._first = 0

    def add(
        self,
        inverse: IntArray,
        offsets: IntArray,
        lengths: list[tuple[IntArray, IntArray]],
        stored: list[IntArray],
    ) -> None:
        codes = inverse[offsets[0] : offsets[-1]]
        firsts = (offsets[:-1] - offsets[0])[np.diff(offsets) > 0]
        same = np.zeros(len(codes), dtype=np.bool_)
        same[1:] = codes[1:] == codes[:-1]
        same[firsts] = False
        self._samples += len(codes)
        self._rows += len(firsts)
        self._same += int(same.sum())
        row_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        for (length, version_offsets), value_offsets in zip(lengths, stored, strict=True):
            self._first += int(length[version_offsets[:-1][np.diff(version_offsets) > 0]].sum())
            self._expanded += int(length[version_offsets[row_of] + codes].sum())
            self._stored += int(value_offsets[-1] - value_offsets[0])
        self._versions += int(lengths[0][1][-1] - lengths[0][1][0])

    def facts(self, name: str, features: tuple[str, ...], mean: float) -> GroupFacts:
        chances = self._samples - self._rows
        repeat = self._same / chances if chances else 0.0
        length = self._expanded / max(1, self._samples)
        new_ids = (self._stored - self._first) / max(1, chances - self._same)
        return GroupFacts(
            name=name,
            features=features,
            repeat=repeat,
            measured_factor=self._samples / max(1, self._versions),
            predicted_factor=dedup_factor(max(1.0, mean), repeat),
            window_factor=self._expanded / max(1, self._stored),
            predicted_window_factor=window_factor(max(1.0, mean), repeat, length=length, new_ids=new_ids)
            if length
            else 1.0,
            new_ids=new_ids / len(features),
        )
