"""Avazu CSV (mobile advertising clicks): one header, 24 fields, hexadecimal categories, an hour as the only time.

Rules: `id` is an unsigned 64-bit number beyond int64, so it is the event's ID as text, all digits kept. The set names
no user; the key is `device_id`, or `device_ip` and `device_model` together where `device_id` is the set's stand-in for
"none" (a99f214a). Hours are UTC; events of one hour share a time. -1 (in C20) is absent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from recoup.log.arrays import compute
from recoup.log.criteo import hexadecimal
from recoup.log.delimited import Layout, read_delimited
from recoup.log.errors import LogError
from recoup.log.filelog import FileLog, Piece, Request
from recoup.log.files import list_files
from recoup.log.scalars import as_integers
from recoup.log.where import Where
from recoup.schema import Schema, SparseFeature

_DEVICE_HEX = ("device_id", "device_ip", "device_model")
_DEVICE_CODES = ("device_type", "device_conn_type")
_HEX = ("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category")
_CODES = ("C1", "banner_pos", *(f"C{i}" for i in range(14, 22)))
_COLUMNS = ("id", "click", "hour", *_CODES, *_HEX, *_DEVICE_HEX, *_DEVICE_CODES)
_NO_DEVICE = "a99f214a"


@dataclass(frozen=True, kw_only=True, slots=True)
class AvazuLog:
    """`train` or `train.csv` of the Kaggle set, plain or `.gz`."""

    kind: Literal["avazu"] = "avazu"
    path: str


def avazu_schema() -> Schema:
    """Return the schema: what describes the device is the dedup group "device"."""
    device = [SparseFeature(name=name, group="device") for name in (*_DEVICE_HEX, *_DEVICE_CODES)]
    other = [SparseFeature(name=name) for name in (*_CODES, *_HEX)]
    return Schema(key="device", key_type="string", event_id="id", labels=("click",), sparse=(*device, *other))


def open_avazu(config: AvazuLog) -> FileLog:
    """Return the log; files are listed now and read later.

    Raises:
        LogError: nothing is at `path`.
    """

    def read(request: Request) -> Iterator[Piece]:
        for rows in read_delimited(request.path, Layout(), _COLUMNS):
            absent = [name for name in _COLUMNS if name not in rows.data.schema.names]
            if absent:
                raise LogError(f"expected column '{absent[0]}', got {rows.data.schema.names} (file '{request.path}')")
            yield Piece(_samples(rows.data, Where(request.path, rows.first_row)), rows.bytes_read)

    files = list_files(config.path, (".csv", ".csv.gz", "train", "train.gz"))
    return FileLog(schema=avazu_schema(), files=files, read=read, kind=config.kind)


def _samples(data: pa.RecordBatch, where: Where) -> pa.RecordBatch:
    key = compute.if_else(
        compute.equal(data["device_id"], _NO_DEVICE),
        compute.binary_join_element_wise(data["device_ip"], data["device_model"], "-"),
        data["device_id"],
    )
    arrays = {"device": key, "time": _hours(data["hour"], where.column("hour")), "id": data["id"]}
    arrays["click"] = data["click"]
    for name in (*_HEX, *_DEVICE_HEX):
        arrays[name] = hexadecimal(data[name], where.column(name))
    for name in (*_CODES, *_DEVICE_CODES):
        codes = as_integers(data[name], where.column(name))
        arrays[name] = compute.if_else(compute.equal(codes, -1), pa.scalar(None, pa.int64()), codes)
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _hours(array: pa.Array, where: Where) -> pa.Array:
    times = compute.strptime(array, format="%y%m%d%H", unit="ms", error_is_null=True)
    if times.null_count:
        row = compute.index(times.is_null(), True).as_py()
        raise where.error(f"expected an hour as YYMMDDHH, got {array[row].as_py()!r}", row=row)
    return times
