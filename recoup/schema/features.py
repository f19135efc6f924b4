"""The schema of a log's samples: key, time, labels, dense and sparse features, and dedup groups.

One schema is fixed in configuration and holds for every file of a log; it is never taken from a first file.
Values at the border (every log source, every engine):

- an ID is int64; an unsigned ID at or above 2**63 is refused, never wrapped;
- a null list (or a null scalar ID) means "absent" and becomes an empty list, as an empty list does;
- a null inside a list is refused (`null_ids = "refuse"`) or left out (`"drop"`), never turned into ID 0;
- a column that is absent from a file is refused (`missing = "error"`) or filled (`"empty"`): an empty list, or 0.0;
- a dense null is 0.0 only under `missing = "empty"`; NaN and infinities are refused with row and column.
"""

from dataclasses import dataclass
from typing import Literal

from recoup.core import RecoupError

TIME_UNIT = "ms"
"""Times are int64 milliseconds since the epoch, UTC."""


class SchemaError(RecoupError):
    """A schema contradicts itself, or data does not have the declared schema."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseFeature:
    """A list of int64 IDs a sample."""

    name: str
    """Column name in the log, and key of the batch."""
    group: str = ""
    """Dedup group: features that change together share one `inverse_indices`; "" = one row a sample."""
    missing: Literal["error", "empty"] = "error"
    """What an absent column means; the default never guesses."""
    null_ids: Literal["refuse", "drop"] = "refuse"
    """What a null inside a list means."""
    weighted: bool = False
    """True: the log has a parallel column `<name>_weights`, list<float32>; weights are part of a row's identity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseFeature:
    """One float32 a sample."""

    name: str
    missing: Literal["error", "empty"] = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupGroup:
    """Names of the sparse features that share one inverse; the group named "" holds those without one."""

    name: str
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """What a sample is.

    Raises:
        SchemaError: two columns would have one name, or a name is empty.
    """

    key: str
    """Column of the session key (usually the user), int64 or string as `key_type` says."""
    key_type: Literal["int64", "string"] = "int64"
    time: str = "time"
    """Column of the event time, int64 milliseconds since the epoch, UTC."""
    event_id: str = ""
    """Column of the event's identity (string or int64 cast to string); repeats of one ID are removed. "" = none."""
    labels: tuple[str, ...]
    dense: tuple[DenseFeature, ...] = ()
    sparse: tuple[SparseFeature, ...] = ()

    def __post_init__(self) -> None:
        """Check that the names are distinct and not empty."""
        names = self.column_names
        for name in names:
            if not name or names.count(name) > 1:
                raise SchemaError(
                    f"every column needs a distinct name, got {name!r} {names.count(name)} times in {list(names)}"
                )
        if not self.labels:
            raise SchemaError("a schema needs at least one label, got none")

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns of the log in canonical order: key, time, event id, labels, dense, sparse, weights."""
        event_id = (self.event_id,) if self.event_id else ()
        weights = tuple(weights_column(f.name) for f in self.sparse if f.weighted)
        return (self.key, self.time, *event_id, *self.labels, *self.dense_names, *self.sparse_names, *weights)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the dense features, in order."""
        return tuple(feature.name for feature in self.dense)

    @property
    def sparse_names(self) -> tuple[str, ...]:
        """Names of the sparse features, in order."""
        return tuple(feature.name for feature in self.sparse)

    @property
    def groups(self) -> tuple[DedupGroup, ...]:
        """Dedup groups in order of first appearance; the group "" (not deduplicated) last, if any feature is in it."""
        names = list(dict.fromkeys(feature.group for feature in self.sparse))
        ordered = [name for name in names if name] + [name for name in names if not name]
        return tuple(
            DedupGroup(name=name, features=tuple(f.name for f in self.sparse if f.group == name)) for name in ordered
        )

    def sparse_feature(self, name: str) -> SparseFeature:
        """Return the sparse feature called `name`.

        Raises:
            SchemaError: there is none.
        """
        for feature in self.sparse:
            if feature.name == name:
                return feature
        raise SchemaError(f"expected a sparse feature of {list(self.sparse_names)}, got {name!r}")


def weights_column(feature: str) -> str:
    """Return the name of the log column that holds the per-ID weights of `feature`."""
    return f"{feature}_weights"
