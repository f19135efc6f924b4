"""The table's schema: the log's, with the features that the builder makes from the log, in the groups asked for."""

from collections.abc import Sequence
from dataclasses import replace

from recoup.schema import DedupGroup, DenseFeature, Schema, SchemaError, SparseFeature
from recoup.table.histories import HistoryFeature
from recoup.table.history_means import HistoryMean


def with_histories(schema: Schema, histories: Sequence[HistoryFeature], means: Sequence[HistoryMean] = ()) -> Schema:
    """Return `schema` with history features and means added, after its own.

    Raises:
        SchemaError: a source or label is not in the schema, or a name is taken.
    """
    for history in histories:
        schema.sparse_feature(history.source)
    for made in (*histories, *means):
        if made.label and made.label not in schema.labels:
            raise SchemaError(f"{made.name!r}: expected a label of {list(schema.labels)}, got {made.label!r}")
    sparse = tuple(SparseFeature(name=history.name, group=history.group) for history in histories)
    dense = tuple(DenseFeature(name=mean.name) for mean in means)
    return replace(schema, sparse=(*schema.sparse, *sparse), dense=(*schema.dense, *dense))


def regrouped(schema: Schema, groups: Sequence[DedupGroup]) -> Schema:
    """Return `schema` with these dedup groups and no others; without any, as it is.

    Raises:
        SchemaError: a feature is not in the schema, or is in two groups.
    """
    if not groups:
        return schema
    group_of: dict[str, str] = {}
    for group in groups:
        for feature in group.features:
            schema.sparse_feature(feature)
            if feature in group_of:
                raise SchemaError(f"expected each feature in one group, got {feature!r} in two: {group_of[feature]!r}")
            group_of[feature] = group.name
    return replace(schema, sparse=tuple(replace(f, group=group_of.get(f.name, "")) for f in schema.sparse))
