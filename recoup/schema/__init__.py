"""What a sample is: features, dedup groups, labels, and the Arrow form of a log."""

from recoup.schema.arrow import key_type, sample_schema
from recoup.schema.features import (
    TIME_UNIT,
    DedupGroup,
    DenseFeature,
    Schema,
    SchemaError,
    SparseFeature,
    weights_column,
)

__all__ = [
    "TIME_UNIT",
    "DedupGroup",
    "DenseFeature",
    "Schema",
    "SchemaError",
    "SparseFeature",
    "key_type",
    "sample_schema",
    "weights_column",
]
