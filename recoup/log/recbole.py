"""RecBole atomic files: `<name>.inter` joined with `<name>.user` and `<name>.item` (tabs, a `field:type` header).

Key `user` (the user's ID), label `label` = rating >= `like_at`, features of the user file in the dedup group "user",
features of the item file ungrouped, and the two IDs themselves. Blank fields are absent (an empty list). Lists
(`token_seq`) are separated by spaces; quotes are ordinary characters. Text becomes IDs by the vocabulary of its file
(sorted tokens), named in `describe`. The user and item files are held in memory, the interactions stream.
`movielens_folder()` finds the MovieLens-100k files that the recbole wheel ships; recbole itself is not imported.
"""

import importlib.util
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from recoup.core import ConfigError
from recoup.log.arrays import compute
from recoup.log.delimited import Layout, read_delimited
from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.mapping import split_text
from recoup.log.scalars import as_integers
from recoup.log.side import SideTable, Vocabulary, read_side_file, vocabulary, whole_column
from recoup.log.tokens import hash_tokens
from recoup.log.where import Where
from recoup.schema import DenseFeature, Schema, SparseFeature

_TYPES = {"token": pa.string(), "token_seq": pa.string(), "float": pa.float64(), "float_seq": pa.string()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecBoleLog:
    """A folder of RecBole atomic files; the defaults fit ml-100k."""

    kind: Literal["recbole"] = "recbole"
    path: str
    """Folder that holds `<name>.inter`, `<name>.user`, `<name>.item`."""
    name: str = ""
    """Data set name; "" = the folder's name."""
    user_field: str = "user_id"
    item_field: str = "item_id"
    rating_field: str = "rating"
    time_field: str = "timestamp"
    """Seconds since the epoch."""
    like_at: float = 4.0
    """The label is 1 when the rating is at least this."""
    user_features: tuple[str, ...] = ("age", "gender", "occupation")
    item_features: tuple[str, ...] = ("class", "release_year")
    vocabularies: tuple[str, ...] = ("gender", "occupation", "class")
    """Features whose tokens are text; the others must be integers."""
    bands: dict[str, tuple[int, ...]] = field(default_factory=lambda: {"age": (18, 25, 35, 45, 50, 56)})
    """Integer features turned into bands: ID = how many of these bounds the value reaches (MovieLens-1M's ages)."""
    numbers: tuple[str, ...] = ()
    """Fields of the user or item file read as dense features too, named `<field>_value`; a blank is 0.0."""
    absent: tuple[str, ...] = ("unkonwn", "V")
    """Tokens that mean "no value", beside the empty field; ml-100k writes these two for a film without a year."""
    hash_ids: bool = False
    """True: user and item tokens are text and become 63-bit hashes."""

    def __post_init__(self) -> None:
        """Check that every rule names a feature."""
        features = (*self.user_features, *self.item_features)
        for name in (*self.vocabularies, *self.bands):
            if name not in features:
                raise ConfigError(f"expected one of the features {list(features)}, got {name!r}")


def movielens_folder() -> Path:
    """Return the folder of ml-100k inside the installed recbole wheel, found without importing it.

    Raises:
        LogError: the wheel is not installed.
    """
    found = importlib.util.find_spec("recbole")
    folders = list(found.submodule_search_locations or ()) if found else []
    for folder in folders:
        path = Path(folder) / "dataset_example" / "ml-100k"
        if path.is_dir():
            return path
    raise LogError(
        "expected the ml-100k files of the recbole wheel, got no such package: pip install --no-deps recbole==1.2.1"
    )


def recbole_schema(config: RecBoleLog) -> Schema:
    """Return the schema: user features in the group "user", item features ungrouped."""
    user_side = [SparseFeature(name=name, group="user") for name in (config.user_field, *config.user_features)]
    item_side = [SparseFeature(name=name) for name in (config.item_field, *config.item_features)]
    dense = tuple(DenseFeature(name=_value(name), missing="empty") for name in config.numbers)
    return Schema(key="user", labels=("label",), dense=dense, sparse=(*user_side, *item_side))


def open_recbole(config: RecBoleLog) -> FileLog:
    """Return the log; the user and item files are read now.

    Raises:
        LogError: a file or a field is absent, or a value breaks its declared type.
    """
    folder = Path(config.path)
    name = config.name or folder.name
    paths = {kind: folder / f"{name}.{kind}" for kind in ("inter", "user", "item")}
    for path in paths.values():
        if not path.is_file():
            raise LogError(f"expected a RecBole atomic file, got nothing (file '{path}'): check 'path' and 'name'")
    users, user_words = _side(paths["user"], config.user_field, config.user_features, config)
    items, item_words = _side(paths["item"], config.item_field, config.item_features, config)
    header = _header(paths["inter"])
    wanted = [config.user_field, config.item_field, config.rating_field, config.time_field]
    _require(header, wanted, paths["inter"])
    for name in config.numbers:
        if not (users.has(_value(name)) or items.has(_value(name))):
            raise LogError(f"expected a field '{name}' to read as a number, got none (folder '{folder}')")

    def read(request: Request) -> Iterator[Piece]:
        layout = _layout(header)
        for rows in read_delimited(request.path, layout, [f"{name}:{header[name]}" for name in wanted]):
            where = Where(request.path, rows.first_row)
            columns = {name: rows.data[f"{name}:{header[name]}"] for name in wanted}
            yield Piece(_join(columns, users, items, config, where), rows.bytes_read)

    words = {**user_words, **item_words}
    facts = {"vocabularies": {name: list(words[name].tokens) for name in words}, "bands": dict(config.bands)}
    return FileLog(
        schema=recbole_schema(config), files=(str(paths["inter"]),), read=read, kind=config.kind, facts=facts
    )


def _join(
    columns: Mapping[str, pa.Array], users: SideTable, items: SideTable, config: RecBoleLog, where: Where
) -> pa.RecordBatch:
    user = _ids(columns[config.user_field], config.hash_ids, where.column(config.user_field))
    item = _ids(columns[config.item_field], config.hash_ids, where.column(config.item_field))
    seconds = columns[config.time_field]
    rating = columns[config.rating_field]
    for name, array in ((config.time_field, seconds), (config.rating_field, rating)):
        if array.null_count:
            row = int(np.flatnonzero(np.asarray(array.is_null()))[0])
            raise where.column(name).error("expected a number, got an empty field", row=row)
    times = np.floor(seconds.to_numpy(zero_copy_only=False).astype(np.float64) * 1000).astype(np.int64)
    label = compute.greater_equal(rating, pa.scalar(config.like_at, rating.type))
    joined = {**users.join(user), **items.join(item)}
    arrays = {
        "user": user,
        "time": pa.array(times),
        "label": label,
        config.user_field: user,
        config.item_field: item,
        **joined,
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _side(
    path: Path, key: str, features: tuple[str, ...], config: RecBoleLog
) -> tuple[SideTable, dict[str, Vocabulary]]:
    header = _header(path)
    _require(header, [key, *features], path)
    numbers = [name for name in config.numbers if name in header]
    wanted = dict.fromkeys([key, *features, *numbers])
    table = read_side_file(str(path), _layout(header), [f"{name}:{header[name]}" for name in wanted])
    where = Where(str(path))
    columns: dict[str, pa.Array] = {}
    words: dict[str, Vocabulary] = {}
    for name in features:
        column = _blanked(whole_column(table, f"{name}:{header[name]}"), config.absent)
        if header[name].endswith("_seq"):
            column = split_text(column, " ")
        if name in config.vocabularies:
            words[name] = vocabulary(column)
            column = words[name].encode(column)
        elif not pa.types.is_list(column.type):
            column = as_integers(column, where.column(name))
        if name in config.bands:
            column = _banded(column, config.bands[name])
        columns[name] = column
    for name in numbers:
        columns[_value(name)] = _blanked(whole_column(table, f"{name}:{header[name]}"), config.absent)
    keys = _ids(whole_column(table, f"{key}:{header[key]}"), config.hash_ids, where.column(key))
    return SideTable(keys, columns, where.column(key)), words


def _ids(array: pa.Array, hashed: bool, where: Where) -> pa.Array:
    if array.null_count:
        row = int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise where.error("expected a token, got an empty field", row=row)
    return hash_tokens(array) if hashed else as_integers(array, where)


def _value(name: str) -> str:
    return f"{name}_value"


def _blanked(array: pa.Array, absent: tuple[str, ...]) -> pa.Array:
    if not pa.types.is_string(array.type):
        return array
    return compute.if_else(
        compute.is_in(array, value_set=pa.array(absent, pa.string())), pa.scalar(None, pa.string()), array
    )


def _banded(array: pa.Array, bounds: tuple[int, ...]) -> pa.Array:
    return pa.array([None if value is None else bisect_right(bounds, value) for value in array.to_pylist()], pa.int64())


def _layout(header: Mapping[str, str]) -> Layout:
    types = {f"{name}:{kind}": _TYPES[kind] for name, kind in header.items()}
    return Layout(delimiter="\t", types=types, quotes=False)


def _header(path: Path) -> dict[str, str]:
    """Return field -> type of an atomic file."""
    with path.open("rb") as file:
        line = file.readline().decode(errors="replace").rstrip("\r\n")
    fields: dict[str, str] = {}
    for part in line.split("\t"):
        name, colon, kind = part.rpartition(":")
        if not colon or kind not in _TYPES:
            raise LogError(f"expected header fields '<name>:<{'|'.join(_TYPES)}>', got {part!r} (file '{path}')")
        fields[name] = kind
    return fields


def _require(header: Mapping[str, str], names: list[str], path: Path) -> None:
    for name in names:
        if name not in header:
            raise LogError(f"expected field '{name}', got {list(header)} (file '{path}')")
