"""IDs at rest as codes: what is read is what was written, by us and by another engine, and hot IDs do save bytes."""

import json
import re
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.coding import MAX_HOT
from recoup.reader import ReaderConfig, ReaderError, SessionReader
from recoup.schema import sample_schema
from recoup.table import BuildConfig, TableError, WriterConfig, build_table, compact_table, open_table
from recoup.table.verify import verify_table
from recoup.table.writer import file_checksum
from tests.table.oracles import MemoryLog, batch_of, decode, multiset
from tests.table.test_files import SCHEMA, sql_of_the_docs

LARGEST = 2**63 - 1


def skewed_log(num_samples=2000, num_ids=1_000_000, seed=3, last=()):
    """Return samples whose IDs are of skewed use, popular ones anywhere; the last sample's items are `last`."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(num_ids)
    rows, likes, history = [], {}, {}

    def drawn(count):
        return [int(names[int(num_ids**u) - 1]) for u in rng.random(count)]

    for i in range(num_samples):
        user = i % 37 if i < num_samples - 1 else 99  # a session of its own, in the last row
        if user not in likes or rng.random() < 0.5:
            likes[user] = drawn(30)
        history[user] = [*history.get(user, []), *drawn(12)][-30:]
        rows.append(
            {
                "user": user,
                "time": 1_700_000_000_000 + i,
                "event": f"e{i}",
                "click": 1.0,
                "age": 2.0,
                "likes": likes[user],
                "history": history[user],
                "item": drawn(12) if i < num_samples - 1 else [*last],
                "history_weights": [0.5] * len(history[user]),
            }
        )
    return batch_of(rows, SCHEMA)


def parts_of(table):
    return [pq.read_table(table.part_path(part.name)) for part in table.manifest.parts]


def hot_of(table, feature):
    """Return the hot IDs of each part; every list but a part's first is empty."""
    lists = [part.column(f"{feature}__hot").to_pylist() for part in parts_of(table)]
    assert not any(ids for part in lists for ids in part[1:])
    return [part[0] for part in lists]


def build(path, batch, **writer):
    build_table(MemoryLog(batch, SCHEMA, 500), path, BuildConfig(writer=WriterConfig(**writer)))
    return open_table(path)


@pytest.mark.parametrize("part_bytes", [1 << 30, 300_000])
def test_hot_ids_are_stored_short_and_come_back_law_1(tmp_path, part_bytes):
    """Samples, oracle and DuckDB agree on a table whose parts each have hot IDs of their own."""
    batch = skewed_log()
    table = build(tmp_path / "table", batch, row_group_bytes=400_000, part_bytes=part_bytes)
    for feature in ("likes", "history", "item"):
        hot = hot_of(table, feature)
        assert all(hot[:2])  # where there is much: the last part is small
        assert max(map(len, hot)) <= MAX_HOT
        assert len({tuple(ids) for ids in hot}) == len(hot) == (1 if part_bytes == 1 << 30 else 3)
    assert multiset(table.iter_samples(), SCHEMA) == multiset([batch], SCHEMA)
    samples = [sample for *_, row in decode(table.path, SCHEMA) for sample in row]
    assert multiset([batch_of(samples, SCHEMA)], SCHEMA) == multiset([batch], SCHEMA)
    rows = duckdb.sql(sql_of_the_docs(table)).to_arrow_table()
    rows = rows.select(sample_schema(SCHEMA).names).cast(sample_schema(SCHEMA))
    assert multiset(rows.to_batches(), SCHEMA) == multiset([batch], SCHEMA)
    assert verify_table(table) == []


def test_the_pandas_lines_of_the_docs_give_the_ids(tmp_path):
    """What docs/format.md tells a pandas user to do with one feature of one part."""
    table = build(tmp_path / "table", skewed_log())
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    lines = text.split("<!-- pandas -->")[1].split("```python")[1].split("```")[0]
    names = {"pd": pd, "np": np, "path": table.part_path(table.manifest.parts[0].name)}
    exec(lines, names)
    expected = [rows.column("likes__values").flatten().to_numpy() for rows in table.iter_rows(["likes__values"])]
    assert names["hot"].size > 0
    assert np.array_equal(names["ids"], np.concatenate(expected))


def test_codes_take_less_than_the_ids(tmp_path):
    """The column of codes and its list are smaller than the same IDs in the smaller of Parquet's own ways."""
    table = build(tmp_path / "table", skewed_log())
    ids = pa.chunked_array([rows.column("likes__values").flatten() for rows in table.iter_rows(["likes__values"])])
    sizes = []
    for choice in ({"use_dictionary": True}, {"use_dictionary": False, "column_encoding": {"x": "BYTE_STREAM_SPLIT"}}):
        pq.write_table(pa.table({"x": ids}), tmp_path / "x.parquet", compression="zstd", compression_level=3, **choice)
        sizes.append(pq.read_metadata(tmp_path / "x.parquet").row_group(0).column(0).total_compressed_size)
    chunks = pq.read_metadata(table.part_path(table.manifest.parts[0].name)).row_group(0)
    stored = [chunks.column(i) for i in range(chunks.num_columns)]
    named = sum(c.total_compressed_size for c in stored if c.path_in_schema.startswith(("likes__codes", "likes__hot")))
    assert named < 0.95 * min(sizes)


def test_an_id_without_a_code_begins_another_part(tmp_path):
    """The largest int64, first met in a late row group: it is stored, in a part without hot IDs of that feature."""
    batch = skewed_log(last=[LARGEST, -1, 0, -LARGEST - 1])
    table = build(tmp_path / "table", batch, row_group_bytes=400_000)
    hot = hot_of(table, "item")
    assert [bool(ids) for ids in hot] == [True, False]
    assert multiset(table.iter_samples(), SCHEMA) == multiset([batch], SCHEMA)
    assert verify_table(table) == []


def test_ids_without_codes_split_a_table_once(tmp_path):
    """Every row group brings another pair of extreme sentinels: two parts, and compaction leaves them as they are."""
    rows = skewed_log().to_pylist()
    for i, row in enumerate(rows):
        row["user"] = i // 20
        row["item"] = [LARGEST - i // 250] * 2 + row["item"]
    batch = batch_of(rows, SCHEMA)
    table = build(tmp_path / "table", batch, row_group_bytes=200_000)
    assert len(table.manifest.parts[0].row_groups) + len(table.manifest.parts[-1].row_groups) > 4
    assert [bool(ids) for ids in hot_of(table, "item")] == [True, False]
    assert multiset(table.iter_samples(), SCHEMA) == multiset([batch], SCHEMA)
    before = table.manifest
    assert compact_table(table.path, WriterConfig(row_group_bytes=200_000)) == before
    assert verify_table(open_table(table.path)) == []


def test_the_largest_id_may_be_hot(tmp_path):
    """A sentinel that comes often is a hot ID as any other."""
    rows = skewed_log().to_pylist()
    for row in rows:
        row["item"] = [LARGEST, *row["item"]]
    batch = batch_of(rows, SCHEMA)
    table = build(tmp_path / "table", batch)
    assert LARGEST in hot_of(table, "item")[0]
    assert multiset(table.iter_samples(), SCHEMA) == multiset([batch], SCHEMA)


def test_compaction_chooses_hot_ids_anew(tmp_path):
    """Many small parts merged: one list of hot IDs in place of many, the same rows."""
    table = build(tmp_path / "table", skewed_log(), row_group_bytes=400_000, part_bytes=300_000)
    rows = pa.Table.from_batches(table.iter_rows())
    assert len(hot_of(table, "likes")) == 3
    compact_table(table.path, WriterConfig())
    merged = open_table(table.path)
    assert len(hot_of(merged, "likes")) == 1
    assert pa.Table.from_batches(merged.iter_rows()).equals(rows)
    assert merged.num_bytes < table.num_bytes


def hot_id_twice(rows):
    rows[0]["likes__hot"][1] = rows[0]["likes__hot"][0]


def hot_id_in_another_row(rows):
    rows[5]["likes__hot"] = [7]


def hot_id_as_itself(rows):
    hot = rows[0]["likes__hot"]
    rows[3]["likes__codes"][0] = hot[2] + len(hot)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (hot_id_twice, r"'likes': expected distinct hot IDs, got \d+ of which \d+ are distinct"),
        (hot_id_in_another_row, r"'likes': expected hot IDs in the first row only, got 1 elsewhere"),
        (hot_id_as_itself, r"'likes': expected the place of a hot ID as its code, got \d+ for \d+ \(row group 0\)"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_verify_finds_codes_that_break_the_format(tmp_path, change, message):
    """A part of another writer whose codes are not what docs/format.md says is found."""
    table = build(tmp_path / "table", skewed_log())
    path = table.part_path(table.manifest.parts[0].name)
    stored = pq.read_table(path)
    rows = stored.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=stored.schema), path)
    manifest = json.loads((table.path / "manifest.json").read_text())
    manifest["parts"][0] |= {"bytes": path.stat().st_size, "checksum": file_checksum(path)}
    (table.path / "manifest.json").write_text(json.dumps(manifest))
    problems = verify_table(open_table(table.path))
    assert [problem for problem in problems if re.search(message, problem)], problems


def with_column(table, name, column):
    """Put `column` in the place of one of the table's only part (None: leave it out), with a manifest that fits."""
    path = table.part_path(table.manifest.parts[0].name)
    stored = pq.read_table(path)
    at = stored.schema.get_field_index(name)
    stored = stored.drop_columns([name]) if column is None else stored.set_column(at, name, column)
    pq.write_table(stored, path, row_group_size=stored.num_rows)
    manifest = json.loads((table.path / "manifest.json").read_text())
    manifest["parts"][0] |= {"bytes": path.stat().st_size, "checksum": file_checksum(path)}
    (table.path / "manifest.json").write_text(json.dumps(manifest))
    return open_table(table.path)


COLUMNS = {
    "absent": lambda lists: None,
    "int32": lambda lists: lists.cast(pa.list_(pa.int32())),
    "uint64": lambda lists: lists.cast(pa.list_(pa.uint64())),
    "double": lambda lists: lists.cast(pa.list_(pa.float64())),
    "no list": lambda lists: pa.array(range(len(lists)), pa.int64()),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("column", ["likes__codes", "likes__hot"])
def test_columns_of_another_type_are_one_clear_error(tmp_path, column, kind):
    """A part of another writer whose codes or hot IDs are no lists of int64: whoever reads it names the column."""
    table = build(tmp_path / "table", skewed_log())
    lists = pq.read_table(table.part_path(table.manifest.parts[0].name)).column(column)
    table = with_column(table, column, COLUMNS[kind](lists))
    for use in (lambda: list(table.iter_samples()), lambda: table.export_rows(tmp_path / "rows.parquet")):
        with pytest.raises(TableError, match=f"part '.*': expected column '{column}' of lists of int64, got "):
            use()
    assert any(f"expected column '{column}'" in problem for problem in verify_table(table))
    with pytest.raises(ReaderError, match="likes__codes"):
        list(SessionReader(table, ReaderConfig(batch_size=8)))


def test_nulls_among_codes_are_one_clear_error(tmp_path):
    """A null is no ID: no way to read takes it for one."""
    table = build(tmp_path / "table", skewed_log())
    lists = pq.read_table(table.part_path(table.manifest.parts[0].name)).column("likes__codes").to_pylist()
    lists[4] = [None, *lists[4]]
    table = with_column(table, "likes__codes", pa.array(lists, pa.list_(pa.int64())))
    with pytest.raises(TableError, match="expected no nulls, got some in column 'likes__codes'"):
        list(table.iter_rows())
    assert any("expected no nulls" in problem for problem in verify_table(table))
    with pytest.raises(ReaderError, match="part-0000"):
        list(SessionReader(table, ReaderConfig(batch_size=8)))


def test_a_flipped_bit_among_hot_ids_is_refused_F08(tmp_path):
    """One bad page of hot IDs would spoil every row of the part: reading fails, it does not guess."""
    table = build(tmp_path / "table", skewed_log())
    path = table.part_path(table.manifest.parts[0].name)
    group = pq.read_metadata(path).row_group(0)
    chunk = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema.startswith("likes__hot"))
    whole = path.read_bytes()
    for at in range(chunk.data_page_offset + 60, chunk.data_page_offset + chunk.total_compressed_size, 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(TableError, match="cannot be read"):
            list(table.iter_samples(["likes"]))
        with pytest.raises(ReaderError):
            list(SessionReader(table, ReaderConfig(batch_size=8)))
