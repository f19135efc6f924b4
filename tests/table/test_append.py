"""Appended days, partitions by time, merged parts: the table's samples and sessions, at every moment a whole table."""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recoup.log import ParquetLog, open_log
from recoup.table import (
    BuildConfig,
    HistoryFeature,
    HistoryMean,
    SessionRule,
    TableError,
    WriterConfig,
    append_table,
    build_table,
    compact_table,
    open_table,
    with_histories,
)
from recoup.table.verify import verify_table
from tests.strategies import samples, schemas
from tests.table.oracles import DAY_MS, MemoryLog, batch_of, decode, history_of, multiset, sessions_of
from tests.table.test_build import SCHEMA, log_of, many, minutes_of, rules
from tests.table.test_histories import mean_of

PLAIN = BuildConfig()


def days(num_days=4, per_day=60):
    """Return samples of some days, in order of time: one batch a day, event ids distinct."""
    batch = many(num_samples=num_days * per_day, seed=3)
    rows = sorted(batch.to_pylist(), key=lambda row: row["time"])
    for number, row in enumerate(rows):
        row["time"] = 1_700_006_400_000 + number // per_day * DAY_MS + number % per_day * 60_000
    return [batch_of(rows[day * per_day : (day + 1) * per_day], SCHEMA) for day in range(num_days)]


def rows_of(path):
    """Return the rows that the manifest names, in order."""
    return [row for rows in open_table(path).iter_rows() for row in rows.to_pylist()]


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_append_adds_the_later_samples_in_sessions_of_their_own(data):
    """The longer table holds both logs' samples; its sessions are the first log's and the second's."""
    schema = data.draw(schemas(max_groups=2))
    batch = data.draw(samples(schema))
    rule = data.draw(rules)
    at = data.draw(st.integers(0, batch.num_rows))
    first, second = batch.slice(0, at), batch.slice(at)
    with TemporaryDirectory() as folder:
        path, config = Path(folder), BuildConfig(sessions=rule, num_buckets=3)
        build_table(MemoryLog(first, schema), path, config)
        before = decode(path, schema)
        manifest = append_table(MemoryLog(second, schema), path, config)
        rows = decode(path, schema)
        assert rows[: len(before)] == before  # what was there is as it was
        expected = [s for part in (first, second) for s in sessions_of(part.to_pylist(), schema, rule)]
        assert manifest.counts.sessions == len(expected)
        assert manifest.counts.samples == batch.num_rows
        assert (manifest.counts.late, manifest.counts.repeated) == (0, 0)
        assert multiset(open_table(path).iter_samples(), schema) == multiset([batch], schema)
        assert verify_table(open_table(path)) == []


@pytest.mark.parametrize("num_again", [1, 5, 10])
def test_repeats_and_late_samples_are_counted_and_left_out_L02_L06(tmp_path, num_again):
    """A replayed tail counts as repeated; other samples before the border as late; neither is in the table twice."""
    build_table(MemoryLog(log_of(range(0, 100, 10)), SCHEMA), tmp_path, PLAIN)
    again = log_of(range(100 - 10 * num_again, 100, 10))
    late, later = log_of([15, 35]), log_of([120, 130])
    log = pa.concat_batches([again, late, later])
    manifest = append_table(MemoryLog(log, SCHEMA), tmp_path, PLAIN)
    assert (manifest.counts.repeated, manifest.counts.late) == (num_again, 2)
    assert minutes_of(tmp_path) == [list(range(0, 100, 10)), [120, 130]]
    same = append_table(MemoryLog(later, SCHEMA), tmp_path, PLAIN)
    assert same.counts.repeated == num_again + 2
    assert minutes_of(tmp_path) == [list(range(0, 100, 10)), [120, 130]]


@pytest.mark.parametrize("freeze", ["session", "day", "rolling"])
def test_histories_of_an_appended_day_know_the_days_before_and_no_future(tmp_path, freeze):
    """Every sample's history and mean equal the oracle's over both logs; a sample never sees what comes after it."""
    histories = (HistoryFeature(name="seen", source="i", last=6, freeze=freeze),)
    means = (HistoryMean(name="ctr", label="click", prior=0.25, strength=2.0, freeze=freeze),)
    rule = SessionRule(gap=timedelta(minutes=5))
    config = BuildConfig(sessions=rule, histories=histories, means=means, num_buckets=2)
    logs = days(3)
    build_table(MemoryLog(logs[0], SCHEMA), tmp_path, config)
    for log in logs[1:]:
        append_table(MemoryLog(log, SCHEMA), tmp_path, config)
    everything = [row for log in logs for row in log.to_pylist()]
    expected, clicked = {}, {}
    for log in logs:
        for session in sessions_of(log.to_pylist(), SCHEMA, rule):
            for sample in session:
                of_key = [row for row in everything if row["user"] == sample["user"]]
                of_key.sort(key=lambda row: (row["time"], row["event"]))
                expected[sample["event"]] = history_of(sample, session, of_key, histories[0], SCHEMA)
                clicked[sample["event"]] = mean_of(sample, session, of_key, freeze)
    extended = with_histories(SCHEMA, histories, means)
    found = {row["event"]: row for batch in open_table(tmp_path).iter_samples() for row in batch.to_pylist()}
    assert {event: row["seen"] for event, row in found.items()} == expected
    assert {event: row["ctr"] for event, row in found.items()} == pytest.approx(clicked, rel=1e-6)
    assert any(expected[row["event"]] for row in logs[2].to_pylist()), "the test shows nothing without histories"
    assert open_table(tmp_path).schema == extended
    assert verify_table(open_table(tmp_path)) == []


@pytest.mark.parametrize("freeze", ["session", "day", "rolling"])
def test_no_sample_of_an_appended_day_sees_the_future(tmp_path, freeze):
    """No leak: other items and labels from a moment of the appended day on change no sample until that moment."""
    made = HistoryFeature(name="seen", source="i", last=9, freeze=freeze)
    mean = HistoryMean(name="ctr", label="click", freeze=freeze)
    config = BuildConfig(
        sessions=SessionRule(gap=timedelta(minutes=5)), histories=(made,), means=(mean,), num_buckets=2
    )
    first, second = days(2, per_day=150)
    rows = second.to_pylist()
    moment = rows[70]["time"]
    other = [r | {"i": [-1], "click": 1.0 - r["click"]} if r["time"] >= moment else r for r in rows]
    seen = []
    for number, log in enumerate((rows, other)):
        build_table(MemoryLog(first, SCHEMA), tmp_path / str(number), config)
        append_table(MemoryLog(batch_of(log, SCHEMA), SCHEMA), tmp_path / str(number), config)
        found = [row for batch in open_table(tmp_path / str(number)).iter_samples() for row in batch.to_pylist()]
        seen.append({row["event"]: (row["seen"], row["ctr"]) for row in found if row["time"] <= moment})
    assert len(seen[0]) == 150 + 71
    assert seen[0] == seen[1]


def test_a_past_that_was_sampled_out_is_refused(tmp_path):
    """Histories of whole sessions that are not in the table cannot go on: one error, the table stays."""
    made = (HistoryFeature(name="seen", source="i", last=6),)
    first, second = days(2)
    config = BuildConfig(sample_sessions=0.5, histories=made)
    manifest = build_table(MemoryLog(first, SCHEMA), tmp_path / "made", config)
    assert manifest.counts.sampled_out > 0
    with pytest.raises(TableError, match=r"were sampled out .*: build it again from both logs"):
        append_table(MemoryLog(second, SCHEMA), tmp_path / "made", config)
    assert open_table(tmp_path / "made").manifest == manifest
    plain = BuildConfig(sample_sessions=0.5)
    build_table(MemoryLog(first, SCHEMA), tmp_path / "plain", plain)
    counts = append_table(MemoryLog(second, SCHEMA), tmp_path / "plain", plain).counts
    assert counts.samples + counts.sampled_out == first.num_rows + second.num_rows


def test_another_schema_or_rule_is_refused_and_the_table_stays(tmp_path):
    """Appending by other rules is one error that says both; nothing changes."""
    build_table(MemoryLog(days(1)[0], SCHEMA), tmp_path, PLAIN)
    before = (tmp_path / "manifest.json").read_bytes()
    other = BuildConfig(sessions=SessionRule(gap=timedelta(hours=1)))
    with pytest.raises(TableError, match="expected the sessions that the table was built with"):
        append_table(MemoryLog(days(2)[1], SCHEMA), tmp_path, other)
    with pytest.raises(TableError, match="expected a session table"):
        append_table(MemoryLog(days(2)[1], SCHEMA), tmp_path / "none", PLAIN)
    assert (tmp_path / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("by", ["day", "hour"])
def test_partitions_are_folders_that_engines_read_and_readers_may_leave_out(tmp_path, by):
    """Parts of a partition hold its sessions alone; DuckDB reads the folders as a column."""
    config = BuildConfig(sessions=SessionRule(gap=timedelta(minutes=5)), writer=WriterConfig(partition_by=by))
    logs = days(3)
    build_table(MemoryLog(pa.concat_batches(logs[:2]), SCHEMA), tmp_path, config)
    manifest = append_table(MemoryLog(logs[2], SCHEMA), tmp_path, config)
    width = DAY_MS if by == "day" else DAY_MS // 24
    assert len(manifest.parts) >= 3
    for part in manifest.parts:
        assert part.name.startswith(f"{by}=2023-11-1")
        assert part.first_start // width == part.last_start // width
    assert verify_table(open_table(tmp_path)) == []
    found = duckdb.sql(
        f"select {by}, sum(num_samples) from read_parquet('{tmp_path}/parts/*/*.parquet', hive_partitioning = true) "
        f"group by 1 order by 1"
    ).fetchall()
    assert len(found) == len({part.name.partition("/")[0] for part in manifest.parts})
    assert sum(count for _, count in found) == sum(log.num_rows for log in logs)
    second = 1_700_006_400_000 + DAY_MS
    of_day = open_table(tmp_path).parts_between(second, second + DAY_MS - 1)
    for part in set(manifest.parts) - set(of_day):
        (tmp_path / "parts" / part.name).unlink()  # what is out of the range is not opened
    minutes = [row["time"] for rows in open_table(tmp_path).iter_rows(parts=of_day) for row in rows.to_pylist()]
    assert sorted(time for session in minutes for time in session) == logs[1].column("time").to_pylist()


@pytest.mark.parametrize("by", ["none", "day"])
def test_compaction_merges_small_parts_and_changes_no_row(tmp_path, by):
    """After it: the same rows in the same order, fewer parts, no strays; once more changes nothing."""
    config = BuildConfig(writer=WriterConfig(partition_by=by, part_bytes=20_000, row_group_bytes=4_000))
    logs = days(4)
    build_table(MemoryLog(logs[0], SCHEMA), tmp_path, config)
    for log in logs[1:]:
        append_table(MemoryLog(log, SCHEMA), tmp_path, config)
    before, many_parts = rows_of(tmp_path), len(open_table(tmp_path).manifest.parts)
    assert len(before) > 10
    assert many_parts >= 4
    manifest = compact_table(tmp_path, WriterConfig())
    assert len(manifest.parts) == (1 if by == "none" else 4)
    assert rows_of(tmp_path) == before
    assert verify_table(open_table(tmp_path)) == []
    assert compact_table(tmp_path, WriterConfig()) == manifest


def test_a_stopped_append_leaves_the_older_table_and_goes_on(tmp_path, monkeypatch):
    """Stopped before the commit: the older table; resumed: the longer one, with no finished run made again."""
    small = BuildConfig(
        num_buckets=4, memory_bytes=1_000_000, writer=WriterConfig(row_group_bytes=40_000, part_bytes=60_000)
    )
    rows = [row | {"time": row["time"] % DAY_MS} for row in many(num_samples=1500, seed=1).to_pylist()]
    later = [row | {"time": row["time"] + 2 * DAY_MS, "event": "x" + row["event"]} for row in rows]
    logs = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    for path, part in zip(logs, (rows, later), strict=True):
        pq.write_table(pa.Table.from_batches([batch_of(part, SCHEMA)]), path)
    first, second = (open_log(ParquetLog(path=str(path), schema=SCHEMA)) for path in logs)
    build_table(first, tmp_path / "table", small)
    before = rows_of(tmp_path / "table")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("recoup.table.append.write_manifest", stop)
        with pytest.raises(KeyboardInterrupt):
            append_table(second, tmp_path / "table", small)
    assert rows_of(tmp_path / "table") == before
    with pytest.raises(TableError, match="expected a stopped build of the same log and settings"):
        build_table(second, tmp_path / "table", small, resume=True)  # not --append: the table would be replaced
    with monkeypatch.context() as patch:
        patch.setattr("recoup.table.work.encode_bucket", stop)  # nothing is encoded again
        manifest = append_table(second, tmp_path / "table", small, resume=True)
    assert manifest.counts.samples == 3000
    assert verify_table(open_table(tmp_path / "table")) == []
    found = multiset(open_table(tmp_path / "table").iter_samples(), SCHEMA)
    assert found == multiset([batch_of(rows + later, SCHEMA)], SCHEMA)
