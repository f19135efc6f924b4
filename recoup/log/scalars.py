"""Exact conversions of one Arrow column; a value that does not fit is reported with its row."""

import numpy as np
import pyarrow as pa

from recoup.log.arrays import compute
from recoup.log.where import Where

_LARGEST = 2**63 - 1
_YEAR_10000 = 253_402_300_800_000  # milliseconds: no calendar goes further, so a larger time is in another unit


def as_integers(array: pa.Array, where: Where) -> pa.Array:
    """Return int64 values of a column without nulls; never through floats, never wrapped.

    Raises:
        LogError: a value is not an integer, or is below -2**63 or above 2**63 - 1.
    """
    kind = array.type
    if kind == pa.int64():
        return array
    if kind == pa.null():
        return pa.nulls(len(array), pa.int64())
    if pa.types.is_floating(kind):
        raise where.error(
            f"expected integer IDs, got {kind}",
            row=0 if len(array) else None,
            remedy="floats lose IDs above 2**53: write this column as integers",
        )
    if _is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return _cast(array, pa.int64(), where, "int64")
    raise where.error(f"expected integers, got {kind}")


def as_keys(array: pa.Array, where: Where, kind: pa.DataType) -> pa.Array:
    """Return session keys, int64 or string; a null is refused."""
    _refuse_null(array, where, "a session key")
    if kind == pa.int64():
        return as_integers(array, where)
    return _as_strings(array, where, "a session key")


def as_event_ids(array: pa.Array, where: Where) -> pa.Array:
    """Return event IDs as strings; integers of any width keep all their digits; a null is refused."""
    _refuse_null(array, where, "an event ID")
    return _as_strings(array, where, "an event ID")


def as_times(array: pa.Array, where: Where) -> pa.Array:
    """Return int64 milliseconds since the epoch from integers (taken as milliseconds), timestamps or ISO text.

    A timestamp without a zone is UTC. Parts of a millisecond are dropped. A time beyond the year 9999 is refused.
    """
    _refuse_null(array, where, "a time")
    if _is_text(array.type):
        array = _parse_times(array, where)
    if pa.types.is_floating(array.type):
        raise where.error(f"expected milliseconds or a timestamp, got {array.type}")
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    times = as_integers(array, where)
    beyond = np.abs(times.to_numpy(zero_copy_only=False)) >= _YEAR_10000
    if beyond.any():
        row = int(np.flatnonzero(beyond)[0])
        raise where.error(
            f"expected milliseconds since the epoch, got {times[row]}", row=row, remedy="it may be in another unit"
        )
    return times


def as_floats(array: pa.Array, where: Where) -> pa.Array:
    """Return float32 values; nulls, NaN and infinities are refused, integers and booleans accepted.

    Raises:
        LogError: with the value, its row and column.
    """
    kind = array.type
    if not (holds_numbers(kind) or kind == pa.null()):
        raise where.error(f"expected numbers, got {kind}")
    _refuse_null(array, where, "a number", remedy="set missing = 'empty' to read it as 0.0")
    if kind == pa.null():
        return pa.nulls(0, pa.float32())
    values = _cast(array, pa.float32(), where, "a number") if _is_text(kind) else _numbers(array)
    finite = np.isfinite(values.to_numpy(zero_copy_only=False))
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise where.error(
            f"expected a finite float32, got {array[row].as_py()!r}", row=row, remedy="clean or drop this sample"
        )
    return values


def holds_numbers(kind: pa.DataType) -> bool:
    """Return whether values of this type can be read as floats: numbers, booleans, and text that spells numbers."""
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return numeric or _is_text(kind) or pa.types.is_decimal(kind)


def _numbers(array: pa.Array) -> pa.Array:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    return array.cast(pa.float32(), safe=False)


def _as_strings(array: pa.Array, where: Where, what: str) -> pa.Array:
    if not (_is_text(array.type) or pa.types.is_integer(array.type)):
        raise where.error(f"expected {what} as a string or an integer, got {array.type}")
    return array if array.type == pa.string() else array.cast(pa.string())


def _parse_times(array: pa.Array, where: Where) -> pa.Array:
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:
        return _cast(array, pa.timestamp("ns", tz="UTC") if _zoned(array) else pa.timestamp("ns"), where, "a time")


def _zoned(array: pa.Array) -> bool:
    zone = compute.match_substring_regex(array, r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$")
    return bool(len(array)) and compute.any(zone).as_py()


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _refuse_null(array: pa.Array, where: Where, what: str, remedy: str = "") -> None:
    if array.null_count:
        row = int(np.flatnonzero(~np.asarray(array.is_valid()))[0])
        raise where.error(f"expected {what}, got null", row=row, remedy=remedy)


def _cast(array: pa.Array, kind: pa.DataType, where: Where, expected: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as err:
        row = _first_bad(array, kind)
        value = array[row].as_py()
        remedy = "IDs are signed 64-bit: map this column first" if _too_large(value) and expected == "int64" else ""
        raise where.error(f"expected {expected}, got {value!r}", row=row, remedy=remedy) from err


def _too_large(value: object) -> bool:
    text = str(value)
    return text.lstrip("-").isdigit() and not -(2**63) <= int(text) <= _LARGEST


def _first_bad(array: pa.Array, kind: pa.DataType) -> int:
    """Return the first row that does not cast, by halving."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(kind)
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low
