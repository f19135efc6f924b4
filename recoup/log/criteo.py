"""Criteo Kaggle and Terabyte TSV: label, 13 counts (blank or negative at times), 26 hexadecimal categories; no header.

The set has neither users nor times. Every line is its own session: key and time are a running number (file number
times 2**40 plus line), which keeps the published order, chronological in both sets; nothing can be deduplicated.
A blank count is 0.0 and a blank category an empty list; negative counts (I2 has them) stay as they are.
A category is the 32-bit number it spells; reduce it to a table's size with a reader transform.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from recoup.log.arrays import compute
from recoup.log.delimited import Layout, read_delimited
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import list_files
from recoup.log.scalars import as_integers
from recoup.log.where import Where
from recoup.schema import DenseFeature, Schema, SparseFeature

_DENSE = tuple(f"I{i}" for i in range(1, 14))
_SPARSE = tuple(f"C{i}" for i in range(1, 27))
_FILE_STEP = 2**40  # lines a file at most


@dataclass(frozen=True, kw_only=True, slots=True)
class CriteoLog:
    """`train.txt` of the Kaggle set or `day_0`, `day_1`, ... of the Terabyte set, plain or `.gz`."""

    kind: Literal["criteo"] = "criteo"
    path: str
    """A file, or a folder of files named .txt, .tsv or day_*, read in natural order."""


def criteo_schema() -> Schema:
    """Return the schema: 13 dense features, 26 sparse ones of at most one ID."""
    return Schema(
        key="line",
        labels=("click",),
        dense=tuple(DenseFeature(name=name, missing="empty") for name in _DENSE),
        sparse=tuple(SparseFeature(name=name) for name in _SPARSE),
    )


def open_criteo(config: CriteoLog) -> FileLog:
    """Return the log; files are listed now and read later.

    Raises:
        LogError: nothing is at `path`.
    """
    suffixes = [name + packed for name in (".txt", ".tsv") for packed in ("", ".gz")]
    files = list_files(config.path, (*suffixes, *(f"day_{i}{packed}" for i in range(24) for packed in ("", ".gz"))))
    layout = Layout(delimiter="\t", names=("click", *_DENSE, *_SPARSE), quotes=False)

    def read(request: Request) -> Iterator[Piece]:
        base = files.index(request.path) * _FILE_STEP
        for rows in read_delimited(request.path, layout):
            line = pa.array(np.arange(rows.data.num_rows, dtype=np.int64) + (base + rows.first_row))
            where = Where(request.path, rows.first_row)
            arrays = [line, line, *(rows.data[name] for name in ("click", *_DENSE))]
            arrays += [hexadecimal(rows.data[name], where.column(name)) for name in _SPARSE]
            yield Piece(
                pa.RecordBatch.from_arrays(arrays, names=["line", "time", "click", *_DENSE, *_SPARSE]),
                rows.bytes_read,
            )

    return FileLog(schema=criteo_schema(), files=files, read=read, kind=config.kind)


def hexadecimal(array: pa.Array, where: Where) -> pa.Array:
    """Return the numbers that hexadecimal text spells; null stays null.

    Raises:
        LogError: a value is not hexadecimal, with its row.
    """
    return as_integers(compute.binary_join_element_wise("0x", array, ""), where)
