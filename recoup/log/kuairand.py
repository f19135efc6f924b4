"""KuaiRand CSV files (Kuaishou short videos): the impression log joined with the user and video feature files.

Known facts of the set and the rules taken: `time_ms` is the time (`date` and `hourmin` are not trusted); rows are not
in time order; exact repeats of a whole row are one event (`event_id` = user, time and a hash of the row), rows that
differ anywhere are kept; -124 is "unknown" and read as absent; ranges such as "(0,10]" are quoted text; `tag` holds
several IDs ("12,65") or none. Text becomes IDs by its file's vocabulary. The two feature files are held in memory.
Source of the data: Gao et al., CIKM 2022.
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
from recoup.log.files import natural_key
from recoup.log.mapping import split_text
from recoup.log.scalars import as_integers
from recoup.log.side import SideTable, Vocabulary, read_side_file, vocabulary, whole_column
from recoup.log.tokens import hash_tokens
from recoup.log.where import Where
from recoup.schema import DenseFeature, Schema, SparseFeature

_UNKNOWN = -124
_REACTIONS = ("is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view")
_AFTER = ("play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time", "is_profile_enter", "is_rand", "tab")
_LOG = ("user_id", "video_id", "date", "hourmin", "time_ms", *_REACTIONS, *_AFTER)
_LABELS = ("is_click", "long_view", "is_like", "is_follow")
_USER_TEXT = (
    "user_active_degree",
    "follow_user_num_range",
    "fans_user_num_range",
    "friend_user_num_range",
    "register_days_range",
)
_USER_IDS = ("is_lowactive_period", "is_live_streamer", "is_video_author", *(f"onehot_feat{i}" for i in range(18)))
_USER_DENSE = ("follow_user_num", "fans_user_num", "friend_user_num", "register_days")
_VIDEO_TEXT = ("video_type", "upload_type")
_VIDEO_IDS = ("author_id", "music_id", "music_type")
_VIDEO_DENSE = ("video_duration",)


@dataclass(frozen=True, kw_only=True, slots=True)
class KuaiRandLog:
    """A folder of KuaiRand files, plain or `.gz`."""

    kind: Literal["kuairand"] = "kuairand"
    path: str
    logs: str = "log_standard_*.csv*"
    """Glob of the impression logs in the folder, read in natural order."""
    users: str = "user_features_*.csv*"
    videos: str = "video_features_basic_*.csv*"


def kuairand_schema() -> Schema:
    """Return the schema: user features in the group "user", video features ungrouped, clicks as the first label."""
    user_side = [SparseFeature(name=name, group="user") for name in ("user_id", *_USER_TEXT, *_USER_IDS)]
    video_side = [SparseFeature(name=name) for name in ("video_id", *_VIDEO_TEXT, *_VIDEO_IDS, "tag", "tab")]
    return Schema(
        key="user",
        time="time_ms",
        event_id="event_id",
        labels=_LABELS,
        dense=tuple(DenseFeature(name=name, missing="empty") for name in (*_USER_DENSE, *_VIDEO_DENSE)),
        sparse=(*user_side, *video_side),
    )


def open_kuairand(config: KuaiRandLog) -> FileLog:
    """Return the log; the feature files are read now.

    Raises:
        LogError: a file or a column is absent, or a value breaks the layout.
    """
    logs = _find(config.path, config.logs)
    users, user_words = _side(_find(config.path, config.users)[0], "user_id", _USER_TEXT, _USER_IDS, _USER_DENSE)
    videos, video_words = _side(_find(config.path, config.videos)[0], "video_id", _VIDEO_TEXT, _VIDEO_IDS, _VIDEO_DENSE)

    def read(request: Request) -> Iterator[Piece]:
        for rows in read_delimited(request.path, Layout(), _LOG):
            absent = [name for name in _LOG if name not in rows.data.schema.names]
            if absent:
                raise LogError(f"expected column '{absent[0]}', got {rows.data.schema.names} (file '{request.path}')")
            yield Piece(_join(rows.data, users, videos, Where(request.path, rows.first_row)), rows.bytes_read)

    words = {**user_words, **video_words}
    return FileLog(
        schema=kuairand_schema(),
        files=logs,
        read=read,
        kind=config.kind,
        facts={"vocabularies": {name: list(words[name].tokens) for name in words}, "unknown": _UNKNOWN},
    )


def _join(log: pa.RecordBatch, users: SideTable, videos: SideTable, where: Where) -> pa.RecordBatch:
    user = as_integers(log["user_id"], where.column("user_id"))
    video = as_integers(log["video_id"], where.column("video_id"))
    for name, ids in (("user_id", user), ("video_id", video)):
        if ids.null_count:
            raise where.column(name).error("expected an ID, got an empty field", row=compute.index(ids, None).as_py())
    row_text = compute.binary_join_element_wise(
        *(log[name] for name in _LOG), "|", null_handling="replace", null_replacement=""
    )
    event = compute.binary_join_element_wise(
        log["user_id"], log["time_ms"], hash_tokens(row_text).cast(pa.string()), "-"
    )
    arrays = {
        "user": user,
        "time_ms": log["time_ms"],
        "event_id": event,
        **{name: log[name] for name in _LABELS},
        "user_id": user,
        "video_id": video,
        "tab": log["tab"],
        **users.join(user),
        **videos.join(video),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _side(
    path: str, key: str, text: tuple[str, ...], ids: tuple[str, ...], dense: tuple[str, ...]
) -> tuple[SideTable, dict[str, Vocabulary]]:
    lists = ("tag",) if key == "video_id" else ()
    # Integer columns with blanks are published as "1.0": small codes, exact as floats. IDs proper stay integers.
    types = {name: pa.float64() for name in (*ids, *dense) if not name.endswith("_id")}
    table = read_side_file(path, Layout(types=types), [key, *text, *ids, *dense, *lists])
    where = Where(path)
    columns: dict[str, pa.Array] = {}
    words: dict[str, Vocabulary] = {}
    for name in text:
        column = whole_column(table, name)
        words[name] = vocabulary(column)
        columns[name] = words[name].encode(column)
    for name in ids:
        columns[name] = _codes(whole_column(table, name), where.column(name))
    for name in dense:
        columns[name] = whole_column(table, name)
    for name in lists:
        columns[name] = split_text(whole_column(table, name), ",")
    keys = whole_column(table, key)
    return SideTable(keys, columns, where.column(key)), words


def _codes(array: pa.Array, where: Where) -> pa.Array:
    if pa.types.is_floating(array.type):
        try:
            array = array.cast(pa.int64())
        except pa.ArrowInvalid as err:
            raise where.error(f"expected whole numbers, got {err}") from err
    codes = as_integers(array, where)
    return compute.if_else(compute.equal(codes, _UNKNOWN), pa.scalar(None, pa.int64()), codes)


def _find(folder: str, pattern: str) -> tuple[str, ...]:
    found = sorted((str(path) for path in Path(folder).glob(pattern) if not path.name.startswith(".")), key=natural_key)
    if not found:
        raise LogError(f"expected a file named {pattern}, got none (folder '{folder}'): check 'path'")
    return tuple(found)
