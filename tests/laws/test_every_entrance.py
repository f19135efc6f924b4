"""One rule for a kind of bad or odd input at every entrance: Parquet, CSV, JSON lines, Kafka.

A file is refused whole, in one line that names it; a message is set aside alone, with its offset and the same reason.
"""

import itertools
import json
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.log import ColumnMapping, CsvLog, JsonLinesLog, LandedLog, LogError, ParquetLog, open_log
from recoup.log.kafka import LandConfig, decode_messages, land
from recoup.log.kafka.messages import Message
from recoup.schema import DenseFeature, Schema, SparseFeature
from recoup.table import BuildConfig, SessionRule, build_table
from tests.laws.test_entrances import expected_sessions, sessions_of
from tests.log.kafka_broker import Broker

BIG = 1577134800018226901
BARS = ColumnMapping(list_separator="|")
ENTRANCES = ("parquet", "csv", "jsonl", "kafka")


def schema(null_ids="refuse"):
    return Schema(
        key="user",
        event_id="event",
        labels=("click",),
        dense=(DenseFeature(name="age"),),
        sparse=(SparseFeature(name="items", null_ids=null_ids), SparseFeature(name="city", missing="empty")),
    )


def sample(i, **overrides):
    """Return one sample; a column set to ... is left out."""
    values = {"user": i % 3, "time": 1_700_000_000_000 + 1000 * i, "event": f"e{i}", "click": float(i % 2), "age": 0.5}
    values |= {"items": [BIG + i], "city": [i]} | overrides
    return {name: value for name, value in values.items() if value is not ...}


@pytest.fixture(scope="module")
def broker():
    return Broker()


TOPICS = itertools.count()


def as_cell(value):
    if isinstance(value, list):
        return "|".join("" if item is None else str(item) for item in value) if value != [None] else "|"
    return "" if value is None else str(value)


def write(kind, path, rows, columns=None):
    """Write one file, columns in the rows' order."""
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else columns
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path) if rows else pq.write_table(columns, path)
    elif kind == "csv":
        lines = [names, *([as_cell(row.get(name)) for name in names] for row in rows)]
        path.write_text("".join(",".join(line) + "\n" for line in lines))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def opened(kind, path, given):
    settings = {"path": str(path), "schema": given}
    if kind == "parquet":
        return open_log(ParquetLog(**settings))
    return open_log(JsonLinesLog(**settings) if kind == "jsonl" else CsvLog(**settings, mapping=BARS))


def ingest(kind, folder, files, broker, given=None):
    """Return the log of files (lists of samples) that came in through an entrance; Kafka: one message a sample."""
    given = given or schema()
    if kind != "kafka":
        folder.mkdir()
        for i, rows in enumerate(files):
            write(kind, folder / f"part-{i}.{kind}", rows)
        return opened(kind, folder, given)
    topic = broker.topic(f"entrance-{next(TOPICS)}")
    broker.send(topic, [(str(row["user"]).encode(), json.dumps(row).encode()) for rows in files for row in rows])
    land(LandConfig(topic=topic, schema=given, num_shards=2, segment_samples=7, until_end=True), folder)
    return open_log(LandedLog(path=str(folder)))


def rows_of(log):
    return sorted((row for batch in log.batches() for row in batch.to_pylist()), key=lambda row: int(row["event"][1:]))


def refused(kind, folder, rows, broker, reason, bad):
    """Assert that row `bad` is refused: the file whole, or the message alone."""
    if kind != "kafka":
        with pytest.raises(LogError, match=rf"{reason} \(file '.*part-0.{kind}'(, row {bad})?, column") as caught:
            rows_of(ingest(kind, folder, [rows], broker))
        assert "\n" not in str(caught.value)
        return
    log = ingest(kind, folder, [rows], broker)
    assert log.describe()["dead_letters"] == 1
    assert [row["event"] for row in rows_of(log)] == [row["event"] for i, row in enumerate(rows) if i != bad]
    (letter,) = [json.loads(line) for path in (folder / "dead").iterdir() for line in path.read_text().splitlines()]
    assert json.loads(letter["value"])["event"] == f"e{bad}"
    assert letter["reason"]


@pytest.mark.parametrize("kind", ENTRANCES)
def test_empty_null_and_null_inside_are_told_apart_F01(kind, tmp_path, broker):
    """[1, 2], [], null, [null], [3]: lengths 2, 0, 0, refused or 0 by rule, 1; never ID 0."""
    rows = [sample(i, items=items) for i, items in enumerate([[1, 2], [], None, [None], [3], [4, None, 5]])]
    dropped = rows_of(ingest(kind, tmp_path / "drop", [rows], broker, schema("drop")))
    assert [row["items"] for row in dropped] == [[1, 2], [], [], [], [3], [4, 5]]
    refused(kind, tmp_path / "refuse", rows[:5], broker, "a null inside the list", 3)


@pytest.mark.parametrize("kind", ENTRANCES)
def test_drift_between_files_follows_the_schema_F05(kind, tmp_path, broker):
    """Columns moved, added, absent (declared empty), empty in a file, of other widths: alike in any file order."""
    moved = [dict(reversed(sample(i).items())) for i in range(3)]
    extra = [sample(i, more="x") for i in range(3, 6)]
    without = [sample(i, city=...) for i in range(6, 9)]
    empty = [sample(i, items=[]) for i in range(9, 12)]
    small = [sample(i, items=[i], click=i % 2, age=i) for i in range(12, 15)]
    files = [moved, extra, without, empty, small]
    first = rows_of(ingest(kind, tmp_path / "one", files, broker))
    assert first == rows_of(ingest(kind, tmp_path / "two", files[::-1], broker))
    assert [row["items"] for row in first] == [*([BIG + i] for i in range(9)), [], [], [], [12], [13], [14]]
    assert [row["city"] for row in first] == [[] if 6 <= i < 9 else [i] for i in range(15)]


@pytest.mark.parametrize("kind", ENTRANCES)
def test_an_absent_column_names_its_file_F05(kind, tmp_path, broker):
    """A column that must be there is missed in the file, or message, that lacks it; the others are not to blame."""
    rows = [sample(0), sample(1, age=...)]
    if kind == "kafka":
        refused(kind, tmp_path / "log", rows, broker, "", 1)
    else:
        with pytest.raises(LogError, match=rf"expected .*part-1.{kind}'.*column 'age'"):
            rows_of(ingest(kind, tmp_path / "log", [rows[:1], rows[1:]], broker))


@pytest.mark.parametrize("kind", ENTRANCES)
@pytest.mark.parametrize("wrong", [2**63, 2**64 - 1])
@pytest.mark.parametrize("column", ["items", "city"])
def test_unsigned_ids_never_turn_negative_J23(kind, wrong, column, tmp_path, broker):
    """2**63 and more are refused with row and column, in a list and as a scalar."""
    row = sample(1, **{column: [wrong] if column == "items" else wrong})
    rows = [sample(0, city=1), row if column == "city" else {**row, "city": 1}, sample(2, city=1)]
    if kind == "parquet":
        unsigned = pa.list_(pa.uint64()) if column == "items" else pa.uint64()
        table = pa.Table.from_pylist([{k: v for k, v in row.items() if k != column} for row in rows])
        table = table.append_column(column, pa.array([row[column] for row in rows], unsigned))
        pq.write_table(table, tmp_path / "part-0.parquet")
        with pytest.raises(LogError, match=rf"got {wrong} \(file '.*part-0.parquet', row 1, column '{column}'\)"):
            rows_of(opened(kind, tmp_path, schema()))
        return
    refused(kind, tmp_path / "log", rows, broker, rf"got \[?'?{wrong}'?\]?", 1)


@pytest.mark.parametrize("kind", ENTRANCES)
def test_a_null_costs_no_digits_J24(kind, tmp_path, broker):
    """19-digit IDs beside a null, as lists and as scalars, keep every digit; IDs written as floats are refused."""
    rows = [sample(i, items=[BIG + i] if i % 2 else None, city=BIG - i if i % 3 else None) for i in range(6)]
    found = rows_of(ingest(kind, tmp_path / "log", [rows], broker))
    assert [row["items"] for row in found] == [[BIG + i] if i % 2 else [] for i in range(6)]
    assert [row["city"] for row in found] == [[BIG - i] if i % 3 else [] for i in range(6)]
    floats = [sample(0, city=float(BIG)), sample(1, city=None if kind == "parquet" else 3)]
    reason = "expected int(eger IDs|64), got .*"
    if kind == "jsonl":
        reason = ".*"
    refused(kind, tmp_path / "floats", floats, broker, reason, 0)


@pytest.mark.parametrize("kind", ENTRANCES)
def test_late_events_join_their_own_session_L02(kind, tmp_path, broker):
    """10:00, 10:20, 11:30, then a late 10:25: in every order of arrival two sessions, of three samples and one."""
    minutes = {0: 0, 1: 20, 2: 90, 3: 25}
    rows = [sample(i, user=1, time=1_700_000_000_000 + 60_000 * minute) for i, minute in minutes.items()]
    config = BuildConfig(sessions=SessionRule(gap=timedelta(minutes=30)))
    for i, order in enumerate([(0, 1, 2, 3), (2, 3, 1, 0), (3, 0, 2, 1)]):
        log = ingest(kind, tmp_path / f"log-{i}", [[rows[j] for j in order]], broker)
        counts = build_table(log, tmp_path / f"table-{i}", config).counts
        assert (counts.sessions, counts.samples, counts.late) == (expected_sessions(rows), 4, 0)
        assert [size for _, _, size in sessions_of(tmp_path / f"table-{i}")] == [3, 1]


@pytest.mark.parametrize("kind", ENTRANCES)
def test_files_and_topics_of_nothing_are_passed_over_F09(kind, tmp_path, broker):
    """A file of no rows between others, and a log of nothing else: the rows of the others, or none."""
    if kind == "kafka":
        assert rows_of(ingest(kind, tmp_path / "log", [[]], broker)) == []
        return
    full = [sample(i) for i in range(3)]
    nothing = pa.Table.from_pylist(full).slice(0, 0) if kind == "parquet" else list(full[0])
    for i, rows in enumerate((full, [], full)):
        write(kind, tmp_path / f"part-{i}.{kind}", rows, None if rows else nothing)
    if kind == "jsonl":
        (tmp_path / "part-1.jsonl").write_text("\n\n")  # of 0 bytes it would count as cut (F08)
    assert len(rows_of(opened(kind, tmp_path, schema()))) == 6
    for i in (0, 2):
        (tmp_path / f"part-{i}.{kind}").unlink()
    assert rows_of(opened(kind, tmp_path, schema())) == []


@pytest.mark.parametrize("kind", ENTRANCES)
def test_the_order_of_rows_is_one_and_grows_at_its_end_F11(kind, tmp_path, broker):
    """Files by number, messages by offset (9 before 10): the same sequence every time; what is added comes after."""

    def sequence(log):
        return [int(row["event"][1:]) for batch in log.batches() for row in batch.to_pylist()]

    if kind == "kafka":
        topic = broker.topic("ordered")
        config = LandConfig(topic=topic, schema=schema(), num_shards=1, segment_samples=1, until_end=True)
        for low, high in ((0, 12), (12, 14)):
            rows = [sample(i, user=1) for i in range(low, high)]
            broker.send(topic, [(b"1", json.dumps(row).encode()) for row in rows], partition=0)
            land(config, tmp_path / "landing")
            assert sequence(open_log(LandedLog(path=str(tmp_path / "landing")))) == list(range(high))
        return
    for number in (9, 10, 2, 11, 1):
        write(kind, tmp_path / f"part-{number}.{kind}", [sample(number)])
    assert sequence(opened(kind, tmp_path, schema())) == [1, 2, 9, 10, 11]
    write(kind, tmp_path / f"part-12.{kind}", [sample(12)])
    assert sequence(opened(kind, tmp_path, schema())) == [1, 2, 9, 10, 11, 12]


def test_a_message_cut_short_is_set_aside_F08():
    """A message cut at any sixteenth is a dead letter with its offset; the next one is whole."""
    whole = json.dumps(sample(1)).encode()
    for sixteenth in range(16):
        messages = [Message(0, b"1", whole[: len(whole) * sixteenth // 16]), Message(1, b"1", whole)]
        batches, dead = decode_messages(messages, schema(), "t", 0)
        assert [letter.offset for letter in dead] == [0]
        assert sum(batch.num_rows for batch in batches) == 1
