"""The page decoder reads what pyarrow reads, for every encoding and shape of lists; damage never gets through."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.reader.columns import PartFile
from recoup.reader.errors import ReaderError

WORDS = {"int64": pa.int64(), "int32": pa.int32(), "float": pa.float32()}
ENCODINGS = ["PLAIN", "BYTE_STREAM_SPLIT", "dictionary", "DELTA_BINARY_PACKED"]


def lists_of(kind, lengths, seed, *, distinct):
    """Return non-nullable lists of the given lengths with `distinct` different values."""
    rng = np.random.default_rng(seed)
    pool = rng.integers(-(2**31), 2**31 - 1, distinct)
    if kind == "int64":
        pool = np.where(rng.random(distinct) < 0.1, pool * 2**31 + 7, np.abs(pool) % 10**7)
    values = pool[rng.integers(0, distinct, sum(lengths))].astype({"float": np.float32}.get(kind, kind))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    item = pa.field("item", WORDS[kind], nullable=False)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, WORDS[kind]), type=pa.list_(item))


def write(path, column, encoding, **options):
    schema = pa.schema([pa.field("x", column.type, nullable=False)])
    name = "x.list.element"
    choice = (
        {"use_dictionary": [name]}
        if encoding == "dictionary"
        else {"use_dictionary": False, "column_encoding": {name: encoding}}
    )
    pq.write_table(pa.table([column], schema=schema), path, write_page_checksum=True, **choice, **options)


def read(path, *, offsets=True, row_group=0):
    file = PartFile(str(path))
    try:
        return file.read(row_group, ["x"], ["x"] if offsets else []).pop("x"), "x" in file._leaves
    finally:
        file.close()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(WORDS)),
    st.sampled_from(ENCODINGS),
    st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40), st.just(1)), max_size=60),
    st.integers(0, 1000),
    st.sampled_from([1, 3, 200, 3000]),
    st.sampled_from(["zstd", "none"]),
    st.sampled_from([64, 1 << 20]),
)
def test_columns_equal_arrow(tmp_path_factory, kind, encoding, lengths, seed, distinct, compression, page_bytes):
    """Values and offsets equal pyarrow's for empty and long lists, one or many pages, every encoding we write."""
    if encoding == "DELTA_BINARY_PACKED" and kind == "float":
        encoding = "PLAIN"
    column = lists_of(kind, lengths * 5, seed, distinct=distinct)
    path = tmp_path_factory.mktemp("c") / "part.parquet"
    write(path, column, encoding, compression=compression, data_page_size=page_bytes)
    found, direct = read(path)
    assert direct
    assert np.array_equal(found.offsets, column.offsets.to_numpy())
    assert np.array_equal(found.values, column.values.to_numpy())
    without, _ = read(path, offsets=False)
    assert np.array_equal(without.values, column.values.to_numpy())


def test_nullable_lists_are_read_by_arrow(tmp_path):
    """A file of another writer, with nullable lists, is read all the same."""
    pq.write_table(pa.table({"x": [[1, 2], [], [3]]}), tmp_path / "p.parquet")
    found, direct = read(tmp_path / "p.parquet")
    assert not direct
    assert (found.values.tolist(), found.offsets.tolist()) == ([1, 2, 3], [0, 2, 2, 3])


def test_dictionary_that_overflows_into_plain_pages(tmp_path):
    """A chunk whose dictionary grew too large goes on in plain pages; both are read."""
    column = lists_of("int64", [50] * 200, 1, distinct=9000)
    path = tmp_path / "p.parquet"
    write(path, column, "dictionary", compression="zstd", dictionary_pagesize_limit=1000, data_page_size=4000)
    found, _ = read(path)
    assert np.array_equal(found.values, column.values.to_numpy())


@pytest.mark.parametrize("encoding", ENCODINGS[:3])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("offsets", [True, False])
def test_damaged_bytes_never_crash_J27(tmp_path, encoding, checksum, offsets):
    """A bit changed, place after place: the right values, or one error; with checksums never wrong values."""
    column = lists_of("int64", [3, 0, 20, 1, 1, 7] * 8, 2, distinct=9)
    path = tmp_path / "p.parquet"
    write(path, column, encoding, compression="none", data_page_size=200)
    if not checksum:
        schema = pa.schema([pa.field("x", column.type, nullable=False)])
        pq.write_table(
            pa.table([column], schema=schema),
            path,
            compression="none",
            use_dictionary=encoding == "dictionary",
            column_encoding=None if encoding == "dictionary" else {"x.list.element": encoding},
        )
    data = path.read_bytes()
    end = pq.ParquetFile(path).metadata.row_group(0).column(0).total_compressed_size + 4
    rng = np.random.default_rng(3)
    errors = 0
    for at in range(4, end, 3):
        broken = bytearray(data)
        broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            found, _ = read(path, offsets=offsets)
        except (ReaderError, OSError, pa.ArrowException):
            errors += 1
            continue
        if checksum and not np.array_equal(found.values, column.values.to_numpy()):
            pytest.fail(f"byte {at} of {end} changed the values without notice")
    assert errors > (0 if not checksum else (end - 4) // 6)
