"""Batches hold the table's samples: whatever the batch size, order, guard, groups and features asked for."""

import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError, from_table, to_table, to_toml
from recoup.reader import ReaderConfig, ReaderError, SampleRange, SessionReader
from tests.reader.tables import SCHEMA, by_time, plain_samples, random_sessions, samples_of, write_table

DAY = datetime(2026, 1, 2, tzinfo=UTC)


def read(table, *, rank=0, world_size=1, **options):
    options = {"batch_size": 7, **options}
    return list(SessionReader(table, ReaderConfig(**options), rank=rank, world_size=world_size))


def flat(batches):
    return [sample for batch in batches for sample in samples_of(batch)]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 12),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([0, 3]),
    st.integers(1, 5),
)
def test_chronological_batches_are_the_samples_in_order(
    tmp_path_factory, seed, num_sessions, batch_size, dedup, max_row, rows_per_group
):
    """Every batch but the last has exactly B samples, and the samples come in table order, deduplicated or plain."""
    sessions = random_sessions(seed, num_sessions)
    folder = tmp_path_factory.mktemp("t") / "table"
    table = write_table(folder, sessions, max_samples_per_row=max_row, rows_per_group=rows_per_group)
    batches = read(table, batch_size=batch_size, dedup=dedup)
    assert flat(batches) == plain_samples(sessions)
    assert all(batch.num_samples == batch_size for batch in batches[:-1])
    sessions_seen = Counter()
    for batch in batches:
        numbers = batch.session.numpy()
        assert (np.diff(numbers) >= 0).all()
        assert (np.diff(numbers) <= 1).all()
        sessions_seen[batch.num_sessions] += 1
        assert batch.num_sessions == len({time // 1000 for time in batch.time.tolist()})


@pytest.mark.parametrize("shuffle", ["window", "full"])
@pytest.mark.parametrize("max_row", [0, 3])
def test_shuffles_keep_sessions_whole(tmp_path, shuffle, max_row):
    """A shuffled epoch has every sample once, each session's samples together and in order; epochs differ."""
    sessions = random_sessions(1, 30)
    table = write_table(tmp_path / "t", sessions, max_samples_per_row=max_row)
    reader = SessionReader(table, ReaderConfig(batch_size=7, shuffle=shuffle, window_sessions=12, seed=3))
    first, second = flat(reader), flat(reader)
    again = flat(SessionReader(table, ReaderConfig(batch_size=7, shuffle=shuffle, window_sessions=12, seed=3)))
    assert first == again
    assert first != second
    for epoch in (first, second):
        assert by_time(epoch) == plain_samples(sessions)
        assert epoch != plain_samples(sessions)
        if not max_row:
            runs = [s["time"] // 1000 for s in epoch]
            assert len([1 for a, b in pairwise(runs) if a != b]) == len(sessions) - 1


def test_unique_rows_are_versions(tmp_path):
    """A whole session has its distinct versions as unique rows; a shifted history shares its buffer."""
    sessions = random_sessions(2, 10)
    (batch,) = read(write_table(tmp_path / "t", sessions), batch_size=10**6)
    for group, features in (("user", ("u0", "u1")), ("history", ("hist", "liked"))):
        versions = sum(
            len({tuple((s["sparse"][f], s["weights"].get(f)) for f in features) for s in session})
            for session in sessions
        )
        assert batch.sparse.num_rows(group) == versions
    hist = batch.sparse.rows["hist"]
    assert hist.values.shape[0] < int(hist.length.sum())


def test_no_id_is_carried_that_no_row_uses(tmp_path):
    """Cut sessions and truncation leave no unused ID in a buffer (it would be looked up and counted as touched)."""
    table = write_table(tmp_path / "t", random_sessions(3, 10))
    for batch in read(
        table, batch_size=5, transforms=from_transforms([{"kind": "truncate", "features": ["hist"], "last": 2}])
    ):
        for rows in batch.sparse.rows.values():
            used = {i for s, n in zip(rows.start.tolist(), rows.length.tolist(), strict=True) for i in range(s, s + n)}
            assert used == set(range(rows.values.shape[0]))


def from_transforms(tables):
    return from_table(ReaderConfig, {"batch_size": 1, "transforms": tables}).transforms


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(["chronological", "full"]))
def test_iid_guard_bounds_samples_of_a_session(tmp_path_factory, seed, bound, shuffle):
    """Where a window has sessions enough no batch has more samples of one session than asked; none is lost."""
    sessions = [s[:8] for s in random_sessions(seed, 120, mean_length=4)]
    table = write_table(tmp_path_factory.mktemp("t") / "t", sessions, rows_per_group=50, max_samples_per_row=5)
    options = {"max_samples_per_session_per_batch": bound, "window_sessions": 10**6, "shuffle": shuffle}
    reader = SessionReader(table, ReaderConfig(batch_size=16, **options))
    batches = list(reader)
    assert by_time(flat(batches)) == plain_samples(sessions)
    assert reader.report.max_samples_of_a_session <= bound
    most = max(Counter(t // 1000 for t in batch.time.tolist()).most_common(1)[0][1] for batch in batches)
    assert most == reader.report.max_samples_of_a_session


def test_iid_guard_yields_where_sessions_are_too_few(tmp_path):
    """One session alone cannot be spread: its samples come all the same, and the report shows the excess."""
    sessions = random_sessions(0, 1, mean_length=30)
    reader = SessionReader(
        write_table(tmp_path / "t", sessions),
        ReaderConfig(batch_size=100, max_samples_per_session_per_batch=2),
    )
    assert flat(reader) == plain_samples(sessions)
    assert reader.report.max_samples_of_a_session == len(sessions[0])
    assert reader.report.sessions_per_batch == 1


def test_projection_reads_only_what_is_asked(tmp_path):
    """Features that are not asked for are neither in the batch nor read: their columns may be gone from the files."""
    sessions = random_sessions(4, 8)
    gone = ["u0__codes", "price__codes", "history__inverse", "d1"]
    table = write_table(tmp_path / "t", sessions, drop=gone)
    batches = read(table, features=("u1", "item"), dense=("d0",))
    expected = plain_samples(sessions)
    for found, sample in zip(flat(batches), expected, strict=True):
        assert found["sparse"] == {name: sample["sparse"][name] for name in ("u1", "item")}
        assert found["dense"] == sample["dense"][:1]
    assert [(g.name, g.features) for g in batches[0].sparse.groups] == [("user", ("u1",)), ("", ("item",))]


@pytest.mark.parametrize("dedup", [True, False])
def test_absent_feature_follows_its_policy_J13(tmp_path, dedup):
    """A feature without a column is an error that names it, or empty lists where the schema says so."""
    sessions = random_sessions(5, 8)
    drop = [f"u1__{part}" for part in ("codes", "hot", "start", "length")]
    batches = read(write_table(tmp_path / "empty", sessions, drop=[*drop, "d1"]), dedup=dedup)
    for found, sample in zip(flat(batches), plain_samples(sessions), strict=True):
        assert found["sparse"] == {**sample["sparse"], "u1": ()}
        assert found["dense"] == (sample["dense"][0], 0.0)
    table = write_table(tmp_path / "error", sessions, drop=["hist__codes"])
    with pytest.raises(ReaderError, match=r"column 'hist__codes' of feature 'hist' in .*part-00000"):
        read(table, dedup=dedup)


def test_feature_outside_the_schema_J13(tmp_path):
    """A feature that the table never had is refused by name, or read as empty lists when the reader is told to."""
    sessions = random_sessions(5, 4)
    table = write_table(tmp_path / "t", sessions)
    with pytest.raises(ReaderError, match="expected feature 'f2' in the table"):
        read(table, features=("item", "f2"))
    batches = read(table, features=("item", "f2"), missing="empty")
    assert [s["sparse"]["f2"] for s in flat(batches)] == [()] * len(plain_samples(sessions))
    assert batches[0].sparse.rows["f2"].values.dtype == torch.int64


@pytest.mark.parametrize("dedup", [True, False])
@pytest.mark.parametrize("bad", [-1, 10, 11, 2**31, 2**62])
def test_id_outside_its_table_J09(tmp_path, dedup, bad):
    """An ID outside the table is one error with feature, row, ID and size; the same text with dedup on and off."""
    sessions = random_sessions(6, 6)
    for session in sessions:
        for sample in session:
            sample["sparse"] = {**sample["sparse"], "u0": (1, 2)}
    sessions[4][1:] = [{**s, "sparse": {**s["sparse"], "u0": (3, bad)}} for s in sessions[4][1:]] or [
        {**sessions[4][0], "sparse": {**sessions[4][0]["sparse"], "u0": (bad,)}}
    ]
    table = write_table(tmp_path / "t", sessions)
    where = r".*part-00000.parquet, row group 1, row 0, sample 1"
    text = rf"expected IDs 0 .. 9 of feature 'u0' \(num_embeddings 10\), got {bad} \({where}\)"
    with pytest.raises(ReaderError, match=text):
        read(table, dedup=dedup, num_embeddings={"u0": 10})
    with pytest.raises(ReaderError, match="num_embeddings: expected a sparse feature"):
        read(table, num_embeddings={"nope": 10})


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(0, 1), min_size=1, max_size=3), st.sampled_from([0, 2]))
def test_time_split_shares_no_session(tmp_path_factory, seed, cuts, max_row):
    """Ranges that touch hold every sample once, and no session is in two of them."""
    sessions = random_sessions(seed, 15)
    table = write_table(tmp_path_factory.mktemp("t") / "t", sessions, max_samples_per_row=max_row)
    bounds = [0.0, *sorted(cuts), 1.0]
    parts = [flat(read(table, samples=SampleRange(from_fraction=a, to_fraction=b))) for a, b in pairwise(bounds)]
    assert [s for part in parts for s in part] == plain_samples(sessions)
    keys = [{s["time"] // 1000 for s in part} for part in parts]
    assert sum(len(k) for k in keys) == len(sessions)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(-1500, 16500), min_size=1, max_size=3), st.sampled_from([0, 2]))
def test_ranges_between_moments_hold_the_sessions_that_begin_there(tmp_path_factory, seed, cuts, max_row):
    """Every range holds exactly the sessions that begin in it, whole; one without sessions is an error."""
    sessions = random_sessions(seed, 15)
    table = write_table(tmp_path_factory.mktemp("t") / "t", sessions, max_samples_per_row=max_row)
    bounds = [None, *sorted(set(cuts)), None]
    for first, end in pairwise(bounds):
        samples = SampleRange(from_time=moment(first), to_time=moment(end))
        chosen = [
            session
            for session in sessions
            if (first is None or session[0]["time"] >= first) and (end is None or session[0]["time"] < end)
        ]
        if chosen:
            assert flat(read(table, samples=samples)) == plain_samples(chosen)
        else:
            with pytest.raises(ReaderError, match=r"expected sessions that begin from .*, got none .the table's begin"):
                read(table, samples=samples)


def moment(milliseconds):
    return (
        None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, tz=timezone(timedelta(hours=2)))
    )


def test_a_range_between_moments_is_written_in_toml():
    """Moments are TOML's own, with a time zone; fractions beside them, or none before the other, are refused."""
    text = "batch_size = 4\nsamples = { from_time = 2026-12-01T00:00:00Z, to_time = 2026-12-02T00:00:00+01:00 }"
    config = from_table(ReaderConfig, tomllib.loads(text))
    assert config.samples.to_time - config.samples.from_time == timedelta(hours=23)
    assert from_table(ReaderConfig, tomllib.loads(to_toml(config))) == config


def test_row_groups_without_rows_F09(tmp_path):
    """A table without samples, and an empty row group in the middle, are read as what they are."""
    sessions = random_sessions(7, 10)
    assert flat(read(write_table(tmp_path / "gap", sessions, rows_per_group=5, empty_at=1))) == plain_samples(sessions)
    reader = SessionReader(write_table(tmp_path / "none", []), ReaderConfig(batch_size=4))
    assert (list(reader), reader.epoch, reader.steps_left) == ([], 1, 0)


def test_batches_without_samples_have_the_dtypes_of_others_J03(tmp_path):
    """An empty batch has the same keys, groups, dtypes and dimensions as a full one, derived features included."""
    table = write_table(tmp_path / "t", random_sessions(8, 1, mean_length=1)[:1])
    transforms = from_transforms(
        [
            {"kind": "bucketise", "feature": "d0", "boundaries": [0.0], "output": "d0_bucket"},
            {"kind": "cross", "first": "u0", "second": "u1", "size": 9, "output": "u01"},
        ]
    )
    for dedup in (True, False):
        full, empty = (read(table, rank=rank, world_size=2, transforms=transforms, dedup=dedup)[0] for rank in range(2))
        assert (full.num_samples, empty.num_samples, empty.num_sessions) == (1, 0, 0)
        assert full.sparse.groups == empty.sparse.groups
        assert form(full) == form(empty)


def form(batch):
    tensors = {"dense": batch.dense, "labels": batch.labels, "time": batch.time, "session": batch.session}
    for name, rows in batch.sparse.rows.items():
        tensors |= {f"{name}.values": rows.values, f"{name}.start": rows.start, f"{name}.length": rows.length}
        tensors |= {} if rows.weights is None else {f"{name}.weights": rows.weights}
    tensors |= batch.sparse.inverse
    return {name: (t.dtype, t.ndim, t.shape[1:]) for name, t in tensors.items()}


@pytest.mark.parametrize("sixteenths", [0, 1, 5, 10, 15])
def test_truncated_part_is_named_F08(tmp_path, sixteenths):
    """A part cut short is one error that names the file."""
    table = write_table(tmp_path / "t", random_sessions(9, 20), groups_per_part=100)
    path = tmp_path / "t" / "parts" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * sixteenths // 16])
    with pytest.raises(ReaderError, match=r"expected a readable table part at .*part-00000.parquet"):
        read(table)


def test_flipped_bit_is_noticed_F08(tmp_path):
    """Damage inside a page fails its checksum, or contradicts the other columns; it never becomes training data."""
    sessions = random_sessions(9, 40)
    expected = plain_samples(sessions)
    rng = np.random.default_rng(0)
    noticed = 0
    for trial in range(25):
        table = write_table(tmp_path / f"{trial}", sessions, rows_per_group=100)
        path = tmp_path / f"{trial}" / "parts" / "part-00000.parquet"
        data = bytearray(path.read_bytes())
        data[int(rng.integers(4, len(data) - 8))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            assert flat(read(table)) == expected
        except ReaderError:
            noticed += 1
    assert noticed > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"batch_size": 0}, "batch_size >= 1, got 0"),
        ({"window_sessions": 0}, "window_sessions >= 1, got 0"),
        ({"prefetch": 0}, "prefetch >= 1"),
        ({"max_samples_per_session_per_batch": -1}, "got -1"),
        ({"samples": {"from_fraction": 0.5, "to_fraction": 0.2}}, "from_fraction 0.5 and to_fraction 0.2"),
        ({"samples": {"from_time": datetime(2026, 1, 2)}}, "from_time: expected a time zone"),
        ({"samples": {"from_time": DAY, "to_time": DAY}}, "expected from_time < to_time, got from_time 2026-01-02"),
        ({"samples": {"from_time": DAY, "to_fraction": 0.5}}, "expected fractions or times, got both"),
        ({"shuffle": "random"}, "got 'random'"),
        ({"worker_silence_limit": "1s"}, "worker_silence_limit >= 2s"),
        ({"typo": 1}, "unknown key 'typo'"),
    ],
)
def test_wrong_configuration_is_refused(overrides, message):
    """A value out of range, and a key that does not exist, are errors that show what came."""
    with pytest.raises(ConfigError, match=message):
        from_table(ReaderConfig, {"batch_size": 4, **overrides})


def test_configuration_goes_through_toml():
    """Everything a reader can be told survives the way to TOML and back."""
    config = ReaderConfig(batch_size=4, samples=SampleRange(to_fraction=0.8), features=("a",), num_embeddings={"a": 3})
    assert from_table(ReaderConfig, to_table(config)) == config
    with pytest.raises(ReaderError, match="got rank 2 and world_size 2"):
        SessionReader(None, config, rank=2, world_size=2)


def test_column_names_are_the_tables():
    """The reader spells the layout's names itself (a worker would import half a second more); both agree."""
    from recoup.table.layout import part_schema, row_schema
    from tests.reader.tables import arrow_schema

    assert set(arrow_schema(SCHEMA).names) == set(part_schema(row_schema(SCHEMA)).names)
