"""The builder against an oracle: sessions, repeats, lateness, order, sampling, buckets, spilling."""

import random
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError
from recoup.schema import Schema, SparseFeature
from recoup.table import BuildConfig, SessionRule, TableError, build_table, disk_needed, open_table
from recoup.table.verify import verify_table
from tests.strategies import samples, schemas
from tests.table.oracles import MemoryLog, batch_of, decode, multiset, on_time, sessions_of

SCHEMA = Schema(
    key="user",
    event_id="event",
    labels=("click",),
    sparse=(SparseFeature(name="f", group="g"), SparseFeature(name="i")),
)
MINUTE = 60_000

rules = st.builds(
    SessionRule,
    gap=st.sampled_from([None, timedelta(seconds=1), timedelta(minutes=30)]),
    max_session_samples=st.sampled_from([None, 1, 3]),
    max_session_age=st.sampled_from([None, timedelta(seconds=1), timedelta(hours=1)]),
    max_samples_per_row=st.sampled_from([1, 2, 4096]),
)


def build(batch, schema, path, **overrides):
    """Build a table of samples in memory."""
    return build_table(MemoryLog(batch, schema), path, BuildConfig(**overrides))


def log_of(times, user=1):
    """Return one user's samples at these minutes, in arrival order."""
    rows = [
        {"user": user, "time": t * MINUTE, "event": f"e{t}", "click": 0.0, "f": [1], "i": [t]} for t in map(int, times)
    ]
    return batch_of(rows, SCHEMA)


def minutes_of(path):
    """Return the minutes of every session, in table order."""
    return [[sample["time"] // MINUTE for sample in row[3]] for row in decode(path, SCHEMA)]


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_table_holds_the_logs_samples_in_the_oracles_sessions(data):
    """Laws 1 and 3: any arrival order, replays included, gives the oracle's sessions in order of start."""
    schema = data.draw(schemas(max_groups=2))
    batch = data.draw(samples(schema))
    rule = data.draw(rules)
    rows = batch.to_pylist()
    replayed = data.draw(st.integers(0, 5)) if schema.event_id else 0
    arrivals = data.draw(st.permutations(rows + rows[len(rows) - replayed :]))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        buckets = data.draw(st.sampled_from([1, 4, 7]))
        manifest = build(batch_of(arrivals, schema), schema, path, sessions=rule, num_buckets=buckets)
        expected = sessions_of(rows, schema, rule)
        assert manifest.counts.samples == len(rows)
        assert manifest.counts.repeated == len(arrivals) - len(rows)
        assert manifest.counts.sessions == len(expected)
        sessions = {}
        for key, start, _chunk, held in decode(path, schema):
            sessions.setdefault((key, start), []).extend(held)
        assert list(sessions) == [(s[0][schema.key], s[0][schema.time]) for s in expected]
        for found, session in zip(sessions.values(), expected, strict=True):
            assert multiset([batch_of(found, schema)], schema) == multiset([batch_of(session, schema)], schema)
            assert [sample[schema.time] for sample in found] == [sample[schema.time] for sample in session]
        table = open_table(path)
        assert multiset(table.iter_samples(), schema) == multiset([batch], schema)
        assert verify_table(table) == []


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_lateness_decides_by_arrival_and_nothing_is_glued_L02(data):
    """Law 3: samples within the lateness give the same table in any order; later ones are counted and left out."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    times = sorted(rng.sample(range(600), 25))
    lateness = data.draw(st.sampled_from([0, 5, 60]))
    arrivals = sorted(times, key=lambda t: t + rng.uniform(0, data.draw(st.sampled_from([0, lateness, 200]))))
    rule = SessionRule(gap=timedelta(minutes=30), lateness=timedelta(minutes=lateness))
    batch = log_of(arrivals)
    kept, late = on_time(batch.to_pylist(), SCHEMA, lateness * MINUTE)
    with TemporaryDirectory() as folder:
        manifest = build(batch, SCHEMA, Path(folder) / "table", sessions=rule)
        assert manifest.counts.late == len(late)
        expected = [[s["time"] // MINUTE for s in session] for session in sessions_of(kept, SCHEMA, rule)]
        assert minutes_of(Path(folder) / "table") == expected


def test_a_late_event_is_never_glued_to_the_next_session_L02(tmp_path):
    """10:00, 10:20, 11:30, then 10:25: in its own session, or beyond the lateness counted and left out."""
    batch = log_of([600, 620, 690, 625])
    half_hour = timedelta(minutes=30)
    build(batch, SCHEMA, tmp_path / "in", sessions=SessionRule(gap=half_hour, lateness=timedelta(minutes=65)))
    assert minutes_of(tmp_path / "in") == [[600, 620, 625], [690]]
    strict = SessionRule(gap=half_hour, lateness=timedelta(minutes=64))
    manifest = build(batch, SCHEMA, tmp_path / "out", sessions=strict)
    assert minutes_of(tmp_path / "out") == [[600, 620], [690]]
    assert manifest.counts.late == 1


def test_a_replayed_tail_changes_nothing_but_the_count_L06(tmp_path):
    """Repeats of an event id are removed and counted; equal content under another id stays."""
    batch = log_of(range(0, 300, 10))
    twin = batch_of([{**batch.to_pylist()[-1], "event": "another"}], SCHEMA)
    log = pa.Table.from_batches([batch, twin]).combine_chunks().to_batches()[0]
    replayed = pa.Table.from_batches([log, log.slice(log.num_rows - 20)]).combine_chunks().to_batches()[0]
    first = build(log, SCHEMA, tmp_path / "a")
    second = build(replayed, SCHEMA, tmp_path / "b")
    assert (first.counts.repeated, second.counts.repeated) == (0, 20)
    assert first.counts.samples == second.counts.samples == batch.num_rows + 1
    assert first.parts[0].checksum == second.parts[0].checksum


def many(num_samples=4000, num_users=70, seed=0):
    """Return a log big enough to spill under the smallest memory."""
    rng = random.Random(seed)
    rows, state = [], {}
    for i in range(num_samples):
        user = rng.randrange(num_users)
        if user not in state or rng.random() < 0.2:
            state[user] = [rng.randrange(2**40) for _ in range(60)]
        row = {"user": user, "time": i * 7_000, "event": f"e{i}", "click": float(i % 2), "f": state[user], "i": [i]}
        rows.append(row)
    rng.shuffle(rows)
    return batch_of(rows, SCHEMA)


def test_neither_buckets_nor_memory_nor_disk_show_in_the_table_L05(tmp_path):
    """In memory, spilled to 4 and 7 buckets, and with buckets too large for memory: one and the same table."""
    batch = many()
    rule = SessionRule(gap=timedelta(minutes=9))
    forms = {
        "memory": {"num_buckets": 5},
        "four": {"num_buckets": 4, "memory_bytes": 1_000_000},
        "seven": {"num_buckets": 7, "memory_bytes": 1_000_000},
        "one": {"num_buckets": 1, "memory_bytes": 1_000_000},
    }
    for name, overrides in forms.items():
        build(batch, SCHEMA, tmp_path / name, sessions=rule, **overrides)
        assert verify_table(open_table(tmp_path / name)) == []
        assert not (tmp_path / name / ".build").exists()
    tables = [pa.Table.from_batches(open_table(tmp_path / name).iter_rows()) for name in forms]
    assert all(table.equals(tables[0]) for table in tables[1:])
    assert multiset(open_table(tmp_path / "four").iter_samples(), SCHEMA) == multiset([batch], SCHEMA)


def test_sampling_keeps_or_drops_whole_sessions(tmp_path):
    """A sample of sessions is a subset of them, chunks together; the same whatever the buckets."""
    batch, rule = many(), SessionRule(gap=timedelta(minutes=9), max_samples_per_row=3)
    build(batch, SCHEMA, tmp_path / "all", sessions=rule)
    manifest = build(batch, SCHEMA, tmp_path / "some", sessions=rule, sample_sessions=0.3)
    build(batch, SCHEMA, tmp_path / "again", sessions=rule, sample_sessions=0.3, num_buckets=3)
    every, some = ({(row[0], row[1], row[2]) for row in decode(tmp_path / name, SCHEMA)} for name in ("all", "some"))
    kept = {row[:2] for row in some}
    assert some == {row for row in every if row[:2] in kept}
    assert 0.2 < len(kept) / len({row[:2] for row in every}) < 0.4
    assert manifest.counts.samples + manifest.counts.sampled_out == batch.num_rows
    assert decode(tmp_path / "again", SCHEMA) == decode(tmp_path / "some", SCHEMA)


def test_an_empty_log_gives_an_empty_table_F09(tmp_path):
    """No samples: one part of no rows, readable."""
    manifest = build(log_of([]), SCHEMA, tmp_path / "table")
    assert manifest.counts.samples == 0
    assert (
        list(open_table(tmp_path / "table").iter_samples()) == []
        or multiset(open_table(tmp_path / "table").iter_samples(), SCHEMA) == []
    )
    assert verify_table(open_table(tmp_path / "table")) == []


def test_a_table_that_is_there_is_neither_replaced_nor_resumed_silently_U05(tmp_path):
    """The second build names both options; --overwrite replaces, --resume keeps."""
    build(log_of([1]), SCHEMA, tmp_path / "table")
    log = MemoryLog(log_of([1, 2]), SCHEMA)
    with pytest.raises(TableError, match=r"use --overwrite to replace it or --resume to keep it"):
        build_table(log, tmp_path / "table", BuildConfig())
    assert build_table(log, tmp_path / "table", BuildConfig(), resume=True).counts.samples == 1
    manifest = build_table(log, tmp_path / "table", BuildConfig(), overwrite=True)
    assert (manifest.generation, manifest.counts.samples) == (1, 2)
    assert [file.name for file in (tmp_path / "table" / "parts").iterdir()] == [manifest.parts[0].name]


def test_the_disk_of_a_build_is_stated_beforehand():
    """The statement is the log's uncompressed size: exact for a small log, extrapolated upwards for a long one."""
    batch = many(num_samples=500)
    assert disk_needed(MemoryLog(batch, SCHEMA, batch_samples=500)) == batch.nbytes
    rows = pa.Table.from_batches([batch] * 80).combine_chunks().to_batches()[0]
    assert rows.nbytes <= disk_needed(MemoryLog(rows, SCHEMA, batch_samples=1000)) <= 1.15 * rows.nbytes


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sample_sessions": 0.0}, r"sample_sessions: expected a share in \(0, 1\], got 0.0"),
        ({"memory_bytes": 10}, "memory_bytes: expected at least 1 MB, got 10"),
        ({"num_buckets": 0}, "num_buckets: expected at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(overrides, message):
    """Each bound names the setting and the value."""
    with pytest.raises(ConfigError, match=message):
        BuildConfig(**overrides)


def test_bounds_of_sessions_are_positive():
    """A gap of nothing is refused."""
    with pytest.raises(ConfigError, match="gap: expected a positive bound"):
        SessionRule(gap=timedelta(0))
    with pytest.raises(ConfigError, match="max_row_bytes: expected a positive bound, got 0"):
        SessionRule(max_row_bytes=0)
