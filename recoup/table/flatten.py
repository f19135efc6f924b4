"""Table rows back to samples: the inverse of the encoder, vectorised. flatten(encode(x)) holds exactly x."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from recoup.schema import Schema, sample_schema, weights_column
from recoup.table.arrays import IntArray, NumpyArray, list_array, list_parts, offsets_of
from recoup.table.gather import copy_windows
from recoup.table.layout import (
    EVENT_ID,
    KEY,
    NUM_SAMPLES,
    TIME,
    inverse_column,
    length_column,
    start_column,
    values_column,
    weights_buffer_column,
)


def flatten_rows(rows: pa.RecordBatch, schema: Schema, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return the samples of `rows`, in row order, as a batch of `sample_schema(schema)` (or of its `columns`).

    Cost: O(values of the samples); the IDs are copied once.
    """
    target = sample_schema(schema)
    if columns is not None:
        target = pa.schema([field for field in target if field.name in columns])
    counts = rows.column(NUM_SAMPLES).to_numpy(zero_copy_only=False).astype(np.int64)
    row_of = np.repeat(np.arange(rows.num_rows, dtype=np.int64), counts)
    plain = {schema.time: TIME, **{name: name for name in (*schema.labels, *schema.dense_names)}}
    if schema.event_id:
        plain[schema.event_id] = EVENT_ID
    arrays: dict[str, pa.Array] = {}
    for field in target:
        if field.name == schema.key:
            arrays[field.name] = rows.column(KEY).take(pa.array(row_of))
        elif field.name in plain:
            arrays[field.name] = _items(rows.column(plain[field.name]))
    for feature in schema.sparse:
        if {feature.name, weights_column(feature.name)} & {*target.names}:
            arrays |= _feature(rows, schema, feature.name, target)
    return pa.RecordBatch.from_arrays([arrays[field.name] for field in target], schema=target)


def _items(lists: pa.Array) -> pa.Array:
    offsets = lists.offsets
    first, last = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
    return lists.values.slice(first, last - first)


def _feature(rows: pa.RecordBatch, schema: Schema, feature: str, target: pa.Schema) -> dict[str, pa.Array]:
    declared = schema.sparse_feature(feature)
    values, value_offsets = list_parts(rows.column(values_column(feature)))
    length, length_offsets = list_parts(rows.column(length_column(feature)))
    if declared.group:
        start, _ = list_parts(rows.column(start_column(feature)))
        inverse, sample_offsets = list_parts(rows.column(inverse_column(declared.group)))
        places = (start, length, inverse)
        low, size = _windows(places, (value_offsets, length_offsets, sample_offsets))
    else:
        size = length[length_offsets[0] : length_offsets[-1]].astype(np.int64)
        low = value_offsets[0] + offsets_of(size)[:-1]
    offsets = offsets_of(size)
    arrays: dict[str, pa.Array] = {}
    if feature in target.names:
        out = np.empty(int(offsets[-1]), dtype=np.int64)
        copy_windows(values, low, offsets, out)
        arrays[feature] = list_array(out, offsets, target.field(feature).type)
    name = weights_column(feature)
    if declared.weighted and name in target.names:
        weights, _ = list_parts(rows.column(weights_buffer_column(feature)))
        out_weights = np.empty(int(offsets[-1]), dtype=np.float32)
        copy_windows(weights, low, offsets, out_weights)
        arrays[name] = list_array(out_weights, offsets, target.field(name).type)
    return arrays


def _windows(
    places: tuple[NumpyArray, NumpyArray, NumpyArray], offsets: tuple[IntArray, IntArray, IntArray]
) -> tuple[IntArray, IntArray]:
    start, length, inverse = places
    value_offsets, version_offsets, sample_offsets = offsets
    counts = np.diff(sample_offsets)
    row_of = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    version = version_offsets[row_of] + inverse[sample_offsets[0] : sample_offsets[-1]]
    return value_offsets[row_of] + start[version], length[version].astype(np.int64)
