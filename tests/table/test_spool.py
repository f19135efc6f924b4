"""The spool: every row comes back once, in its bucket, in order of arrival and with its own width, spilled or not."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoup.table.errors import TableError
from recoup.table.gather import narrowest, take_rows
from recoup.table.spool import Spool

ITEMS = pa.list_(pa.field("item", pa.int64(), nullable=False))
WEIGHTS = pa.list_(pa.field("item", pa.float32(), nullable=False))
SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        pa.field("ids", ITEMS, nullable=False),
        pa.field("weights", WEIGHTS, nullable=False),
        pa.field("other", ITEMS, nullable=False),
        pa.field("name", pa.string(), nullable=False),
    ]
)
EDGES = [0, 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**63 - 1, -(2**63)]
NUMBERS = st.lists(st.sampled_from(EDGES) | st.integers(0, 100), max_size=4)
ROWS = st.lists(st.tuples(st.integers(0, 9), NUMBERS, st.lists(st.integers(0, 9), max_size=2)), max_size=12)


def batch_of(rows: list[tuple[int, list[int], list[int]]]) -> pa.RecordBatch:
    keys, ids, small = ([row[i] for row in rows] for i in range(3))
    columns = [keys, ids, [[float(n) for n in numbers] for numbers in small], small, [f"k{key}" for key in keys]]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def buckets_of(batch: pa.RecordBatch) -> np.ndarray:
    return batch.column("key").to_numpy() % 3


@given(batches=st.lists(ROWS, max_size=6), memory_bytes=st.sampled_from([0, 300, 10**9]), split=st.booleans())
def test_every_row_comes_back_in_order_and_width(batches: list, memory_bytes: int, *, split: bool) -> None:
    arrived = [batch_of(rows) for rows in batches]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("recoup.table.spool._SPLIT_BYTES", 1 if split else 10**9)
        spool = Spool(Path(folder), SCHEMA, 3, memory_bytes=memory_bytes)
        spool.fill(iter(arrived), buckets_of)
        for bucket in range(3):
            expected = [row for batch in arrived for row in batch.to_pylist() if row["key"] % 3 == bucket]
            read = [*spool.read(bucket)]
            assert all(piece.schema == SCHEMA for piece in read)
            assert [row for piece in read for row in piece.to_pylist()] == expected
            whole = spool.whole(bucket)
            taken = take_rows(whole, np.arange(whole.num_rows), SCHEMA)
            assert taken.schema == SCHEMA
            assert taken.to_pylist() == expected


def test_lists_are_kept_narrow_until_one_does_not_fit(tmp_path: Path) -> None:
    small, large = batch_of([(0, [1, 2], [3])]), batch_of([(0, [2**31], [4])])
    spool = Spool(tmp_path, SCHEMA, 1, memory_bytes=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recoup.table.spool._SPLIT_BYTES", 1)
        spool.fill([small, large, small], lambda batch: np.zeros(batch.num_rows, dtype=np.int64))
    assert not spool.in_memory
    with pa.memory_map(str(spool.path(0))) as file:
        first = pa.ipc.open_stream(file).read_all().schema
        second = pa.ipc.open_stream(file).read_all().schema
    assert first == narrowest(SCHEMA)
    assert second.field("ids").type == ITEMS  # wide from then on, while the other column stays narrow
    assert second.field("other").type == narrowest(SCHEMA).field("other").type
    assert [row["ids"] for piece in spool.read(0) for row in piece.to_pylist()] == [[1, 2], [2**31], [1, 2]]


def test_a_damaged_spill_file_is_one_clear_error(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SCHEMA, 1, memory_bytes=0)
    spool.fill([batch_of([(0, [1], [1])] * 50)], lambda batch: np.zeros(batch.num_rows, dtype=np.int64))
    data = spool.path(0).read_bytes()
    spool.path(0).write_bytes(data[: len(data) // 2])
    with pytest.raises(TableError, match="cannot be read"):
        spool.whole(0)
    spool.path(0).write_bytes(b"")  # what a power cut may leave: no damage that the format would notice
    with pytest.raises(TableError, match=r"expected 50 samples in spill file .*, got 0: build again"):
        spool.whole(0)


@pytest.mark.parametrize("value", EDGES)
def test_width_follows_the_numbers(value: int) -> None:
    batch = batch_of([(0, [7, value], [1]), (1, [], [])])
    narrow = take_rows(batch, np.array([1, 0]), narrowest(SCHEMA))
    fits = -(2**31) <= value < 2**31
    assert pa.types.is_int32(narrow.schema.field("ids").type.value_type) == fits
    assert narrow.column("ids").to_pylist() == [[], [7, value]]
    assert take_rows(narrow, np.array([1, 0]), SCHEMA).to_pylist() == batch.to_pylist()
