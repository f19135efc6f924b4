"""Open Bandit CSV (ZOZOTOWN fashion): logged impressions with hashed user features, joined with `item_context.csv`.

The set names no user; the key is the four hashed user features together, a stand-in for one. Hashed text becomes a
63-bit ID (recoup/log/tokens.py). Affinity columns are read only with `affinities = true`.
Source of the data: Saito et al., 2021.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from recoup.log.arrays import compute
from recoup.log.delimited import Layout, read_delimited
from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.scalars import as_integers
from recoup.log.side import SideTable, read_side_file, whole_column
from recoup.log.tokens import hash_tokens
from recoup.log.where import Where
from recoup.schema import DenseFeature, Schema, SparseFeature

_USER = tuple(f"user_feature_{i}" for i in range(4))
_ITEM_HASHED = tuple(f"item_feature_{i}" for i in range(1, 4))
_AFFINITIES = tuple(f"user-item_affinity_{i}" for i in range(80))


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenBanditLog:
    """One campaign's folder: `<campaign>.csv` and `item_context.csv`."""

    kind: Literal["open_bandit"] = "open_bandit"
    path: str
    campaign: str = "all"
    """`all`, `men` or `women`; .csv or .csv.gz."""
    affinities: bool = False
    """Whether to read the 80 user-item affinities as dense features (a blank is 0.0)."""


def open_bandit_schema(config: OpenBanditLog) -> Schema:
    """Return the schema: user features in the group "user", item, position and item features ungrouped."""
    user_side = [SparseFeature(name=name, group="user") for name in _USER]
    item_side = [SparseFeature(name=name) for name in ("item_id", "position", *_ITEM_HASHED)]
    dense = ("item_feature_0", *(_AFFINITIES if config.affinities else ()))
    return Schema(
        key="user",
        key_type="string",
        labels=("click",),
        dense=tuple(DenseFeature(name=name, missing="empty") for name in dense),
        sparse=(*user_side, *item_side),
    )


def open_open_bandit(config: OpenBanditLog) -> FileLog:
    """Return the log; the item file is read now.

    Raises:
        LogError: a file or a column is absent.
    """
    path = _one_of(config.path, (f"{config.campaign}.csv", f"{config.campaign}.csv.gz"))
    items = _items(_one_of(config.path, ("item_context.csv", "item_context.csv.gz")))
    affinities = _AFFINITIES if config.affinities else ()
    wanted = ("timestamp", "item_id", "position", "click", *_USER, *affinities)

    def read(request: Request) -> Iterator[Piece]:
        for rows in read_delimited(request.path, Layout(), wanted):
            absent = [name for name in wanted if name not in rows.data.schema.names]
            if absent:
                raise LogError(f"expected column '{absent[0]}', got {rows.data.schema.names} (file '{request.path}')")
            where = Where(request.path, rows.first_row)
            item = as_integers(rows.data["item_id"], where.column("item_id"))
            if item.null_count:
                row = compute.index(item.is_null(), True).as_py()
                raise where.column("item_id").error("expected an ID, got an empty field", row=row)
            arrays = {
                "user": compute.binary_join_element_wise(
                    *(rows.data[name] for name in _USER), "-", null_handling="replace", null_replacement=""
                ),
                "time": rows.data["timestamp"],
                "item_id": item,
                **{name: rows.data[name] for name in ("click", "position", *affinities)},
                **{name: hash_tokens(rows.data[name]) for name in _USER},
                **items.join(item),
            }
            yield Piece(pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)), rows.bytes_read)

    return FileLog(schema=open_bandit_schema(config), files=(path,), read=read, kind=config.kind)


def _items(path: str) -> SideTable:
    table = read_side_file(path, Layout(), ["item_id", "item_feature_0", *_ITEM_HASHED])
    columns = {name: hash_tokens(whole_column(table, name)) for name in _ITEM_HASHED}
    columns["item_feature_0"] = whole_column(table, "item_feature_0")
    return SideTable(whole_column(table, "item_id"), columns, Where(path, 0, "item_id"))


def _one_of(folder: str, names: tuple[str, ...]) -> str:
    for name in names:
        if (Path(folder) / name).is_file():
            return str(Path(folder) / name)
    raise LogError(f"expected a file named {' or '.join(names)}, got none (folder '{folder}'): check 'path'")
