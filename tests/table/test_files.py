"""The table's files: caps, order by manifest, damage, other engines, strays."""

import json
import random
import re
from pathlib import Path

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.core import no_progress
from recoup.schema import DenseFeature, Schema, SparseFeature, sample_schema
from recoup.table import (
    BuildConfig,
    SessionRule,
    TableError,
    WriterConfig,
    append_table,
    build_table,
    mirror_of,
    open_table,
    worked_on,
)
from recoup.table.verify import verify_table
from tests.table.oracles import MemoryLog, batch_of, multiset

SCHEMA = Schema(
    key="user",
    event_id="event",
    labels=("click",),
    dense=(DenseFeature(name="age"),),
    sparse=(
        SparseFeature(name="likes", group="profile"),
        SparseFeature(name="history", group="history", weighted=True),
        SparseFeature(name="item"),
    ),
)
BIG = 1577134800018226901


def make_log(num_samples=400, num_users=25, seed=1):
    """Return samples whose lists repeat, shift, are empty, and hold 19-digit IDs."""
    rng, rows, likes, history = random.Random(seed), [], {}, {}
    for i in range(num_samples):
        user = rng.randrange(num_users)
        if user not in likes or rng.random() < 0.1:
            likes[user] = [BIG + rng.randrange(9) for _ in range(rng.randrange(6))]
        history[user] = [*history.get(user, []), i][-8:]
        rows.append(
            {
                "user": user,
                "time": 1_700_000_000_000 + i,
                "event": f"e{i}",
                "click": float(rng.random() < 0.3),
                "age": rng.random(),
                "likes": likes[user],
                "history": history[user],
                "item": [i] * rng.randrange(3),
                "history_weights": [float(x % 4) for x in history[user]],
            }
        )
    return batch_of(rows, SCHEMA)


def build(path, batch=None, **overrides):
    """Build a table of several small parts."""
    config = {
        "writer": WriterConfig(row_group_bytes=4_000, part_bytes=6_000),
        "sessions": SessionRule(max_row_bytes=3_000),
    }
    batch = make_log() if batch is None else batch
    build_table(MemoryLog(batch, SCHEMA), path, BuildConfig(**{**config, **overrides}))
    return open_table(path)


def parts_of(table):
    """Return the paths of the parts, in reading order."""
    return [table.part_path(part.name) for part in table.manifest.parts]


def test_no_row_group_passes_its_bytes_even_with_one_huge_session_F03(tmp_path):
    """Every row group stays under the set limit, by the manifest's sizes and by Parquet's own."""
    one_user = make_log(num_users=1)
    table = build(tmp_path / "table", one_user)
    assert table.manifest.counts.sessions == 1
    assert table.manifest.counts.rows > 10
    assert max(group.bytes for part in table.manifest.parts for group in part.row_groups) <= 4_000
    for part, path in zip(table.manifest.parts, parts_of(table), strict=True):
        metadata = pq.read_metadata(path)
        assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [
            group.rows for group in part.row_groups
        ]
    assert multiset(table.iter_samples(), SCHEMA) == multiset([one_user], SCHEMA)


def test_the_manifest_fixes_the_order_F11(tmp_path):
    """Rows come in the manifest's order of parts, whatever the names sort like."""
    table = build(tmp_path / "table")
    assert len(table.manifest.parts) > 3
    before = pa.Table.from_batches(table.iter_rows())
    manifest = json.loads((tmp_path / "table" / "manifest.json").read_text())
    for number, part in enumerate(manifest["parts"]):
        name = f"part-{97 - 13 * number}.parquet"
        (tmp_path / "table" / "parts" / part["name"]).rename(tmp_path / "table" / "parts" / name)
        part["name"] = name
    (tmp_path / "table" / "manifest.json").write_text(json.dumps(manifest))
    assert pa.Table.from_batches(open_table(tmp_path / "table").iter_rows()).equals(before)
    starts = before.column("session_start").to_pylist()
    assert starts == sorted(starts)


def test_what_the_manifest_does_not_name_is_no_part_of_the_table_F12(tmp_path):
    """Half-written and foreign files beside the parts are ignored by readers and reported by verify."""
    table = build(tmp_path / "table")
    before = pa.Table.from_batches(table.iter_rows())
    for name in (".part-0000-00009.parquet.12.tmp", "part-0000-99999.parquet", "_SUCCESS"):
        (tmp_path / "table" / "parts" / name).write_bytes(b"PAR1")
    assert pa.Table.from_batches(open_table(tmp_path / "table").iter_rows()).equals(before)
    problems = verify_table(table)
    assert len(problems) == 3
    assert all("is not in the manifest" in problem for problem in problems)


@pytest.mark.parametrize("sixteenth", range(16))
def test_a_truncated_part_is_one_error_with_its_path_F08(tmp_path, sixteenth):
    """Cut at any sixteenth, 0 bytes included: reading names the file, verify finds it."""
    table = build(tmp_path / "table")
    path = parts_of(table)[1]
    path.write_bytes(path.read_bytes()[: path.stat().st_size * sixteenth // 16])
    with pytest.raises(TableError, match=re.escape(str(path)) + ".*restore it or rebuild"):
        list(table.iter_samples())
    assert [problem for problem in verify_table(table) if str(path) in problem]


def test_a_flipped_bit_anywhere_is_found_F08(tmp_path):
    """Each of 40 single-bit damages, spread over all parts, is found by verify."""
    table = build(tmp_path / "table")
    rng = random.Random(4)
    for _ in range(40):
        path = rng.choice(parts_of(table))
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        assert verify_table(table)
        path.write_bytes(whole)
    assert verify_table(table) == []


def test_a_page_that_fails_its_checksum_is_refused(tmp_path):
    """Pages carry checksums: damage inside one is an error of reading, not wrong IDs."""
    table = build(tmp_path / "table")
    path = parts_of(table)[0]
    chunk = pq.read_metadata(path).row_group(0).column(4)
    at = chunk.data_page_offset + chunk.total_compressed_size - 2
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(TableError, match="cannot be read"):
        list(table.iter_rows())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a session table in .*, got no manifest.json: build it"),
        ("{", "expected JSON in"),
        ('{"format_version": 7}', "expected format version 2 .*, got 7: rebuild"),
        ("[]", "expected format version 2 .*, got None"),
        ('{"format_version": 2}', "manifest.json"),
    ],
)
def test_a_folder_without_a_whole_manifest_is_refused_F08(tmp_path, text, message):
    """Missing, cut, foreign: one error that names the file."""
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(TableError, match=message):
        open_table(tmp_path)


def test_a_missing_part_is_named(tmp_path):
    """A part that is gone is one error with its path."""
    table = build(tmp_path / "table")
    parts_of(table)[2].unlink()
    with pytest.raises(TableError, match=re.escape(parts_of(table)[2].name)):
        list(table.iter_rows())
    assert verify_table(table) == [f"part '{parts_of(table)[2]}': expected a file, got none"]


def sql_of_the_docs(table):
    """Return the query of docs/format.md for the files of `table`."""
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    query = text.split("<!-- flatten -->")[1].split("```sql")[1].split("```")[0]
    return query.replace("'out/table/parts/", f"'{table.path}/parts/")


def test_the_sql_of_the_docs_gives_the_log_back(tmp_path):
    """Law 1 through another engine: DuckDB flattens the files to exactly the log's samples."""
    batch = make_log()
    table = build(tmp_path / "table", batch)
    rows = duckdb.sql(sql_of_the_docs(table)).to_arrow_table()
    assert rows.num_rows == batch.num_rows
    assert set(rows.schema.names) == set(sample_schema(SCHEMA).names)
    rows = rows.select(sample_schema(SCHEMA).names).cast(sample_schema(SCHEMA))
    assert multiset(rows.to_batches(), SCHEMA) == multiset([batch], SCHEMA)


@pytest.mark.parametrize("order", ["time", "session"])
@pytest.mark.parametrize("memory_bytes", [1_000_000, 512_000_000])
def test_export_is_the_same_samples_as_rows(tmp_path, order, memory_bytes):
    """The exported Parquet holds the log's samples, ordered as asked, in memory or through the spill."""
    batch = make_log(3000)
    table = build(tmp_path / "table", batch, writer=WriterConfig())
    size = table.export_rows(tmp_path / "rows.parquet", order=order, memory_bytes=memory_bytes)
    rows = pq.read_table(tmp_path / "rows.parquet", schema=sample_schema(SCHEMA))
    assert size == (tmp_path / "rows.parquet").stat().st_size
    assert multiset(rows.to_batches(), SCHEMA) == multiset([batch], SCHEMA)
    if order == "time":
        assert rows.column("time").to_pylist() == sorted(batch.column("time").to_pylist())
    else:
        assert len({k for k in rows.column("user").to_pylist()}) == 25
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.parquet", "table"]


def test_columns_are_projected(tmp_path):
    """Asked for two columns, `iter_samples` yields these two in the schema's order."""
    table = build(tmp_path / "table")
    batch = next(table.iter_samples(["likes", "time"]))
    assert batch.schema.names == ["time", "likes"]
    both = next(table.iter_samples(["history", "history_weights"]))
    assert next(table.iter_samples(["history_weights"])).column(0).equals(both.column(1))


def made_older(folder):
    """Give the table in `folder` the manifest of an older format version."""
    manifest = json.loads((folder / "manifest.json").read_text()) | {"format_version": 1}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_table_of_an_older_format_is_refused_and_may_be_overwritten(tmp_path):
    """Reading, appending and resuming say what to do; `overwrite` does it, under a later generation."""
    batch = make_log()
    build(tmp_path / "table", batch)
    made_older(tmp_path / "table")
    log = MemoryLog(batch, SCHEMA)
    for use in (
        lambda: open_table(tmp_path / "table"),
        lambda: append_table(log, tmp_path / "table", BuildConfig()),
        lambda: build_table(log, tmp_path / "table", BuildConfig(), resume=True),
    ):
        with pytest.raises(TableError, match=r"expected format version 2 .*, got 1: rebuild .* with --overwrite"):
            use()
    with pytest.raises(TableError, match="use --overwrite"):
        build_table(log, tmp_path / "table", BuildConfig())
    manifest = build_table(log, tmp_path / "table", BuildConfig(), overwrite=True)
    assert manifest.generation == 1
    assert verify_table(open_table(tmp_path / "table")) == []


def test_a_build_that_an_older_format_stopped_is_not_resumed(tmp_path, monkeypatch):
    """Finished parts of another format would stand beside ours under one manifest."""
    log = MemoryLog(make_log(3000), SCHEMA)
    config = BuildConfig(memory_bytes=1_000_000, writer=WriterConfig(row_group_bytes=4_000, part_bytes=6_000))

    def stop(task, done, total):
        if task == "write table" and done > total // 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("recoup.table.work.FORMAT_VERSION", 1)
    with pytest.raises(KeyboardInterrupt):
        build_table(log, tmp_path / "table", config, progress=stop)
    assert (tmp_path / "table" / ".build" / "parts.json").exists()
    monkeypatch.undo()
    with pytest.raises(TableError, match="expected a stopped build of the same log and settings"):
        build_table(log, tmp_path / "table", config, resume=True)
    build_table(log, tmp_path / "table", config)
    assert verify_table(open_table(tmp_path / "table")) == []


def test_mirrors_and_urls_of_an_older_format(tmp_path, monkeypatch):
    """A stale mirror does not hide a new table; `overwrite` replaces an old table under the URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = "memory://recoup-test/older"
    log = MemoryLog(make_log(), SCHEMA)
    with worked_on(url, no_progress) as local:
        build_table(log, local, BuildConfig())
    rows = pa.Table.from_batches(open_table(url).iter_rows())
    made_older(mirror_of(url))
    assert pa.Table.from_batches(open_table(url).iter_rows()).equals(rows)
    system, root = fsspec.core.url_to_fs(url)
    manifest = json.loads(system.cat_file(f"{root}/manifest.json")) | {"format_version": 1}
    system.pipe_file(f"{root}/manifest.json", json.dumps(manifest).encode())
    with pytest.raises(TableError, match="expected format version 2"):
        open_table(url)
    with worked_on(url, no_progress, replaces=True) as local:
        build_table(log, local, BuildConfig(), overwrite=True)
    assert open_table(url).manifest.generation == 1
    assert pa.Table.from_batches(open_table(url).iter_rows()).equals(rows)
