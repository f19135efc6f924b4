"""Configuration: frozen keyword-only dataclasses to and from TOML; unknown keys are refused.

Data in: TOML text, a parsed table, and `key.path=value` overrides. Data out: one frozen tree.
Fields may be bool, int, float, str, Path, timedelta (written `30m`), Literal, `X | None`, tuple[X, ...],
dict[str, X], another such dataclass, or a union of dataclasses told apart by their `kind` field.
Guarantee: `from_table(C, to_table(c)) == c`. Runtime objects are arguments, never configuration.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import tomli_w

from recoup.core.durations import format_duration, parse_duration
from recoup.core.errors import ConfigError

C = TypeVar("C")


def load_config(cls: type[C], path: Path, overrides: Sequence[str] = ()) -> C:
    """Read the TOML file at `path` into a `cls`, after applying `key.path=value` overrides.

    Raises:
        ConfigError: the file is missing, is not TOML, or does not fit `cls`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as err:
        raise ConfigError(f"expected a TOML configuration file at {path}, got {err.strerror}") from err
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"expected TOML in {path}, got: {err}") from err
    return from_table(cls, apply_overrides(table, overrides), where=str(path))


def apply_overrides(table: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `table` with each `key.path=value` set; the value is TOML, or else a plain string."""
    result = _copy_tables(table)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"an override is written key.path=value, got {override!r}")
        *parents, last = path.strip().split(".")
        target = result
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise ConfigError(f"override {override!r}: {parent!r} is a value, not a table")
        target[last] = _parse_value(text.strip())
    return result


def from_table(cls: type[C], table: Mapping[str, Any], where: str = "configuration") -> C:
    """Build a `cls` from a parsed TOML table.

    Raises:
        ConfigError: an unknown or missing key, or a value of another type; the message names the key's full path.
    """
    return typing.cast("C", _build_dataclass(cls, table, where))


def to_table(config: object) -> dict[str, Any]:
    """Return `config` as plain TOML-ready values; fields that are None are left out."""
    assert dataclasses.is_dataclass(config)
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def to_toml(config: object) -> str:
    """Return `config` as TOML text that `load_config` reads back to an equal value."""
    return tomli_w.dumps(to_table(config))


def _copy_tables(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy_tables(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def _parse_value(text: str) -> Any:  # noqa: ANN401
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _plain(value: Any) -> Any:  # noqa: ANN401
    if dataclasses.is_dataclass(value):
        return to_table(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _build_dataclass(cls: Any, table: Any, where: str) -> object:  # noqa: ANN401
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: expected a table of {cls.__name__}, got {table!r}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    unknown = sorted(set(table) - set(fields))
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r} in {cls.__name__}, expected one of {sorted(fields)}")
    missing = [name for name, field in fields.items() if name not in table and _required(field)]
    if missing:
        raise ConfigError(f"{where}: missing key {missing[0]!r} of {cls.__name__}")
    values = {name: _build(hints[name], value, f"{where}: {name}") for name, value in table.items()}
    try:
        return cls(**values)
    except ConfigError as err:
        raise ConfigError(f"{where}: {err}") from err


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _build(hint: Any, value: Any, where: str) -> object:  # noqa: ANN401
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Literal:
        if value not in arguments or not any(type(value) is type(allowed) for allowed in arguments):
            raise ConfigError(f"{where}: expected one of {list(arguments)}, got {value!r}")
        return value
    if origin in (Union, types.UnionType):
        return _build_union(arguments, value, where)
    if origin is tuple:
        return tuple(_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(_a_list(value, where)))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: expected a table, got {value!r}")
        return {str(key): _build(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return _build_dataclass(hint, value, where)
    return _build_scalar(hint, value, where)


def _a_list(value: Any, where: str) -> Sequence[Any]:  # noqa: ANN401
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where}: expected a list, got {value!r}")
    return value


def _build_union(arguments: tuple[Any, ...], value: Any, where: str) -> object:  # noqa: ANN401
    options = [argument for argument in arguments if argument is not type(None)]
    if len(options) == 1:
        return _build(options[0], value, where)
    if not isinstance(value, Mapping) or "kind" not in value:
        raise ConfigError(f"{where}: expected a table with a 'kind', got {value!r}")
    kinds = {typing.get_args(typing.get_type_hints(option)["kind"])[0]: option for option in options}
    if value["kind"] not in kinds:
        raise ConfigError(f"{where}: expected kind one of {sorted(kinds)}, got {value['kind']!r}")
    return _build_dataclass(kinds[value["kind"]], value, where)


def _build_scalar(hint: Any, value: Any, where: str) -> object:  # noqa: ANN401
    if hint is timedelta and isinstance(value, str):
        try:
            return parse_duration(value)
        except ConfigError as err:
            raise ConfigError(f"{where}: {err}") from err
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    name = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where}: expected {name}, got {value!r} ({type(value).__name__})")
