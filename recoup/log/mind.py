"""MIND (Microsoft News) `behaviors.tsv` joined with `news.tsv`: one sample a shown article.

Key `user`: the number in U80234. The click history is the dedup group "history" (it is the same for all of a user's
impressions of the set, so it repeats whole); the candidate's category and subcategory come from `news.tsv`, by its
vocabulary. Times are read as UTC. Lines are not in time order. `event_id` = impression, user and place in the list.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from recoup.log.arrays import compute
from recoup.log.conform import flatten_lists
from recoup.log.delimited import Layout, read_delimited
from recoup.log.errors import LogError
from recoup.log.explode import parents, positions, take
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.mapping import split_text
from recoup.log.side import SideTable, Vocabulary, read_side_file, vocabulary, whole_column
from recoup.log.where import Where
from recoup.schema import Schema, SparseFeature

_LAYOUT = Layout(delimiter="\t", names=("impression", "user", "time", "history", "shown"), quotes=False)
_NEWS = Layout(
    delimiter="\t",
    names=("news", "category", "subcategory", "title", "abstract", "url", "title_entities", "abstract_entities"),
    quotes=False,
)
_TEXT = ("category", "subcategory")


@dataclass(frozen=True, kw_only=True, slots=True)
class MindLog:
    """A split's folder as published: `behaviors.tsv` and `news.tsv`."""

    kind: Literal["mind"] = "mind"
    path: str


def mind_schema() -> Schema:
    """Return the schema: user and history grouped, the candidate and its categories ungrouped."""
    return Schema(
        key="user",
        event_id="event_id",
        labels=("click",),
        sparse=(
            SparseFeature(name="user_id", group="history"),
            SparseFeature(name="history", group="history"),
            SparseFeature(name="news"),
            *(SparseFeature(name=name) for name in _TEXT),
        ),
    )


def open_mind(config: MindLog) -> FileLog:
    """Return the log; `news.tsv` is read now.

    Raises:
        LogError: a file is absent, or a line breaks the layout (a test split without labels does).
    """
    paths = {name: Path(config.path) / f"{name}.tsv" for name in ("behaviors", "news")}
    for path in paths.values():
        if not path.is_file():
            raise LogError(f"expected a MIND file, got nothing (file '{path}'): check 'path'")
    news, words = _news(str(paths["news"]))

    def read(request: Request) -> Iterator[Piece]:
        for rows in read_delimited(request.path, _LAYOUT):
            yield Piece(_samples(rows.data, news, Where(request.path, rows.first_row)), rows.bytes_read)

    return FileLog(
        schema=mind_schema(),
        files=(str(paths["behaviors"]),),
        read=read,
        kind=config.kind,
        facts={"vocabularies": {name: list(words[name].tokens) for name in words}},
    )


def _samples(data: pa.RecordBatch, news: SideTable, where: Where) -> pa.RecordBatch:
    user = _numbers(data["user"], r"^U(?P<id>\d+)$", "U<number>", where.column("user"))["id"]
    lengths, clicked = flatten_lists(split_text(data["history"], " "))
    read = _numbers(clicked, r"^N(?P<id>\d+)$", "N<number>", where.column("history").of_items(lengths))["id"]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    history = pa.ListArray.from_arrays(pa.array(offsets), read)
    counts, shown = flatten_lists(split_text(data["shown"], " "))
    shown_where = where.column("shown").of_items(counts)
    candidates = _numbers(shown, r"^N(?P<id>\d+)-(?P<click>[01])$", "N<number>-<0 or 1>", shown_where)
    rows = parents(counts)
    place = pa.array(positions(counts)).cast(pa.string())
    impression = take(data["impression"], rows)
    arrays = {
        "user": take(user, rows),
        "time": take(_times(data["time"], where.column("time")), rows),
        "event_id": compute.binary_join_element_wise(impression, take(data["user"], rows), place, "-"),
        "click": candidates["click"],
        "user_id": take(user, rows),
        "history": take(history, rows),
        "news": candidates["id"],
        **news.join(candidates["id"]),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _numbers(array: pa.Array, pattern: str, expected: str, where: Where) -> dict[str, pa.Array]:
    """Return the named groups of `pattern` as int64; every value must match."""
    found = compute.extract_regex(array, pattern=pattern)
    if found.null_count:
        row = compute.index(found.is_null(), True).as_py()
        raise where.error(f"expected {expected}, got {array[row].as_py()!r}", row=row)
    return {field.name: found.field(i).cast(pa.int64()) for i, field in enumerate(found.type)}


def _times(array: pa.Array, where: Where) -> pa.Array:
    times = compute.strptime(array, format="%m/%d/%Y %I:%M:%S %p", unit="ms", error_is_null=True)
    if times.null_count:
        row = compute.index(times.is_null(), True).as_py()
        raise where.error(f"expected a time such as '11/15/2019 10:22:32 AM', got {array[row].as_py()!r}", row=row)
    return times


def _news(path: str) -> tuple[SideTable, dict[str, Vocabulary]]:
    table = read_side_file(path, _NEWS, ["news", *_TEXT])
    words = {name: vocabulary(whole_column(table, name)) for name in _TEXT}
    columns = {name: words[name].encode(whole_column(table, name)) for name in _TEXT}
    where = Where(path, 0, "news")
    keys = _numbers(whole_column(table, "news"), r"^N(?P<id>\d+)$", "N<number>", where)["id"]
    return SideTable(keys, columns, where), words
