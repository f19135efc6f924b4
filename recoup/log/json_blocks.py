"""Many JSON objects at once: Arrow's parser where it provably gives what the exact parser would, else the exact one.

Arrow's parser is about 20 times faster than the standard library, but infers types and hides absent keys. So types are
declared from the block's first object and the schema's roles, and the fast result is taken only if every line is one
object of exactly those types and no column that must be present is entirely null. Anything else (a blank, another
type, an integer beyond 64 bits, an absent key) goes through the exact parser, which knows what to say about it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json

from recoup.log.mapping import SAME_NAMES, ColumnMapping
from recoup.schema import Schema, weights_column


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonShape:
    """What is known of the wanted keys before any line is read."""

    wanted: tuple[str, ...]
    floats: frozenset[str]
    """Keys whose numbers are floats: labels, dense features, weights."""
    lists: frozenset[str]
    """Keys of sparse features, which may be null in the first object."""
    required: frozenset[str]
    """Keys that may not be absent; a block in which one is entirely null goes through the exact parser."""


def json_shape(schema: Schema, columns: Sequence[str], mapping: ColumnMapping = SAME_NAMES) -> JsonShape:
    """Return the shape of the objects that hold `columns` of the schema."""
    weights = {weights_column(feature.name) for feature in schema.sparse if feature.weighted}
    lenient = {feature.name for feature in (*schema.sparse, *schema.dense) if feature.missing == "empty"}

    def keys(names: set[str]) -> frozenset[str]:
        return frozenset(mapping.source(name) for name in names if name in columns)

    return JsonShape(
        wanted=tuple(dict.fromkeys(mapping.source(name) for name in columns)),
        floats=keys({*schema.labels, *schema.dense_names, *weights}),
        lists=keys(set(schema.sparse_names)),
        required=keys(set(columns) - lenient),
    )


def fast_batch(lines: Sequence[bytes], shape: JsonShape) -> pa.RecordBatch | None:
    """Return the wanted keys of the objects on `lines`, or None where only the exact parser can tell."""
    fields = _declared(lines[0], shape)
    # Arrow reads a line that says `null` as an object without keys.
    if fields is None or not all(line.startswith(b"{") for line in lines):
        return None
    block = b"\n".join(lines)
    if block.count(b"\n") != len(lines) - 1:
        return None
    try:
        table = pa_json.read_json(
            pa.BufferReader(block),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pa_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
        )
        for field in fields:
            if field.type == pa.string():
                table[field.name].validate(full=True)
    except (pa.ArrowException, ValueError):
        return None
    if table.num_rows != len(lines):
        return None
    columns = {field.name: table[field.name].combine_chunks() for field in fields}
    if any(columns[name].null_count == len(lines) for name in shape.required):
        return None
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _declared(line: bytes, shape: JsonShape) -> list[pa.Field] | None:
    try:
        first = json.loads(line)
    except ValueError:
        return None
    if not isinstance(first, dict):
        return None
    fields: list[pa.Field] = []
    for name in shape.wanted:
        kind = _type_of(first.get(name), name, shape)
        if kind is None:
            return None
        fields.append(pa.field(name, kind))
    return fields


def _type_of(value: Any, name: str, shape: JsonShape) -> pa.DataType | None:  # noqa: ANN401
    if isinstance(value, list):
        item = next((one for one in value if one is not None), None)
        kind = _number_or_text(item, name, shape)
        return None if kind is None else pa.list_(kind)
    if value is None and name in shape.lists:
        return pa.list_(pa.int64())
    return _number_or_text(value, name, shape)


def _number_or_text(value: Any, name: str, shape: JsonShape) -> pa.DataType | None:  # noqa: ANN401
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, str):
        return pa.string()
    if name in shape.floats:
        return pa.float64()
    return pa.int64() if value is None or isinstance(value, int) else None
