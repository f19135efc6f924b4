"""Parquet, CSV and JSON lines by a mapping: the same samples through every entrance, damage reported in one line."""

import gzip
import json
import random
import subprocess
import sys
from dataclasses import replace

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError, from_table, to_table
from recoup.log import ColumnMapping, CsvLog, JsonLinesLog, LogError, ParquetLog, open_log
from recoup.schema import DenseFeature, Schema, SparseFeature, sample_schema
from tests.strategies import samples, schemas

BIG = 1577134800018226901

SCHEMA = Schema(
    key="user",
    labels=("click",),
    dense=(DenseFeature(name="age"),),
    sparse=(SparseFeature(name="items"), SparseFeature(name="city", missing="empty")),
)


def make_table(rows=20, **overrides):
    columns = {
        "user": pa.array([i % 3 for i in range(rows)], pa.int64()),
        "time": pa.array([1000 * i for i in range(rows)], pa.int64()),
        "click": pa.array([float(i % 2) for i in range(rows)], pa.float32()),
        "age": pa.array([i / 2 for i in range(rows)], pa.float32()),
        "items": pa.array([[BIG + i] * (i % 4) for i in range(rows)], pa.list_(pa.int64())),
        "city": pa.array([None if i % 5 == 0 else i for i in range(rows)], pa.int64()),
        **overrides,
    }
    return pa.table({name: column for name, column in columns.items() if column is not None})


def expected_rows(rows=20):
    return [
        {
            "user": i % 3,
            "time": 1000 * i,
            "click": float(i % 2),
            "age": i / 2,
            "items": [BIG + i] * (i % 4),
            "city": [] if i % 5 == 0 else [i],
        }
        for i in range(rows)
    ]


def as_cell(value):
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def write_csv(path, table, opener=open):
    with opener(path, "wt") as file:
        file.write(",".join(table.column_names) + "\n")
        for row in table.to_pylist():
            file.write(",".join(map(as_cell, row.values())) + "\n")
    return CsvLog(path=str(path), schema=SCHEMA)


def write_jsonl(path, table, opener=open):
    with opener(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    return JsonLinesLog(path=str(path), schema=SCHEMA)


def write_parquet(path, table):
    pq.write_table(table, path, row_group_size=7)
    return ParquetLog(path=str(path), schema=SCHEMA)


WRITERS = {"parquet": write_parquet, "csv": write_csv, "jsonl": write_jsonl}


def read(config, **options):
    return [row for batch in open_log(config).batches(**options) for row in batch.to_pylist()]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("batch_samples", [3, 8192])
def test_every_entrance_gives_the_same_samples_F01_J24(tmp_path, kind, batch_samples):
    """The same rows come out of Parquet, CSV and JSON lines: 19-digit IDs beside nulls equal, blank lists empty."""
    config = WRITERS[kind](tmp_path / f"log.{kind}", make_table())
    assert read(config, batch_samples=batch_samples) == expected_rows()
    batches = list(open_log(config).batches(batch_samples=batch_samples))
    assert all(batch.num_rows <= batch_samples and batch.schema == sample_schema(SCHEMA) for batch in batches)
    assert read(config, columns=["items", "user"]) == [
        {"user": row["user"], "items": row["items"]} for row in expected_rows()
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(sorted(WRITERS)), batch_samples=st.integers(1, 9))
def test_any_samples_survive_any_entrance(tmp_path, data, kind, batch_samples):
    """read(write(x)) = x, bit for bit, for any schema, weights and extremes of int64 included."""
    schema = data.draw(schemas())
    batch = data.draw(samples(schema, min_rows=1))
    config = replace(WRITERS[kind](tmp_path / f"log.{kind}", pa.Table.from_batches([batch])), schema=schema)
    back = pa.Table.from_batches(open_log(config).batches(batch_samples=batch_samples)).combine_chunks()
    assert back.equals(pa.Table.from_batches([batch]).combine_chunks())


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("packed", [".gz"])
def test_compressed_text_is_decompressed_while_reading(tmp_path, kind, packed):
    """A .gz file reads like a plain one; two members in one archive are both read."""
    config = WRITERS[kind](tmp_path / f"log.{kind}{packed}", make_table(), gzip.open)
    assert read(config) == expected_rows()
    if kind == "jsonl":
        path = tmp_path / "log.jsonl.gz"
        path.write_bytes(path.read_bytes() * 2)
        assert read(config) == expected_rows() * 2


@pytest.mark.parametrize("kind", WRITERS)
def test_unsigned_ids_are_refused_at_every_entrance_J23(tmp_path, kind):
    """2**63 in any format is refused with file, row and column; it never turns negative."""
    table = make_table(2, city=pa.array([1, 2**63], pa.uint64()))
    config = WRITERS[kind](tmp_path / f"log.{kind}", table)
    with pytest.raises(LogError, match=rf"got '?{2**63}'? \(file '.*log.{kind}', row 1, column 'city'\)"):
        read(config)


def test_huge_json_integers_are_refused_J23(tmp_path):
    """An integer that needs more than 64 bits is refused with its row."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"user": 1, "time": 1, "click": 0, "age": 1, "items": [1]}\n' * 2)
    with path.open("a") as file:
        file.write('{"user": 1, "time": 1, "click": 0, "age": 1, "items": [18446744073709551616]}\n')
    with pytest.raises(LogError, match=r"got \[18446744073709551616\] \(file '.*', row 2, column 'items'\)"):
        read(JsonLinesLog(path=str(path), schema=SCHEMA))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_numbers_are_refused_at_every_entrance_M10(tmp_path, kind, value):
    """NaN and infinity in any format are refused with the row."""
    table = make_table(3, age=pa.array([0.0, 1.0, value]))
    config = WRITERS[kind](tmp_path / f"log.{kind}", table)
    with pytest.raises(LogError, match=r"expected a finite float32, got .* row 2, column 'age'"):
        read(config)


def test_schema_drift_is_judged_file_by_file_F05(tmp_path):
    """Reordered columns, other widths and list<null> read alike in both file orders; a lost column names its file."""
    drifted = make_table().select(["items", "city", "time", "age", "click", "user"])
    drifted = drifted.set_column(5, "user", drifted["user"].cast(pa.int32()))
    empty = make_table(items=pa.array([[]] * 20, pa.list_(pa.null())), city=None)
    extra = make_table(more=pa.array([0] * 20))
    files = {"normal": make_table(), "drifted": drifted, "empty": empty, "extra": extra}
    results = []
    for order in (list(files), list(reversed(files))):
        folder = tmp_path / order[0]
        folder.mkdir()
        for place, name in enumerate(order):
            pq.write_table(files[name], folder / f"part-{place}.parquet")
        rows = read(ParquetLog(path=str(folder), schema=SCHEMA))
        results.append({name: rows[20 * place : 20 * place + 20] for place, name in enumerate(order)})
    assert results[0] == results[1]
    assert results[0]["drifted"] == results[0]["extra"] == results[0]["normal"] == expected_rows()
    assert {tuple(row["items"] + row["city"]) for row in results[0]["empty"]} == {()}
    pq.write_table(make_table(age=None), tmp_path / "normal" / "part-9.parquet")
    with pytest.raises(LogError, match=r"expected this column, got .*part-9.parquet', column 'age'"):
        read(ParquetLog(path=str(tmp_path / "normal"), schema=SCHEMA))


@pytest.mark.parametrize("kind", ["parquet", "csv.gz", "jsonl.gz", "jsonl"])
def test_cut_files_are_refused_in_one_line_F08(tmp_path, kind):
    """A file cut at any sixteenth, to nothing included, is one line that names it, never a shorter log."""
    path = tmp_path / f"log.{kind}"
    writer = WRITERS[kind.split(".")[0]]
    config = writer(path, make_table(), gzip.open) if kind.endswith(".gz") else writer(path, make_table())
    whole = path.read_bytes()
    for sixteenth in range(16):
        cut = whole[: len(whole) * sixteenth // 16]
        path.write_bytes(cut)
        if kind == "jsonl" and cut.endswith(b"\n"):
            continue
        with pytest.raises(LogError, match=f"file '.*log.{kind}'") as caught:
            read(config)
        assert "\n" not in str(caught.value)


def test_cut_csv_lines_are_refused_F08(tmp_path):
    """A line with too few or too many fields is refused with its line number; so is an empty file."""
    path = tmp_path / "log.csv"
    config = write_csv(path, make_table())
    lines = path.read_text().splitlines()
    for bad, message in (
        ([*lines[:5], lines[5].rsplit(",", 1)[0], *lines[6:]], r"Row #6: Expected 6 columns, got 5"),
        ([*lines[:5], lines[5] + ",9", *lines[6:]], r"Row #6: Expected 6 columns, got 7"),
        ([], "got 0 bytes"),
    ):
        path.write_text("\n".join(bad))
        with pytest.raises(LogError, match=rf"{message}.*file '.*log.csv'"):
            read(config)


def test_a_cut_csv_is_refused_or_noted_F08(tmp_path, caplog):
    """A plain text file cut at any sixteenth is refused, or read with a warning, unless it was cut at a line's end."""
    path = tmp_path / "log.csv"
    config = write_csv(path, make_table())
    whole = path.read_text()
    for sixteenth in range(1, 16):
        caplog.clear()
        cut = whole[: len(whole) * sixteenth // 16]
        path.write_text(cut)
        try:
            rows = read(config)
        except LogError:
            continue
        assert cut.endswith("\n") or "may be cut short" in caplog.text
        assert len(rows) == cut.count("\n") - cut.endswith("\n")


def test_a_missing_last_newline_is_noted_F08(tmp_path, caplog):
    """A text file that does not end in a newline is read, and a warning says it may be cut."""
    path = tmp_path / "log.csv"
    config = write_csv(path, make_table())
    assert read(config) == expected_rows()
    assert not caplog.records
    path.write_text(path.read_text().rstrip("\n"))
    assert read(config) == expected_rows()
    assert "may be cut short" in caplog.text


def test_footer_only_and_garbled_parquet_are_refused_F08(tmp_path):
    """A Parquet footer without its data, a flipped page byte, and a text file by that name are refused by name."""
    path = tmp_path / "log.parquet"
    pq.write_table(make_table(), path, write_page_checksum=True)
    whole = bytearray(path.read_bytes())
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    for damaged in (b"PAR1" + bytes(whole[-footer:]), bytes(whole[-footer:]), b"user,time\n1,2\n"):
        path.write_bytes(damaged)
        with pytest.raises(LogError, match=r"file '.*log.parquet'") as caught:
            read(ParquetLog(path=str(path), schema=SCHEMA))
        assert "\n" not in str(caught.value)
    flipped = whole.copy()
    flipped[60] ^= 0xFF
    path.write_bytes(bytes(flipped))
    with pytest.raises(LogError, match=r"file '.*log.parquet'"):
        read(ParquetLog(path=str(path), schema=SCHEMA))


def test_zero_row_files_and_groups_are_skipped_F09(tmp_path):
    """Row groups of 5, 0 and 5 rows, and a file of no rows, give ten rows."""
    with pq.ParquetWriter(tmp_path / "part-0.parquet", make_table().schema) as writer:
        for rows in (5, 0, 5):
            writer.write_table(make_table(rows))
    pq.write_table(make_table(0), tmp_path / "part-1.parquet")
    config = ParquetLog(path=str(tmp_path), schema=SCHEMA)
    assert read(config) == expected_rows(5) * 2
    (tmp_path / "part-0.parquet").unlink()
    assert read(config) == []


def test_files_come_in_natural_order_F11(tmp_path):
    """part-2 comes before part-10 whatever order the files were made in; an added file does not move the old ones."""
    numbers = [9, 10, 2, 1, 11]
    random.Random(3).shuffle(numbers)
    for number in numbers:
        pq.write_table(make_table(1, user=pa.array([number])), tmp_path / f"part-{number}.parquet")
    config = ParquetLog(path=str(tmp_path), schema=SCHEMA)
    assert [row["user"] for row in read(config)] == [1, 2, 9, 10, 11]
    pq.write_table(make_table(1, user=pa.array([12])), tmp_path / "part-12.parquet")
    assert [row["user"] for row in read(config)] == [1, 2, 9, 10, 11, 12]


def test_temporary_and_marker_files_are_ignored_F12(tmp_path):
    """Half-written temporary names and _SUCCESS are not part of a log; a folder of nothing else is refused."""
    (tmp_path / ".part-3.parquet.tmp").write_bytes(b"PAR1 half")
    (tmp_path / "part-4.parquet.tmp").write_bytes(b"PAR1 half")
    (tmp_path / "_SUCCESS").write_bytes(b"")
    with pytest.raises(LogError, match=r"expected files named .*parquet.*, got \['part-4.parquet.tmp'\]"):
        open_log(ParquetLog(path=str(tmp_path), schema=SCHEMA))
    pq.write_table(make_table(), tmp_path / "part-1.parquet")
    assert len(read(ParquetLog(path=str(tmp_path), schema=SCHEMA))) == 20
    with pytest.raises(LogError, match="got nothing"):
        open_log(ParquetLog(path=str(tmp_path / "no"), schema=SCHEMA))


def test_hive_folders_are_columns(tmp_path):
    """`key=value` folders become columns if the schema asks for them; a column in the file wins."""
    for day, city in (("2024-05-02", "7"), ("2024-05-10", "__HIVE_DEFAULT_PARTITION__")):
        folder = tmp_path / f"date={day}" / f"city={city}"
        folder.mkdir(parents=True)
        pq.write_table(make_table(2, city=None, time=None), folder / "part-0.parquet")
    mapping = ColumnMapping(columns={"time": "date"})
    rows = read(ParquetLog(path=str(tmp_path), schema=SCHEMA, mapping=mapping))
    assert [row["city"] for row in rows] == [[7], [7], [], []]
    assert [row["time"] for row in rows] == [1714608000000] * 2 + [1715299200000] * 2
    pq.write_table(make_table(1), tmp_path / "date=2024-05-02" / "city=7" / "part-0.parquet")
    assert read(ParquetLog(path=str(tmp_path / "date=2024-05-02"), schema=SCHEMA)) == expected_rows(1)


@pytest.mark.parametrize("kind", WRITERS)
def test_logs_are_read_from_object_stores(tmp_path, kind):
    """A URL that fsspec knows reads like a local path: natural order, Hive folders, sizes, one-line errors."""
    files = fsspec.filesystem("memory")
    for number in (10, 2):
        WRITERS[kind](tmp_path / f"log.{kind}", make_table(20, user=pa.array([number] * 20), city=None))
        files.pipe_file(f"/{kind}/city={number}/part-{number}.{kind}", (tmp_path / f"log.{kind}").read_bytes())
    files.pipe_file(f"/{kind}/_SUCCESS", b"")
    local = WRITERS[kind](tmp_path / f"log.{kind}", make_table())
    config = replace(local, path=f"memory://{kind}")
    rows = read(config)
    assert [row["user"] for row in rows] == [2] * 20 + [10] * 20
    assert [row["city"] for row in rows[::20]] == ([[2], [10]] if kind == "parquet" else [[], []])
    assert open_log(config).num_bytes == sum(files.size(name) for name in files.find(f"/{kind}") if "part" in name)
    assert len(read(replace(local, path=f"memory://{kind}/city=2/part-2.{kind}"))) == 20
    files.pipe_file(f"/{kind}/city=2/part-2.{kind}", b"")
    with pytest.raises(LogError, match=r"got 0 bytes \(file 'memory://.*part-2"):
        read(config)
    with pytest.raises(LogError, match=r"got nothing \(file 'memory://none'"):
        open_log(replace(local, path="memory://none"))
    with pytest.raises(LogError, match=r"expected a URL that fsspec can open, got: .*nowhere"):
        open_log(replace(local, path="nowhere://none"))


def test_mapping_renames_splits_hashes_and_scales(tmp_path):
    """Other names, another separator, text tokens and seconds become the schema's columns."""
    path = tmp_path / "log.tsv"
    path.write_text(
        "uid\tts\tclick\tage\ttags\n1\t1700000000\t1\t2.5\tred|blue\n2\t1700000001\t0\t-1\t\n3\t5\t0\t0\tblue\n"
    )
    mapping = ColumnMapping(
        columns={"user": "uid", "time": "ts", "items": "tags"},
        time_unit="s",
        list_separator="|",
        hash_tokens=("items",),
    )
    rows = read(CsvLog(path=str(path), schema=SCHEMA, delimiter="\t", mapping=mapping))
    assert [row["time"] for row in rows] == [1700000000000, 1700000001000, 5000]
    assert [len(row["items"]) for row in rows] == [2, 0, 1]
    assert rows[0]["items"][1] == rows[2]["items"][0]
    assert all(0 <= token < 2**63 for row in rows for token in row["items"])
    without_header = CsvLog(
        path=str(path), schema=SCHEMA, delimiter="\t", names=("user", "time", "click", "age", "items")
    )
    with pytest.raises(LogError, match=r"expected int64, got 'uid' \(file '.*', row 0, column 'user'\)"):
        read(without_header)


def test_mappings_are_checked_and_survive_toml(tmp_path):
    """A mapping of an unknown column is refused; configurations read back equal."""
    write_csv(tmp_path / "log.csv", make_table())
    for mapping in (ColumnMapping(columns={"usr": "uid"}), ColumnMapping(hash_tokens=("user",))):
        with pytest.raises(ConfigError, match="got 'us"):
            open_log(CsvLog(path=str(tmp_path / "log.csv"), schema=SCHEMA, mapping=mapping))
    config = CsvLog(path="x.csv", schema=SCHEMA, mapping=ColumnMapping(columns={"user": "uid"}))
    assert from_table(CsvLog, to_table(config)) == config


def test_progress_reaches_the_total(tmp_path):
    """Progress never goes back and ends at the size of all files."""
    config = write_csv(tmp_path / "log.csv", make_table(2000))
    source = open_log(config)
    seen = []
    list(source.batches(progress=lambda task, done, total: seen.append((task, done, total))))
    assert seen[-1] == ("read log", source.num_bytes, source.num_bytes)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert source.describe()["files"] == [str(tmp_path / "log.csv")]


STREAM = """
import sys, resource
from recoup.log import ParquetLog, open_log
from recoup.schema import Schema, SparseFeature
schema = Schema(key="user", labels=("click",), sparse=(SparseFeature(name="items"),))
source = open_log(ParquetLog(path=sys.argv[1], schema=schema))
batches = source.batches(batch_samples=1024)
next(batches)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = 1024 + sum(batch.num_rows for batch in batches)
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_one_huge_row_group_is_streamed_P03(tmp_path):
    """Reading one row group of 160 MB in small batches grows the process by less than 60 MB."""
    rows, length = 100_000, 200
    ids = pa.array(np.tile(np.arange(length), rows).astype(np.int64))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, rows * length + 1, length).astype(np.int32)), ids)
    zeros = pa.array(np.zeros(rows, dtype=np.int64))
    table = pa.table({"user": zeros, "time": zeros, "click": zeros, "items": lists})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=rows, use_dictionary=False, compression="zstd")
    done = subprocess.run(
        [sys.executable, "-c", STREAM, str(tmp_path / "log.parquet")], capture_output=True, text=True, check=True
    )
    read_rows, grown = map(int, done.stdout.split())
    assert read_rows == rows
    assert grown < 60
