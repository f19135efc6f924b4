"""A log through Kafka: sessions stay whole, landing is exactly once, bad messages are set aside."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import confluent_kafka
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError, from_table, to_table, to_toml
from recoup.log import LandedLog, LogError, ParquetLog, SyntheticGroup, SyntheticLog, open_log
from recoup.log.kafka import (
    KafkaTopic,
    LandConfig,
    LandRun,
    ProduceConfig,
    ProduceRun,
    decode_messages,
    encode_samples,
    land,
    murmur2_partition,
    murmur2_partitions,
    produce,
)
from recoup.log.kafka.messages import Message
from recoup.schema import DenseFeature, Schema, SparseFeature
from tests.log.kafka_broker import PARTITIONS, QUIET, Broker
from tests.log.oracles import murmur2
from tests.strategies import samples, schemas

GROUP = SyntheticGroup(name="g", prefix="f", num_features=2, repeat=0.9, mean_length=4, min_length=1, max_length=8)
SCHEMA = Schema(
    key="user",
    event_id="event",
    labels=("click",),
    dense=(DenseFeature(name="age"),),
    sparse=(SparseFeature(name="items"), SparseFeature(name="city", missing="empty")),
)


@pytest.fixture(scope="module")
def broker():
    return Broker()


@pytest.fixture
def topic(broker, request):
    return broker.topic(request.node.name.replace("[", "-").replace("]", ""))


def make_config(**overrides):
    values = {"num_samples": 2000, "groups": (GROUP,), "num_item_features": 1, "num_dense": 1, "num_ids": 1000}
    return SyntheticLog(**{**values, **overrides})


def make_sample(i, **overrides):
    time_ms = 1_700_000_000_000 + 60_000 * i
    values = {"user": i % 7, "time": time_ms, "event": f"e{i}", "click": i % 2, "age": 0.1 * i, "items": [i, i + 1]}
    return {**values, **overrides}


def as_messages(rows):
    return [(str(row["user"]).encode(), json.dumps(row).encode()) for row in rows]


def landed_rows(root, **options):
    return [row for batch in open_log(LandedLog(path=str(root))).batches(**options) for row in batch.to_pylist()]


def multiset(rows):
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def land_config(topic, schema=SCHEMA, **overrides):
    return LandConfig(**{"topic": topic, "schema": schema, "num_shards": 3, "until_end": True, **overrides})


# --- keys and messages -----------------------------------------------------------------------------------------------


def test_the_hash_is_kafkas():
    """Keys hash as the Java client hashes them (values of its own test), so mixed producers agree."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for key, value in known.items():
        assert murmur2(key) == value
        for count in (1, 5, 10, 2**31 - 1):
            assert murmur2_partition(key, count) == (value & 0x7FFFFFFF) % count


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(1, 50))
def test_many_keys_hash_like_one(keys, count):
    """The vectorised hash equals the slow one, key by key, on slices too."""
    expected = [(murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    array = pa.array([b"x", *keys], pa.binary()).slice(1)
    assert murmur2_partitions(array, count).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_samples_survive_messages(data):
    """decode(encode(x)) = x, bit for bit, for any schema; nothing becomes a dead letter."""
    schema = data.draw(schemas())
    batch = data.draw(samples(schema, min_rows=1))
    messages = [Message(5 + i, key, value) for i, (key, value) in enumerate(encode_samples(batch, schema))]
    batches, dead = decode_messages(messages, schema, "t", 0)
    assert dead == []
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([batch]))


def test_bad_messages_are_set_aside_alone_J23_J24_M10_F01():
    """Each kind of bad message becomes a dead letter with offset and reason; its neighbours are kept exactly."""
    big = 1577134800018226901
    bad = {
        3: b"not json",
        7: json.dumps(make_sample(7, items=[2**63])).encode(),
        11: json.dumps(make_sample(11, items=[1, None])).encode(),
        12: json.dumps(make_sample(12, age=float("nan"))).encode(),
        13: json.dumps(make_sample(13, items=[1.0])).encode(),
        20: json.dumps({k: v for k, v in make_sample(20).items() if k != "click"}).encode(),
        21: None,
        22: b"[1]",
        23: b"\xff\xfe",
        24: json.dumps(make_sample(24, items=[2**64])).encode(),
        25: json.dumps(make_sample(25, user=None)).encode(),
        26: json.dumps(make_sample(26, time=1_700_000_000_000_000)).encode(),
    }
    rows = {i: make_sample(i, items=[big + i] if i % 2 else None) for i in range(30)}
    messages = [Message(i, b"k", bad[i] if i in bad else json.dumps(rows[i]).encode()) for i in range(30)]
    batches, dead = decode_messages(messages, SCHEMA, "t", 2)
    assert [letter.offset for letter in dead] == sorted(bad)
    kept = [row for batch in batches for row in batch.to_pylist()]
    assert [row["event"] for row in kept] == [f"e{i}" for i in range(30) if i not in bad]
    assert [row["items"] for row in kept] == [[big + i] if i % 2 else [] for i in range(30) if i not in bad]
    reasons = {letter.offset: letter.reason for letter in dead}
    assert "got [9223372036854775808] (file 't/2', row 7, column 'items')" in reasons[7]
    assert "null inside the list" in reasons[11]
    assert "expected a JSON object, got 'not json'" in reasons[3]
    assert json.loads(dead[-4].as_json())["value"] == "base64://4="


# --- producing and landing -------------------------------------------------------------------------------------------


def test_a_produced_log_lands_whole(topic, tmp_path):
    """The landing holds the log's multiset of samples; every session lies in one partition and one shard."""
    config = make_config()
    source = open_log(config)
    sent = produce(source, ProduceConfig(topic=topic))
    assert sent.num_samples == config.num_samples
    assert 0 < sent.sent_bytes < sent.num_bytes
    done = land(land_config(topic, source.schema, segment_samples=100), tmp_path)
    assert (done.num_samples, done.num_dead) == (config.num_samples, 0)
    assert done.num_segments > PARTITIONS
    expected = [row for batch in source.batches() for row in batch.to_pylist()]
    assert multiset(landed_rows(tmp_path)) == multiset(expected)
    places = {}
    for file in open_log(LandedLog(path=str(tmp_path))).files:
        hour, shard, name = file.split("/")[-3:]
        for row in ParquetLogRows(file, source.schema):
            assert f"hour={time.strftime('%Y-%m-%dT%H', time.gmtime(row['time'] / 1000))}" == hour
            places.setdefault(row["session_key"], set()).add((shard, name[:6]))
    assert all(len(found) == 1 for found in places.values())


def ParquetLogRows(path, schema):
    return [row for batch in open_log(ParquetLog(path=path, schema=schema)).batches() for row in batch.to_pylist()]


def test_mixed_producers_do_not_split_a_session(broker, topic):
    """A plain client with Kafka's default key hash sends a session to the partition Recoup sends it to."""
    produce(open_log(make_config(num_samples=50)), ProduceConfig(topic=topic))
    keys = {
        row["session_key"] for batch in open_log(make_config(num_samples=50)).batches() for row in batch.to_pylist()
    }
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "t", "enable.auto.commit": False, "logger": QUIET}
    )
    places = [
        confluent_kafka.TopicPartition(topic.topic, i, confluent_kafka.OFFSET_BEGINNING) for i in range(PARTITIONS)
    ]
    consumer.assign(places)
    seen = {}
    while sum(seen.values()) < 50:
        message = consumer.poll(10)
        assert message is not None
        assert message.partition() == (murmur2(message.key()) & 0x7FFFFFFF) % PARTITIONS
        seen[message.key()] = seen.get(message.key(), 0) + 1
    consumer.close()
    assert {int(key) for key in seen} == keys


def test_a_second_run_lands_only_what_is_new(broker, topic, tmp_path):
    """Landing again lands nothing; after more messages it lands just those."""
    rows = [make_sample(i) for i in range(60)]
    broker.send(topic, as_messages(rows[:40]))
    assert land(land_config(topic), tmp_path).num_samples == 40
    assert land(land_config(topic), tmp_path).num_samples == 0
    broker.send(topic, as_messages(rows[40:]))
    assert land(land_config(topic), tmp_path).num_samples == 20
    assert Counter(row["event"] for row in landed_rows(tmp_path)) == Counter(row["event"] for row in rows)


def test_dead_letters_are_counted_and_kept(broker, topic, tmp_path):
    """A bad message is in the dead-letter file with reason and offset, in no Parquet file, and in the counts."""
    broker.send(topic, as_messages([make_sample(i) for i in range(10)]))
    broker.send(topic, [(b"1", b"garbage"), (b"1", json.dumps(make_sample(3, items=[2**63])).encode())], partition=1)
    done = land(land_config(topic), tmp_path)
    assert (done.num_samples, done.num_dead) == (10, 2)
    letters = [json.loads(line) for path in (tmp_path / "dead").iterdir() for line in path.read_text().splitlines()]
    assert [letter["partition"] for letter in letters] == [1, 1]
    assert letters[0]["value"] == "garbage"
    assert letters[1]["offset"] == letters[0]["offset"] + 1
    assert open_log(LandedLog(path=str(tmp_path))).describe()["dead_letters"] == 2


def test_two_landers_share_a_topic(broker, topic, tmp_path):
    """Two instances land each message once between them; then one instance goes on alone."""
    broker.send(topic, as_messages([make_sample(i) for i in range(100)]))
    parts = [land(land_config(topic, instance=i, num_instances=2), tmp_path) for i in range(2)]
    assert sum(done.num_samples for done in parts) == 100
    broker.send(topic, as_messages([make_sample(i) for i in range(100, 130)]))
    assert land(land_config(topic), tmp_path).num_samples == 30
    assert len({row["event"] for row in landed_rows(tmp_path)}) == len(landed_rows(tmp_path)) == 130


def test_a_session_keeps_its_shard_whatever_the_partitions_L05(tmp_path):
    """The shard is a function of key and shard count alone: samples of one key from two partitions meet."""
    broker = Broker()
    topic = broker.topic("moved")
    broker.send(topic, as_messages([make_sample(i, user=5) for i in range(10)]), partition=0)
    broker.send(topic, as_messages([make_sample(i, user=5) for i in range(10, 20)]), partition=3)
    land(land_config(topic), tmp_path)
    shards = {file.split("/")[-2] for file in open_log(LandedLog(path=str(tmp_path))).files}
    assert shards == {f"shard={murmur2_partition(b'5', 3):05d}"}


def test_replayed_lines_keep_their_event_id_L06(broker, topic, tmp_path):
    """A replayed tail lands as what it is, repeats that carry the same event ID, for the table to remove."""
    rows = [make_sample(i) for i in range(30)]
    broker.send(topic, as_messages([*rows, *rows[20:]]))
    assert land(land_config(topic), tmp_path).num_samples == 40
    counts = Counter(row["event"] for row in landed_rows(tmp_path))
    assert {event for event, count in counts.items() if count == 2} == {f"e{i}" for i in range(20, 30)}


def test_the_landing_is_guarded(broker, topic, tmp_path):
    """Another schema, a missing manifest, a damaged file and a folder that is no landing are refused."""
    broker.send(topic, as_messages([make_sample(i) for i in range(40)]))
    land(land_config(topic, segment_samples=1), tmp_path)
    broker.send(topic, as_messages([make_sample(i) for i in range(40)]))
    land(land_config(topic, segment_samples=1), tmp_path)
    other = Schema(key="user", labels=("click",))
    with pytest.raises(LogError, match=r"expected schema .* use another folder"):
        land(land_config(topic, other), tmp_path)
    with pytest.raises(LogError, match=r"expected num_shards 3 .* got 4"):
        land(land_config(topic, num_shards=4), tmp_path)
    first = min((tmp_path / "manifests").glob("*.json"))
    content = first.read_text()
    first.unlink()
    later = sorted((tmp_path / "manifests").glob(f"{first.name[:6]}*.json"))
    if len(later) > 1:
        middle = later[0]
        saved = middle.read_text()
        middle.unlink()
        first.write_text(content)
        with pytest.raises(LogError, match="a manifest is missing"):
            landed_rows(tmp_path)
        middle.write_text(saved)
    first.write_text(content)
    victim = next(iter(open_log(LandedLog(path=str(tmp_path))).files))
    os.truncate(victim, 100)
    with pytest.raises(LogError, match="the landing is damaged"):
        landed_rows(tmp_path)
    with pytest.raises(LogError, match=r"landing\.json"):
        landed_rows(tmp_path / "data")


def test_deleted_messages_are_an_error(broker, topic, tmp_path):
    """If the topic no longer holds the next offset, landing stops with an error instead of skipping ahead."""
    broker.send(topic, as_messages([make_sample(i) for i in range(10)]), partition=0)
    land(land_config(topic), tmp_path)
    (manifest,) = (tmp_path / "manifests").glob("p00000*.json")
    table = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**table, "to": 5000}))
    with pytest.raises(LogError, match=r"expected messages of '.*/0', got: .*|deleted before they were landed"):
        land(land_config(topic), tmp_path)


def test_the_same_partition_cannot_be_landed_twice_at_once(broker, topic, tmp_path):
    """A second lander of a held partition is refused; a manifest of the same offsets cannot be made twice."""
    from recoup.log.landing import Segment, commit_segment

    broker.send(topic, as_messages([make_sample(i) for i in range(10)]))
    refused = []

    def try_another():
        if not refused:
            with pytest.raises(LogError, match="a running lander that holds it"):
                land(land_config(topic), tmp_path)
            refused.append(True)
        return False

    land(land_config(topic), tmp_path, should_stop=try_another)
    assert refused
    segment = Segment(partition=99, first=0, to=1, num_samples=0, num_dead=0, files=())
    commit_segment(tmp_path, segment)
    with pytest.raises(LogError, match="nothing was landed twice"):
        commit_segment(tmp_path, segment)


LANDER = """
import json, sys
from pathlib import Path
from recoup.core import from_table
from recoup.log.kafka import LandConfig, land
print("up", flush=True)
done = land(from_table(LandConfig, json.loads(sys.argv[1])), Path(sys.argv[2]))
print(done.num_samples, flush=True)
"""


def test_killed_landers_lose_and_double_nothing_L06(broker, topic, tmp_path):
    """Kill -9 again and again between commits, while producing goes on: every message is landed exactly once."""
    rng = random.Random(7)
    config = land_config(topic, segment_samples=60, until_end=True)
    command = [sys.executable, "-c", LANDER, json.dumps(to_table(config)), str(tmp_path)]
    sent = kills = in_the_middle = 0
    while kills < 4:
        broker.send(topic, as_messages([make_sample(i) for i in range(sent, sent + 1000)]))
        sent += 1000
        wanted = len(list(tmp_path.glob("manifests/p*"))) + rng.randrange(10)
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        process.stdout.readline()
        while process.poll() is None and len(list(tmp_path.glob("manifests/p*"))) < wanted:
            time.sleep(0.001)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        if (tmp_path / "landing.json").exists():
            landed = [row["event"] for row in landed_rows(tmp_path, columns=["event"])]
            assert len(landed) == len(set(landed))
            in_the_middle += 0 < len(landed) < sent
    assert in_the_middle >= 2
    subprocess.run(command, check=True, capture_output=True)
    assert Counter(row["event"] for row in landed_rows(tmp_path)) == Counter(f"e{i}" for i in range(sent))
    files = {str(path) for path in (tmp_path / "data").rglob("*.parquet")}
    assert files == set(open_log(LandedLog(path=str(tmp_path))).files)


def test_configurations_are_checked_and_survive_toml():
    """Settings that would split sessions or lose messages are refused; the rest reads back equal."""
    topic = KafkaTopic(bootstrap="b:1", topic="t", options={"security.protocol": "ssl"})
    for config in (ProduceConfig(topic=topic), land_config(topic)):
        assert from_table(type(config), to_table(config)) == config
    with pytest.raises(ConfigError, match="'partitioner'"):
        KafkaTopic(bootstrap="b:1", topic="t", options={"partitioner": "random"})
    with pytest.raises(ConfigError, match="instance < 2, got 2"):
        land_config(topic, instance=2, num_instances=2)


def recoup(*arguments):
    return [sys.executable, "-c", "from recoup.cli.main import main; main()", "log", *map(str, arguments)]


def test_the_commands_produce_and_land(topic, tmp_path):
    """`recoup log produce` sends a log, `recoup log land` lands it; SIGTERM ends a lander well."""
    source = open_log(make_config(num_samples=300))
    sending = ProduceRun(log=make_config(num_samples=300), produce=ProduceConfig(topic=topic))
    landing = LandRun(land=land_config(topic, source.schema, until_end=False))
    (tmp_path / "send.toml").write_text(to_toml(sending))
    (tmp_path / "land.toml").write_text(to_toml(landing))
    sent = subprocess.run(recoup("produce", tmp_path / "send.toml"), capture_output=True, text=True, check=True)
    assert sent.stdout.startswith("300 samples")
    process = subprocess.Popen(
        recoup("land", tmp_path / "land.toml", tmp_path / "landing", "--set", "land.segment_age=100ms"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    while sum(json.loads(path.read_text())["num_samples"] for path in tmp_path.glob("landing/manifests/p*")) < 300:
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    assert "300 samples, 0 dead letters" in process.communicate()[0]
    assert process.returncode == 0
    again = subprocess.run(
        recoup("land", tmp_path / "land.toml", tmp_path / "landing", "--set", "land.until_end=true"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.startswith("0 samples")


def test_absent_brokers_are_one_error(tmp_path, monkeypatch):
    """Nobody at the address: one line, after a bounded wait."""
    import recoup.log.kafka.lander as lander

    monkeypatch.setattr(lander, "_TIMEOUT_SECONDS", 1.0)
    with pytest.raises(LogError, match=r"expected brokers at 127\.0\.0\.1:1"):
        land(land_config(KafkaTopic(bootstrap="127.0.0.1:1", topic="t")), tmp_path)
