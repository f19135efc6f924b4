"""What a reader reads: the schema's groups cut down to the features asked for, and the table columns that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from recoup.reader.errors import ReaderError
from recoup.schema import Schema

Groups: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""(group, features) in order; the group "" last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Features in batch order and what their absence from a file means; plain, so that it crosses process borders."""

    groups: Groups
    dense: tuple[str, ...]
    labels: tuple[str, ...]
    weighted: frozenset[str]
    may_be_missing: frozenset[str]
    """Sparse and dense features that are empty lists, or 0.0, in files without their column; others are an error."""

    @property
    def sparse(self) -> tuple[str, ...]:
        """Sparse features in batch order."""
        return tuple(feature for _, features in self.groups for feature in features)


def select(
    schema: Schema,
    features: Sequence[str],
    dense: Sequence[str] | None,
    missing: Literal["error", "empty"],
) -> Selection:
    """Return the selection of `features` (none named = all) and `dense` (None = all) from `schema`.

    Raises:
        ReaderError: a feature is not in the schema and `missing` is "error".
    """
    wanted = tuple(features) or schema.sparse_names
    wanted_dense = schema.dense_names if dense is None else tuple(dense)
    absent = [name for name in wanted if name not in schema.sparse_names]
    absent_dense = [name for name in wanted_dense if name not in schema.dense_names]
    if missing == "error" and (absent or absent_dense):
        name, known = (absent[0], schema.sparse_names) if absent else (absent_dense[0], schema.dense_names)
        raise ReaderError(
            f"expected feature {name!r} in the table, got {list(known)}: add it to the log's schema, leave it out of "
            f"the reader's features, or read it as empty with missing = 'empty'"
        )
    groups = [(g.name, tuple(f for f in g.features if f in wanted)) for g in schema.groups if g.name]
    loose = tuple(f.name for f in schema.sparse if not f.group and f.name in wanted) + tuple(absent)
    optional = {f.name for f in (*schema.sparse, *schema.dense) if f.missing == "empty"}
    return Selection(
        groups=(*((name, members) for name, members in groups if members), *((("", loose),) if loose else ())),
        dense=wanted_dense,
        labels=schema.labels,
        weighted=frozenset(f.name for f in schema.sparse if f.weighted and f.name in wanted),
        may_be_missing=frozenset(optional | set(absent) | set(absent_dense)),
    )
