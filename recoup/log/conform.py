"""The border check: turn a raw batch into exactly `sample_schema(schema)`, or refuse it with row and column.

Every source ends here, and so do Kafka messages. Rules (recoup/schema/features.py): IDs stay 64-bit integers and never
pass through floats; an unsigned ID at or above 2**63 is refused; a null or empty list is an empty list, a null inside
a list is refused or dropped as the schema says; NaN and infinities are refused; an absent column is refused or filled.
Rows in messages count from 0 in the file's data rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recoup.log.arrays import compute
from recoup.log.errors import LogError
from recoup.log.scalars import as_event_ids, as_floats, as_integers, as_keys, as_times, holds_numbers
from recoup.log.source import selected_schema
from recoup.log.where import Where
from recoup.schema import Schema, SparseFeature, weights_column


def conform(
    data: pa.RecordBatch | pa.Table,
    schema: Schema,
    where: str,
    *,
    first_row: int = 0,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Return `data` as a batch of `sample_schema(schema)`, or of its `columns`.

    Args:
        data: columns of any Arrow type that holds the declared values; other columns are ignored.
        schema: what a sample is.
        where: the file or topic, for messages.
        first_row: the row of that file at which `data` starts, for messages.
        columns: the columns to return; None = all.
    Raises:
        LogError: a column is absent, has another type, or holds a value the schema refuses.
    Cost: O(values); columns already in canonical form are not copied.
    """
    batch = _one_batch(data)
    target = selected_schema(schema, columns)
    found = _Columns(batch, Where(where, first_row))
    try:
        arrays = _arrays(found, schema, target)
    except pa.ArrowException as err:
        reason = str(err).splitlines()[0]
        raise LogError(f"expected values of the schema's types, got: {reason} (file '{where}')") from err
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _arrays(found: "_Columns", schema: Schema, target: pa.Schema) -> list[pa.Array]:
    sparse = {feature.name: feature for feature in schema.sparse}
    weighted = {weights_column(feature.name): feature for feature in schema.sparse if feature.weighted}
    missing = {feature.name: feature.missing for feature in schema.dense}
    arrays: list[pa.Array] = []
    for field in target:
        if field.name in sparse:
            arrays.append(_lists(found, sparse[field.name])[0])
        elif field.name in weighted:
            weights = _lists(found, weighted[field.name])[1]
            assert weights is not None
            arrays.append(weights)
        elif field.name in missing:
            arrays.append(_dense(found, field.name, missing[field.name]))
        elif field.name in schema.labels:
            arrays.append(as_floats(*found.required(field.name)))
        elif field.name == schema.event_id:
            arrays.append(as_event_ids(*found.required(field.name)))
        elif field.name == schema.time:
            arrays.append(as_times(*found.required(field.name)))
        else:
            arrays.append(as_keys(*found.required(field.name), field.type))
    return arrays


@dataclass(frozen=True, slots=True)
class _Columns:
    batch: pa.RecordBatch
    where: Where

    def get(self, name: str) -> tuple[pa.Array, Where] | None:
        positions = self.batch.schema.get_all_field_indices(name)
        if len(positions) > 1:
            raise self.where.column(name).error(f"expected one column of this name, got {len(positions)}")
        if not positions:
            return None
        array = self.batch.column(positions[0])
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        return array, self.where.column(name)

    def required(self, name: str) -> tuple[pa.Array, Where]:
        found = self.get(name)
        if found is None:
            raise self.where.column(name).error(
                f"expected this column, got {self.batch.schema.names}", remedy="name its source in 'columns'"
            )
        return found


def _one_batch(data: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if isinstance(data, pa.RecordBatch):
        return data
    columns = [column.combine_chunks() for column in data.columns]
    arrays = [
        column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=data.schema.names)


def _dense(found: _Columns, name: str, missing: str) -> pa.Array:
    column = found.get(name) if missing == "empty" else found.required(name)
    if column is None:
        return pa.array(np.zeros(found.batch.num_rows, dtype=np.float32))
    array, where = column
    if array.type == pa.null() and missing == "empty":
        return pa.array(np.zeros(len(array), dtype=np.float32))
    if array.null_count and missing == "empty" and holds_numbers(array.type):
        array = compute.fill_null(array, pa.scalar(0).cast(array.type))
    return as_floats(array, where)


def _lists(found: _Columns, feature: SparseFeature) -> tuple[pa.Array, pa.Array | None]:
    column = found.get(feature.name) if feature.missing == "empty" else found.required(feature.name)
    if column is None:
        empty = np.zeros(found.batch.num_rows, dtype=np.int64)
        no_weights = _list_array(empty, pa.array([], pa.float32())) if feature.weighted else None
        return _list_array(empty, pa.array([], pa.int64())), no_weights
    array, where = column
    lengths, items = flatten_lists(array)
    weights: pa.Array | None = None
    if feature.weighted:
        weights_array, weights_where = found.required(weights_column(feature.name))
        weight_lengths, weights = flatten_lists(weights_array)
        differ = np.flatnonzero(weight_lengths != lengths)
        if len(differ):
            row = int(differ[0])
            raise weights_where.error(f"expected {lengths[row]} weights, got {weight_lengths[row]}", row=row)
        weights = as_floats(weights, weights_where.of_items(lengths))
    keep: np.ndarray | None = None
    if items.null_count:
        lengths, items, keep = _without_nulls(lengths, items, feature, where)
    ids = as_integers(items, where.of_items(lengths))
    if weights is None:
        return _list_array(lengths, ids), None
    return _list_array(lengths, ids), _list_array(lengths, weights if keep is None else weights.filter(pa.array(keep)))


def _without_nulls(
    lengths: np.ndarray, items: pa.Array, feature: SparseFeature, where: Where
) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    valid = np.asarray(items.is_valid())
    if feature.null_ids == "refuse":
        raise where.of_items(lengths).error(
            "expected IDs, got a null inside the list",
            row=int(np.flatnonzero(~valid)[0]),
            remedy="set null_ids = 'drop' to leave nulls out",
        )
    ends = np.concatenate([[0], np.cumsum(lengths)])
    counts = np.concatenate([[0], np.cumsum(valid)])
    return np.diff(counts[ends]), items.filter(pa.array(valid)), valid


def flatten_lists(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return the lengths [rows] and the items [sum of lengths] of lists, or of scalars as lists of one.

    A null row has length 0. Items may be null. Works for every list type of Arrow.
    """
    kind = array.type
    if kind == pa.null():
        return np.zeros(len(array), dtype=np.int64), pa.array([], pa.int64())
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        lengths = np.asarray(compute.fill_null(compute.list_value_length(array), 0), dtype=np.int64)
        items = array.flatten()
        return lengths, items.cast(items.type.value_type) if pa.types.is_dictionary(items.type) else items
    return np.asarray(array.is_valid(), dtype=np.int64), array.drop_null()


def _list_array(lengths: np.ndarray, items: pa.Array) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    assert offsets[-1] < 2**31, "a batch holds fewer than 2**31 IDs: ask for fewer samples a batch"
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), items, type=pa.list_(pa.field("item", items.type, nullable=False))
    )
