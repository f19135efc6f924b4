"""The columns of a session table: one row = one session, or one chunk of a long one (`docs/format.md`).

Per sample: time, event id, labels, dense, and the lists of ungrouped features. Per dedup group: `<group>__inverse`
(sample -> version) and, for each of its features, one buffer of IDs and a window (start, length) for every version.
In a part the buffers of IDs are stored as codes, beside the part's hot IDs (`recoup.coding`).
"""

from collections.abc import Sequence

import pyarrow as pa

from recoup.coding import codes_column, hot_column
from recoup.schema import Schema, SchemaError, key_type, weights_column

KEY = "session_key"
START = "session_start"
CHUNK = "chunk"
NUM_SAMPLES = "num_samples"
TIME = "time"
EVENT_ID = "event_id"
FIXED = (KEY, START, CHUNK, NUM_SAMPLES, TIME)


def values_column(feature: str) -> str:
    """Return the column of the IDs of `feature`."""
    return f"{feature}__values"


def start_column(feature: str) -> str:
    """Return the column of the window starts of `feature`, one a version."""
    return f"{feature}__start"


def length_column(feature: str) -> str:
    """Return the column of the lengths of `feature`: one a version, or one a sample without a group."""
    return f"{feature}__length"


def weights_buffer_column(feature: str) -> str:
    """Return the column of the weights of `feature`, parallel to its IDs."""
    return f"{feature}__weights"


def inverse_column(group: str) -> str:
    """Return the column that maps each sample to its version of `group`."""
    return f"{group}__inverse"


def feature_columns(schema: Schema, feature: str) -> tuple[str, ...]:
    """Return the columns that hold `feature` itself (without its group's inverse)."""
    declared = schema.sparse_feature(feature)
    start = (start_column(feature),) if declared.group else ()
    weights = (weights_buffer_column(feature),) if declared.weighted else ()
    return (values_column(feature), *start, length_column(feature), *weights)


def row_columns(schema: Schema, samples: Sequence[str]) -> set[str]:
    """Return the columns of a table's rows that hold these columns of its samples."""
    named = {schema.key: KEY, schema.time: TIME, schema.event_id: EVENT_ID}
    wanted = {NUM_SAMPLES} | {named.get(name, name) for name in samples}
    for feature in schema.sparse:
        if feature.name in samples or weights_column(feature.name) in samples:
            wanted |= {*feature_columns(schema, feature.name), inverse_column(feature.group)}
    return wanted


def row_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of the rows of a table of `schema`.

    Raises:
        SchemaError: a feature, label or group has a name that the layout uses for another column.
    """
    fields = [
        pa.field(KEY, key_type(schema), nullable=False),
        pa.field(START, pa.int64(), nullable=False),
        pa.field(CHUNK, pa.int32(), nullable=False),
        pa.field(NUM_SAMPLES, pa.int32(), nullable=False),
        _list(TIME, pa.int64()),
    ]
    if schema.event_id:
        fields.append(_list(EVENT_ID, pa.string()))
    fields += [_list(name, pa.float32()) for name in (*schema.labels, *schema.dense_names)]
    for group in schema.groups:
        if group.name:
            fields.append(_list(inverse_column(group.name), pa.int32()))
        for feature in group.features:
            fields += _feature_fields(schema, feature)
    rows = pa.schema(fields)
    for names in (rows.names, part_schema(rows).names):
        for name in names:
            if names.count(name) > 1:
                raise SchemaError(
                    f"expected distinct columns in the session table, got {name!r} twice: rename the feature"
                )
    return rows


def part_schema(rows: pa.Schema) -> pa.Schema:
    """Return the Arrow schema of a part that stores such rows (or some of their columns)."""
    fields: list[pa.Field] = []
    for field in rows:
        feature = feature_of_values(field)
        fields += [field] if feature is None else [_list(name(feature), pa.int64()) for name in _STORED]
    return pa.schema(fields)


def feature_of_values(field: pa.Field) -> str | None:
    """Return the feature whose IDs this column of rows holds; None if it holds something else."""
    holds = field.name.endswith(values_column("")) and field.type.equals(_list("", pa.int64()).type)
    return field.name.removesuffix(values_column("")) if holds else None


_STORED = (codes_column, hot_column)


def _feature_fields(schema: Schema, feature: str) -> list[pa.Field]:
    kinds = {values_column(feature): pa.int64(), weights_buffer_column(feature): pa.float32()}
    return [_list(name, kinds.get(name, pa.int32())) for name in feature_columns(schema, feature)]


def _list(name: str, item: pa.DataType) -> pa.Field:
    return pa.field(name, pa.list_(pa.field("item", item, nullable=False)), nullable=False)
