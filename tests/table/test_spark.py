"""The Spark engine: the same table as the embedded engine, through killed workers and killed drivers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from recoup.log import ParquetLog, SyntheticLog, open_log
from recoup.log.synthetic import SyntheticGroup
from recoup.schema import SparseFeature
from recoup.table import (
    BuildConfig,
    HistoryFeature,
    SessionRule,
    TableError,
    WriterConfig,
    append_table,
    build_table,
    open_table,
)
from recoup.table.spark import SparkBuild, build_table_on_spark
from recoup.table.spark.session import spark_session
from recoup.table.verify import verify_table
from tests.table.oracles import batch_of, sessions_of
from tests.table.test_build import SCHEMA

pytestmark = pytest.mark.timeout(400)  # a JVM and its Python workers, on two cores
SPARK = SparkBuild(master="local[2,4]", shuffle_partitions=3, parts=2, options={"spark.driver.memory": "1g"})
GROUPS = (
    SyntheticGroup(name="g", prefix="user", num_features=2, repeat=0.9, mean_length=5, max_length=9),
    SyntheticGroup(name="h", prefix="hist", num_features=1, repeat=0.6, shift=True, mean_length=6, max_length=9),
)
CONFIG = BuildConfig(
    sessions=SessionRule(gap=timedelta(seconds=2), max_samples_per_row=7),
    histories=(HistoryFeature(name="seen", source="item_0", last=5),),
    sample_sessions=0.7,
    seed=3,
)
_DRIVER = """
import sys
from pathlib import Path

from recoup.table.spark import build_table_on_spark
from tests.table.test_spark import APPENDED, CONFIG, SPARK, on_cluster, source
mode, log, table = sys.argv[3], source(Path(sys.argv[1])), Path(sys.argv[2])
spark = on_cluster(sys.argv[4], Path(sys.argv[5])) if len(sys.argv) > 4 else SPARK
build_table_on_spark(log, table, APPENDED if mode == "append" else CONFIG, spark, mode=mode)
"""
APPENDED = BuildConfig(sessions=CONFIG.sessions, writer=WriterConfig(partition_by="hour"))


def source(folder):
    log = open_log(SyntheticLog(num_samples=4000, groups=GROUPS, num_item_features=2, num_dense=1, num_ids=500))
    folder.mkdir(exist_ok=True)
    files = [folder / f"part-{i}.parquet" for i in range(2)]
    if not files[1].exists():
        table = pa.Table.from_batches(log.batches())
        pq.write_table(table.slice(0, 1500), files[0])
        pq.write_table(table.slice(1500), files[1])
    return ParquetLog(path=str(folder), schema=log.schema)


def rows(path):
    table = open_table(path)
    assert verify_table(table) == []
    return pa.Table.from_batches(table.iter_rows())


def on_cluster(master, events):
    """Return a build on a cluster of machines that run a slow task twice; what happens is logged in `events`."""
    options = {
        "driver.memory": "600m",
        "driver.host": "127.0.0.1",
        "driver.bindAddress": "127.0.0.1",
        "executor.memory": "600m",
        "eventLog.enabled": "true",
        "eventLog.compress": "false",
        "eventLog.dir": str(events),
        "speculation": "true",
        "speculation.quantile": "0.5",
        "speculation.minTaskRuntime": "500ms",
    }
    named = {f"spark.{name}": value for name, value in options.items()}
    return SparkBuild(master=master, shuffle_partitions=4, parts=4, options=named)


@pytest.fixture
def cluster(tmp_path):
    """Yield a Spark master's address and its two workers, each a machine to Spark: they have addresses of their own."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "300m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    started = []

    def start(kind, *options):
        log = tmp_path / f"{kind}-{len(started)}.log"
        command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", "--webui-port", "0", *options]
        with log.open("w") as file:
            started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
        return log

    def wait_for(log, pattern):
        end = time.monotonic() + 60
        while not (found := re.search(pattern, log.read_text())):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        return found[0]

    try:
        master = wait_for(start("master.Master", "--host", "127.0.0.1", "--port", "0"), r"spark://[\d.:]+")
        hosts = [("--host", f"127.0.0.{number}", "--work-dir", str(tmp_path / f"work-{number}")) for number in (2, 3)]
        logs = [start("worker.Worker", *host, "--cores", "1", "--memory", "900m", master) for host in hosts]
        for log in logs:
            wait_for(log, "Successfully registered with master")
        yield master, started[1:]
    finally:
        for process in started:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait()


def start_driver(tmp_path, mode="overwrite", cluster=()):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore", "-c", _DRIVER, str(tmp_path / "log"), str(tmp_path / "table"), mode]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(
        [*command, *cluster], cwd=root, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )


def python_workers(process):
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "pyspark.daemon" in child.cmdline() and "pyspark.daemon" in child.parent().cmdline():
                found.append(child)
        except (psutil.Error, AttributeError):
            continue
    return found


def test_spark_equals_the_embedded_engine_whatever_workers_die_or_hang(tmp_path, cluster):
    """On two machines a Python worker is killed and one frozen: a retried and a speculative task, the same table."""
    master, machines = cluster
    log = source(tmp_path / "log")
    build_table(open_log(log), tmp_path / "embedded", CONFIG)
    (tmp_path / "events").mkdir()
    driver = start_driver(tmp_path, cluster=(master, str(tmp_path / "events")))
    killed, frozen = [], []
    while driver.poll() is None:
        for worker in [worker for machine in machines for worker in python_workers(machine)]:
            if not killed:
                worker.send_signal(signal.SIGKILL)
                killed.append(worker)
            elif not frozen and worker not in killed:
                worker.send_signal(signal.SIGSTOP)
                frozen.append(worker)
        time.sleep(0.01)
    assert (driver.returncode, len(killed), len(frozen)) == (0, 1, 1)
    logged = [
        json.loads(line) for file in (tmp_path / "events").rglob("events_*") for line in file.read_text().splitlines()
    ]
    tasks = [event["Task Info"] for event in logged if event["Event"] == "SparkListenerTaskEnd"]
    assert any(task["Failed"] for task in tasks)
    assert any(task["Speculative"] and not task["Failed"] and not task["Killed"] for task in tasks)
    assert rows(tmp_path / "table").equals(rows(tmp_path / "embedded"))
    counts = [open_table(tmp_path / name).manifest.counts for name in ("table", "embedded")]
    assert counts[0] == counts[1]
    names = {part.name for part in open_table(tmp_path / "table").manifest.parts}
    assert {file.name for file in (tmp_path / "table" / "parts").iterdir()} == names


def kill_driver(driver, when):
    """Kill -9 the driver as soon as `when` says so; its Java and Python workers, orphans now, are killed after it."""
    while driver.poll() is None and not when():
        time.sleep(0.02)
    group = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
    driver.kill()
    driver.wait()
    for process in group:
        if process.is_running():
            process.kill()
    return driver.returncode == -signal.SIGKILL


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_killed_driver_leaves_the_older_table(tmp_path, mode):
    """Kill -9 of the driver, at a random moment and while parts are written: the complete older table stays."""
    log = source(tmp_path / "log")
    first = pa.Table.from_batches(open_log(log).batches()).slice(0, 1500)
    pq.write_table(first, tmp_path / "first.parquet")
    build_table(
        open_log(ParquetLog(path=str(tmp_path / "first.parquet"), schema=log.schema)), tmp_path / "table", APPENDED
    )
    older = rows(tmp_path / "table")
    parts = set((tmp_path / "table" / "parts").rglob("*.parquet"))

    def is_writing():
        return any(file.is_file() and file not in parts for file in (tmp_path / "table" / "parts").rglob("*"))

    moments = [is_writing]
    if mode == "overwrite":
        end = time.monotonic() + Random().uniform(3.0, 9.0)
        moments.insert(0, lambda: time.monotonic() > end)
    for moment in moments:
        assert kill_driver(start_driver(tmp_path, mode), moment)
    found = open_table(tmp_path / "table")
    assert found.manifest.generation == 0
    assert pa.Table.from_batches(found.iter_rows()).equals(older)
    assert all("left by a stopped build" in problem for problem in verify_table(found))


def test_spark_appends_what_the_embedded_engine_appends(tmp_path):
    """A later log, with a replayed tail, appended by both engines in daily partitions: the same rows and counts."""
    log = source(tmp_path / "log")
    whole = pa.Table.from_batches(open_log(log).batches())
    time = whole.column("time").to_numpy()
    half = int(time.searchsorted(time[2000], side="right"))
    for name, part in (("first", whole.slice(0, half)), ("second", whole.slice(half - 100))):
        (tmp_path / name).mkdir()
        pq.write_table(part, tmp_path / name / "part-0.parquet")
    first, second = (ParquetLog(path=str(tmp_path / name), schema=log.schema) for name in ("first", "second"))
    for name in ("table", "embedded"):
        build_table(open_log(first), tmp_path / name, APPENDED)
    build_table_on_spark(second, tmp_path / "table", APPENDED, SPARK, mode="append")
    append_table(open_log(second), tmp_path / "embedded", APPENDED)
    assert rows(tmp_path / "table").equals(rows(tmp_path / "embedded"))
    counts = [open_table(tmp_path / name).manifest.counts for name in ("table", "embedded")]
    assert counts[0] == counts[1]
    assert counts[0].samples == 4000
    assert counts[0].repeated + counts[0].late == 100
    with pytest.raises(TableError, match="engine embedded"):
        build_table_on_spark(second, tmp_path / "table", CONFIG, SPARK, mode="append")
    with spark_session(SPARK.master, SPARK.options) as session:
        read = session.read.parquet(str(tmp_path / "table" / "parts"))
        hours = {row["hour"]: row["count"] for row in read.groupBy("hour").count().collect()}
    starts = (
        rows(tmp_path / "table").column("session_start").to_numpy().astype("datetime64[ms]").astype("datetime64[h]")
    )
    assert hours == dict(Counter(str(hour).replace("T", "-") for hour in starts))


def test_sessions_of_both_engines_are_the_oracles_whatever_the_order_L05_L06(tmp_path):
    """Law 3, three hundred users' random logs in one: shuffled, a third of them replayed, on 3 and on 7 partitions."""
    schema = replace(SCHEMA, sparse=(SparseFeature(name="f", group="g"),))
    rule = SessionRule(gap=timedelta(minutes=30), max_session_samples=5, max_session_age=timedelta(hours=2))
    random = Random(8)
    logged = []
    for user in range(300):
        clock = 1_700_000_000_000
        for number in range(random.randrange(1, 14)):
            clock += random.choice([0, 1, 60_000, 1_800_000, 1_800_001, 7_200_000])
            event = f"{user}-{number}"
            logged.append({"user": user, "time": clock, "event": event, "click": 0.0, "f": [random.randrange(3)]})
    replayed = [*logged, *random.sample(logged, len(logged) // 3)]
    random.shuffle(replayed)
    (tmp_path / "log").mkdir()
    pq.write_table(pa.Table.from_batches([batch_of(replayed, schema)]), tmp_path / "log" / "part-0.parquet")
    log = ParquetLog(path=str(tmp_path / "log"), schema=schema)
    expected = [[sample["event"] for sample in session] for session in sessions_of(logged, schema, rule)]
    config = BuildConfig(sessions=rule)
    build_table_on_spark(log, tmp_path / "three", config, SPARK)
    build_table_on_spark(log, tmp_path / "seven", config, replace(SPARK, shuffle_partitions=7, parts=3))
    build_table(open_log(log), tmp_path / "embedded", config)
    for name in ("three", "seven", "embedded"):
        found = [row["event_id"] for row in rows(tmp_path / name).to_pylist()]
        assert sorted(found) == sorted(expected)
        assert open_table(tmp_path / name).manifest.counts.repeated == len(logged) // 3


def test_spark_refuses_what_it_cannot_do(tmp_path):
    """Lateness needs an order of arrival; a complete table is not overwritten unasked."""
    log = source(tmp_path / "log")
    late = BuildConfig(sessions=SessionRule(lateness=timedelta(seconds=1)))
    with pytest.raises(TableError, match="lateness"):
        build_table_on_spark(log, tmp_path / "table", late, SPARK)
    build_table(open_log(log), tmp_path / "table", BuildConfig())
    with pytest.raises(TableError, match="--overwrite"):
        build_table_on_spark(log, tmp_path / "table", CONFIG, SPARK)
