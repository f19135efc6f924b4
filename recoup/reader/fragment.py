"""A fragment: a run of samples in batch form as NumPy arrays, whole batches being fragments of B samples.

Legend: B samples, Fd dense features, L labels, U unique rows, N IDs.
Fragments of neighbouring stripes are merged into one batch; a worker process packs a fragment into shared memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


@dataclass(kw_only=True, slots=True)
class Rows:
    """Rows of one feature as windows; the NumPy form of `JaggedRows`."""

    values: Array
    """int64 [N]."""
    start: Array
    """int64 [U]."""
    length: Array
    """int64 [U]."""
    weights: Array | None = None
    """float32 [N]."""


@dataclass(kw_only=True, slots=True)
class Fragment:
    """B samples; `rows` and `inverse` as in `InverseKeyedJaggedTensor`."""

    dense_FB: Array
    """float32 [Fd, B]: one contiguous column a feature."""
    labels_LB: Array
    """float32 [L, B]."""
    time: Array
    """int64 [B]."""
    session: Array
    """int64 [B]: number of the session within the fragment."""
    rows: dict[str, Rows]
    inverse: dict[str, Array]
    """int64 [B] a named group."""
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """(group, features) in order; the group "" last."""
    continues: bool = False
    """True: its first session is the one that ends the fragment before (a session stored in several chunks)."""

    @property
    def num_samples(self) -> int:
        """B."""
        return self.time.size

    @property
    def num_sessions(self) -> int:
        """Distinct sessions."""
        return int(self.session.max()) + 1 if self.session.size else 0

    def map_arrays(self, function: Callable[[Array], Array]) -> "Fragment":
        """Return a fragment whose arrays are `function` of this one's, called in one fixed order."""
        return Fragment(
            dense_FB=function(self.dense_FB),
            labels_LB=function(self.labels_LB),
            time=function(self.time),
            session=function(self.session),
            rows={
                name: Rows(
                    values=function(rows.values),
                    start=function(rows.start),
                    length=function(rows.length),
                    weights=None if rows.weights is None else function(rows.weights),
                )
                for name, rows in self.rows.items()
            },
            inverse={name: function(inverse) for name, inverse in self.inverse.items()},
            groups=self.groups,
            continues=self.continues,
        )


def merge(fragments: Sequence[Fragment]) -> Fragment:
    """Return one fragment that holds the samples of all, in order. Copies every array (but for a single fragment)."""
    first = fragments[0]
    if len(fragments) == 1:
        return first
    return Fragment(
        dense_FB=np.concatenate([f.dense_FB for f in fragments], axis=1),
        labels_LB=np.concatenate([f.labels_LB for f in fragments], axis=1),
        time=np.concatenate([f.time for f in fragments]),
        session=_merge_sessions(fragments),
        rows={name: _merge_rows([f.rows[name] for f in fragments]) for name in first.rows},
        inverse={
            name: _shifted([f.inverse[name] for f in fragments], [f.rows[features[0]].length.size for f in fragments])
            for name, features in first.groups
            if name in first.inverse
        },
        groups=first.groups,
        continues=first.continues,
    )


def _merge_rows(rows: Sequence[Rows]) -> Rows:
    weights = [r.weights for r in rows if r.weights is not None]
    return Rows(
        values=np.concatenate([r.values for r in rows]),
        start=_shifted([r.start for r in rows], [r.values.size for r in rows]),
        length=np.concatenate([r.length for r in rows]),
        weights=np.concatenate(weights) if weights else None,
    )


def _merge_sessions(fragments: Sequence[Fragment]) -> Array:
    shifted: list[Array] = []
    num_sessions = 0
    for fragment in fragments:
        offset = num_sessions - (1 if fragment.continues and num_sessions else 0)
        shifted.append(fragment.session + offset)
        num_sessions = max(num_sessions, offset + fragment.num_sessions)
    return np.concatenate(shifted)


def _shifted(arrays: Sequence[Array], sizes: Sequence[int]) -> Array:
    offsets = np.concatenate(([0], np.cumsum(sizes[:-1], dtype=np.int64)))
    return np.concatenate([array + offset for array, offset in zip(arrays, offsets, strict=True)])
