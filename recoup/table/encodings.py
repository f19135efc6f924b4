"""How the columns of a part are stored: judged by its first row group, by what each way would take.

Measured on the recd-like log with pyarrow 26. IDs and floats take BYTE_STREAM_SPLIT (7 ns an ID against 13.5 for PLAIN,
both 2.77 bytes: zstd then skips the zero bytes and entropy-codes little else) or a dictionary, where that is clearly
smaller: a dictionary halves what IDs of few distinct values take, and costs more than it saves where most IDs come
once. There codes help (`recoup.coding`): 2.10 bytes an ID. Lengths, starts and inverses take a dictionary where they
repeat (0.39 bytes against 0.56 delta-packed), deltas else.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.coding import HotCodes, codes_column, hot_column, hot_ids
from recoup.table.arrays import IntArray
from recoup.table.layout import CHUNK, NUM_SAMPLES, START, TIME, feature_of_values

DICTIONARY = "dictionary"
DELTA = "DELTA_BINARY_PACKED"
BYTE_SPLIT = "BYTE_STREAM_SPLIT"
_JUDGED = 65_536  # numbers looked at to judge a column of places
_SMALLER = 0.95  # what a dictionary, or codes, must save of a row group: by less, chance may have chosen it
_REPEATS = 8  # mean uses of a number from which on a dictionary is taken: below, its entries outweigh what they save


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """How a part stores its columns."""

    encodings: Mapping[str, str]
    """Parquet leaf -> encoding; a leaf that is not named is PLAIN."""
    codes: Mapping[str, HotCodes]
    """Feature -> the codes of its IDs; without hot IDs where none pay."""


def judged_storage(first: pa.Table, level: int, uncoded: Collection[str] = ()) -> Storage:
    """Return how to store a part of rows whose first row group is `first`; no ID is hot in the features `uncoded`.

    Lengths and places (int32) go by how often they repeat, since a dictionary is read faster than deltas; IDs and
    floats go by size. Cost: a sort of the IDs; each column of IDs or floats is encoded two or three times more.
    """
    encodings = {START: DELTA, CHUNK: DELTA, NUM_SAMPLES: DELTA, _leaf(TIME): DELTA}
    codes: dict[str, HotCodes] = {}
    for field in first.schema:
        if field.name == TIME or not pa.types.is_list(field.type) or pa.types.is_string(field.type.value_type):
            continue
        numbers = _numbers(first.column(field.name))
        feature = feature_of_values(field)
        if feature is not None:
            judge = _judged_plain if feature in uncoded else _judged_ids
            codes[feature], encodings[_leaf(codes_column(feature))] = judge(numbers, level)
            encodings[_leaf(hot_column(feature))] = DELTA
        elif field.type.value_type == pa.int32():
            encodings[_leaf(field.name)] = DICTIONARY if _few_distinct(numbers) else DELTA
        else:
            encodings[_leaf(field.name)] = _smaller(numbers, level)[0]
    return Storage(encodings=encodings, codes=codes)


def _judged_ids(numbers: pa.ChunkedArray, level: int) -> tuple[HotCodes, str]:
    """Return the codes of a feature's IDs, and the encoding of the codes."""
    encoding, size = _smaller(numbers, level)
    ids: IntArray = numbers.to_numpy()
    codes = HotCodes(hot_ids(ids))
    taken = _written(pa.array(codes.encode(ids)), BYTE_SPLIT, level) + _written(pa.array(codes.hot), DELTA, level)
    return (codes, BYTE_SPLIT) if taken < _SMALLER * size else (HotCodes(codes.hot[:0]), encoding)


def _judged_plain(numbers: pa.ChunkedArray, level: int) -> tuple[HotCodes, str]:
    return HotCodes(np.empty(0, dtype=np.int64)), _smaller(numbers, level)[0]


def _leaf(column: str) -> str:
    return f"{column}.list.element"


def _numbers(lists: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the numbers in `lists`, of all its rows."""
    return pa.chunked_array([chunk.flatten() for chunk in lists.chunks], lists.type.value_type)


def _few_distinct(numbers: pa.ChunkedArray) -> bool:
    """Return whether the first of `numbers` repeat so often that a dictionary is small beside them."""
    judged = numbers.slice(0, _JUDGED).to_numpy()
    return np.unique(judged).size * _REPEATS <= judged.size


def _smaller(numbers: pa.ChunkedArray, level: int) -> tuple[str, int]:
    """Return the encoding of IDs or floats, and the bytes they take in it."""
    by_dictionary, split = (_written(numbers, encoding, level) for encoding in (DICTIONARY, BYTE_SPLIT))
    return (DICTIONARY, by_dictionary) if by_dictionary < _SMALLER * split else (BYTE_SPLIT, split)


def _written(numbers: pa.ChunkedArray | pa.Array, encoding: str, level: int) -> int:
    """Return the bytes of `numbers` in this encoding, compressed."""
    file = pa.BufferOutputStream()
    by_dictionary = encoding == DICTIONARY
    pq.write_table(
        pa.table({"numbers": numbers}),
        file,
        row_group_size=max(1, len(numbers)),
        compression="zstd",
        compression_level=level,
        use_dictionary=by_dictionary,
        column_encoding=None if by_dictionary else {"numbers": encoding},
        write_statistics=False,
    )
    return file.tell()
