"""A user's column mapping: how columns of a Parquet, CSV or JSON-lines file become columns of the schema."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from recoup.core import ConfigError
from recoup.log.arrays import compute
from recoup.log.tokens import hash_tokens
from recoup.schema import Schema, weights_column

_MILLISECONDS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnMapping:
    """Which file column each schema column comes from, and how text becomes lists of IDs."""

    columns: dict[str, str] = field(default_factory=dict)
    """Schema column -> file column; a column not named here has the same name in the file."""
    time_unit: Literal["s", "ms", "us", "ns"] = "ms"
    """Unit of integer times; timestamps and ISO text carry their own."""
    list_separator: str = " "
    """What separates IDs in a text column that holds a list; " " = any white space."""
    hash_tokens: tuple[str, ...] = ()
    """Sparse features whose IDs are text: each token becomes a 63-bit hash of its bytes (recoup/log/tokens.py)."""

    def source(self, name: str) -> str:
        """Return the file column of schema column `name`."""
        return self.columns.get(name, name)

    def check(self, schema: Schema) -> None:
        """Refuse a mapping of columns the schema does not have.

        Raises:
            ConfigError: a mapped or hashed name is not in the schema.
        """
        unknown = sorted(set(self.columns) - set(schema.column_names))
        if unknown:
            raise ConfigError(f"columns: expected names of {list(schema.column_names)}, got {unknown[0]!r}")
        unknown = sorted(set(self.hash_tokens) - set(schema.sparse_names))
        if unknown:
            raise ConfigError(f"hash_tokens: expected sparse features {list(schema.sparse_names)}, got {unknown[0]!r}")


SAME_NAMES = ColumnMapping()
"""File columns have the names of the schema."""


def needed_columns(schema: Schema, columns: Sequence[str]) -> tuple[str, ...]:
    """Return `columns` and the weights or IDs that go with them: both are needed to check either."""
    pairs = {feature.name: weights_column(feature.name) for feature in schema.sparse if feature.weighted}
    back = {weights: name for name, weights in pairs.items()}
    extra = [pairs.get(name) or back.get(name) for name in columns]
    return tuple(dict.fromkeys([*columns, *(name for name in extra if name)]))


def apply_mapping(
    data: pa.RecordBatch, schema: Schema, mapping: ColumnMapping, columns: Sequence[str]
) -> pa.RecordBatch:
    """Return the columns of `data` under their schema names, text lists split, tokens hashed, times in milliseconds.

    A column that is absent stays absent: `conform` decides what that means.
    """
    arrays: list[pa.Array] = []
    names: list[str] = []
    for name in needed_columns(schema, columns):
        for position in data.schema.get_all_field_indices(mapping.source(name)):
            arrays.append(_mapped(data.column(position), name, schema, mapping))
            names.append(name)
    # A batch without columns has no rows: keep the count when every wanted column is absent.
    if not arrays:
        return data
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _mapped(array: pa.Array, name: str, schema: Schema, mapping: ColumnMapping) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if name == schema.time:
        return _in_milliseconds(array, mapping.time_unit)
    lists = (*schema.sparse_names, *(weights_column(f.name) for f in schema.sparse if f.weighted))
    if name in lists and _is_text(array.type):
        array = split_text(array, mapping.list_separator)
    if name in mapping.hash_tokens:
        array = _hashed(array)
    return array


def split_text(array: pa.Array, separator: str) -> pa.Array:
    """Return text as lists of tokens; null and blank text are null lists, nothing between two separators is a null."""
    text = compute.utf8_trim_whitespace(array)
    text = compute.if_else(compute.equal(text, ""), pa.scalar(None, text.type), text)
    if separator == " ":
        return compute.utf8_split_whitespace(text)
    lists = compute.split_pattern(text, separator)
    blank = compute.equal(compute.utf8_trim_whitespace(lists.values), "")
    if not compute.any(blank).as_py():
        return lists
    tokens = compute.if_else(blank, pa.scalar(None, lists.values.type), lists.values)
    return type(lists).from_arrays(lists.offsets, tokens, mask=lists.is_null())


def _hashed(array: pa.Array) -> pa.Array:
    if _is_text(array.type):
        return hash_tokens(array)
    assert pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    return type(array).from_arrays(array.offsets, hash_tokens(array.values), mask=array.is_null())


def _in_milliseconds(array: pa.Array, unit: str) -> pa.Array:
    if _is_text(array.type):
        try:
            array = array.cast(pa.int64())
        except pa.ArrowInvalid:
            return array
    if not pa.types.is_integer(array.type):
        return array
    times, divisor = _MILLISECONDS[unit]
    return compute.divide(compute.multiply_checked(array.cast(pa.int64()), times), divisor) if unit != "ms" else array


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
