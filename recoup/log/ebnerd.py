"""EB-NeRD parquet (Ekstra Bladet news): `behaviors.parquet` joined with `history.parquet`, one sample a shown article.

Key: `session_id` (the set's own sessions, at most half an hour idle) or `user_id`. `article_ids_inview` becomes one
sample a candidate, clicked if it is in `article_ids_clicked`; `article_id` is the page the list was shown on (null on
the front page: absent). The user's last `history` articles are the dedup group "history"; they end before the
behaviours begin, as the set is published, so they hold nothing of the future. `history.parquet` is held in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.log.arrays import NumpyArray, compute
from recoup.log.conform import flatten_lists
from recoup.log.errors import LogError
from recoup.log.explode import parents, positions, take
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import file_bytes
from recoup.log.scalars import as_integers
from recoup.log.side import SideTable, whole_column
from recoup.log.where import Where
from recoup.schema import Schema, SparseFeature

_USER = ("is_sso_user", "gender", "postcode", "age", "is_subscriber")
_BEHAVIORS = (
    "impression_id",
    "impression_time",
    "session_id",
    "user_id",
    "article_id",
    "article_ids_inview",
    "article_ids_clicked",
    "device_type",
    *_USER,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EbnerdLog:
    """A split's folder as published: `behaviors.parquet` and `history.parquet`."""

    kind: Literal["ebnerd"] = "ebnerd"
    path: str
    key: Literal["session_id", "user_id"] = "session_id"
    history: int = 50
    """Most recent articles kept a user."""


def ebnerd_schema(config: EbnerdLog) -> Schema:
    """Return the schema: groups "user" and "history"; candidate, page and device ungrouped."""
    del config
    return Schema(
        key="session",
        event_id="event_id",
        labels=("click",),
        sparse=(
            *(SparseFeature(name=name, group="user") for name in ("user_id", *_USER)),
            SparseFeature(name="history", group="history"),
            *(SparseFeature(name=name) for name in ("article_id", "page_article_id", "device_type")),
        ),
    )


def open_ebnerd(config: EbnerdLog) -> FileLog:
    """Return the log; the history file is read now.

    Raises:
        LogError: a file or a column is absent.
    """
    paths = {name: Path(config.path) / f"{name}.parquet" for name in ("behaviors", "history")}
    for path in paths.values():
        if not path.is_file():
            raise LogError(f"expected an EB-NeRD file, got nothing (file '{path}'): check 'path'")
    histories = _histories(str(paths["history"]), config.history)

    def read(request: Request) -> Iterator[Piece]:
        total = file_bytes(request.path)
        done = 0
        with pq.ParquetFile(request.path, pre_buffer=False, page_checksum_verification=True) as file:
            absent = [name for name in _BEHAVIORS if name not in file.schema_arrow.names]
            if absent:
                raise LogError(f"expected column '{absent[0]}', got {file.schema_arrow.names} (file '{request.path}')")
            # About ten candidates an impression.
            rows = max(1, request.batch_samples // 10)
            for batch in file.iter_batches(rows, columns=list(_BEHAVIORS), use_threads=False):
                samples = _samples(batch, histories, config.key, Where(request.path, done))
                done += batch.num_rows
                yield Piece(samples, total * done // max(1, file.metadata.num_rows))

    return FileLog(schema=ebnerd_schema(config), files=(str(paths["behaviors"]),), read=read, kind=config.kind)


def _samples(data: pa.RecordBatch, histories: SideTable, key: str, where: Where) -> pa.RecordBatch:
    counts, shown = flatten_lists(data["article_ids_inview"])
    clicks, clicked = flatten_lists(data["article_ids_clicked"])
    shown_ids = as_integers(shown, where.column("article_ids_inview").of_items(counts))
    clicked_ids = as_integers(clicked, where.column("article_ids_clicked").of_items(clicks))
    rows = parents(counts)
    label = _in_row(rows, shown_ids.to_numpy(), parents(clicks), clicked_ids.to_numpy())
    user = as_integers(take(data["user_id"], rows), where.column("user_id"))
    place = pa.array(positions(counts)).cast(pa.string())
    arrays = {
        "session": take(data[key], rows),
        "time": take(data["impression_time"], rows),
        "event_id": compute.binary_join_element_wise(
            take(data["impression_id"], rows).cast(pa.string()), user.cast(pa.string()), place, "-"
        ),
        "click": pa.array(label.astype(np.float32)),
        "user_id": user,
        **{name: take(data[name], rows) for name in ("device_type", *_USER)},
        "article_id": shown_ids,
        "page_article_id": take(data["article_id"], rows),
        **histories.join(user),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _in_row(rows: NumpyArray, ids: NumpyArray, other_rows: NumpyArray, other_ids: NumpyArray) -> NumpyArray:
    """Return whether each (row, id) is among the other pairs, bool [len(ids)]."""
    distinct = np.unique(np.concatenate([ids, other_ids]))
    codes = rows * len(distinct) + np.searchsorted(distinct, ids)
    return np.isin(codes, other_rows * len(distinct) + np.searchsorted(distinct, other_ids))


def _histories(path: str, last: int) -> SideTable:
    table = pq.read_table(path, columns=["user_id", "article_id_fixed"])
    lengths, items = flatten_lists(whole_column(table, "article_id_fixed"))
    where = Where(path)
    ids = as_integers(items, where.column("article_id_fixed").of_items(lengths))
    kept = np.minimum(lengths, last)
    from_end = np.repeat(lengths, lengths) - positions(lengths)
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
    history = pa.ListArray.from_arrays(pa.array(offsets), ids.filter(pa.array(from_end <= last)))
    return SideTable(whole_column(table, "user_id"), {"history": history}, where.column("user_id"))
