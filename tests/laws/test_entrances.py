"""Law 3 at every entrance: the same events make the same sessions, however they came in."""

import json
import random
from datetime import timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.log import CsvLog, JsonLinesLog, LandedLog, ParquetLog, open_log
from recoup.log.kafka import KafkaTopic, LandConfig, encode_samples, land
from recoup.schema import DenseFeature, Schema, SparseFeature, sample_schema
from recoup.table import BuildConfig, SessionRule, build_table, open_table
from tests.log.kafka_broker import Broker

BIG = 1577134800018226901
SCHEMA = Schema(
    key="user",
    event_id="event",
    labels=("click",),
    dense=(DenseFeature(name="age", missing="empty"),),
    sparse=(SparseFeature(name="likes", group="user"), SparseFeature(name="item")),
)


def make_log(seed=3, num_users=9, num_samples=240):
    """Return samples of several sessions a user, out of order a little, with a replayed tail; and the events."""
    rng = random.Random(seed)
    rows = []
    clock = {user: 1_700_000_000_000 + user for user in range(num_users)}
    for i in range(num_samples):
        user = rng.randrange(num_users)
        clock[user] += rng.choice([1_000, 60_000, 1_799_000, 3_600_000])
        likes = [BIG + user + 100 * (i // 60), user] if user % 3 else []
        row = {"user": user, "time": clock[user], "event": f"e{i}", "click": float(i % 2), "age": i / 4}
        rows.append({**row, "likes": likes, "item": [i] * (i % 3)})
    rows.sort(key=lambda row: row["time"] + rng.randrange(300_000))
    return pa.RecordBatch.from_pylist(rows + rows[-20:], schema=sample_schema(SCHEMA)), rows


def through_parquet(batch, folder):
    pq.write_table(pa.Table.from_batches([batch]), folder / "log.parquet", row_group_size=50)
    return open_log(ParquetLog(path=str(folder / "log.parquet"), schema=SCHEMA))


def as_cell(value):
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def through_csv(batch, folder):
    rows = [",".join(map(as_cell, row.values())) for row in batch.to_pylist()]
    lines = [",".join(batch.schema.names), *rows]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return open_log(CsvLog(path=str(folder / "log.csv"), schema=SCHEMA))


def through_jsonlines(batch, folder):
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in batch.to_pylist()))
    return open_log(JsonLinesLog(path=str(folder / "log.jsonl"), schema=SCHEMA))


def through_kafka(batch, folder, num_shards=4):
    broker = Broker()
    topic = broker.topic("log")
    broker.send(topic, list(encode_samples(batch, SCHEMA)))
    topic = KafkaTopic(bootstrap=broker.bootstrap, topic="log")
    config = LandConfig(topic=topic, schema=SCHEMA, num_shards=num_shards, segment_samples=70, until_end=True)
    land(config, folder / "landing")
    return open_log(LandedLog(path=str(folder / "landing")))


def through_seven_shards(batch, folder):
    return through_kafka(batch, folder, num_shards=7)


def sessions_of(path):
    """The sessions of a table: key, start and number of samples of every row."""
    rows = pq.read_table(path / "parts", columns=["session_key", "session_start", "num_samples"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def expected_sessions(rows, gap_ms=1_800_000):
    """The oracle: unique events by user and time, cut where a pause is longer than the gap."""
    count = 0
    for user in {row["user"] for row in rows}:
        times = sorted(row["time"] for row in rows if row["user"] == user)
        count += 1 + sum(after - before > gap_ms for before, after in pairwise(times))
    return count


@pytest.mark.parametrize(
    "entrance",
    [through_parquet, through_csv, through_jsonlines, through_kafka, through_seven_shards],
    ids=lambda f: f.__name__,
)
def test_the_same_events_make_the_same_table_L02_L05_L06_J24(tmp_path, entrance):
    """Any entrance and shard count: the log's multiset without the 20 replayed events, in the same sessions."""
    batch, rows = make_log()
    config = BuildConfig(sessions=SessionRule(gap=timedelta(minutes=30)))
    manifest = build_table(entrance(batch, tmp_path), tmp_path / "table", config)
    assert manifest.counts.repeated == 20
    assert manifest.counts.samples == len(rows)
    assert manifest.counts.sessions == expected_sessions(rows)
    reference = build_table(through_parquet(batch, tmp_path), tmp_path / "reference", config)
    assert manifest.counts == reference.counts
    assert sessions_of(tmp_path / "table") == sessions_of(tmp_path / "reference")
    samples = pa.Table.from_batches(open_table(tmp_path / "table").iter_samples()).select(batch.schema.names)
    assert sorted(map(str, samples.to_pylist())) == sorted(map(str, batch.slice(0, len(rows)).to_pylist()))
