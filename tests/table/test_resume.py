"""Kill -9 at any moment: a complete older or newer table, and a resumed build that makes nothing finished again."""

import json
import random
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.log import ParquetLog, open_log
from recoup.table import BuildConfig, SessionRule, TableError, WriterConfig, build_table, open_table
from recoup.table.verify import verify_table
from tests.table.oracles import DAY_MS, MemoryLog, batch_of, multiset
from tests.table.test_build import SCHEMA, many

CONFIG = BuildConfig(
    num_buckets=6,
    memory_bytes=1_000_000,
    sessions=SessionRule(max_samples_per_row=50),
    writer=WriterConfig(row_group_bytes=40_000, part_bytes=60_000),
)

NURSERY = """
import os, select, signal, sys
from pathlib import Path
from recoup.log import ParquetLog, open_log
from recoup.table import WriterConfig, append_table, build_table, compact_table
from tests.table.test_resume import CONFIG, SCHEMA

for line in sys.stdin:  # one action a line, each in a child of its own that starts with everything loaded
    action, log, folder, kill_after = line.split()
    if not Path(folder + "-warm").exists():
        build_table(open_log(ParquetLog(path=log, schema=SCHEMA)), Path(folder + "-warm"), CONFIG)
    source = open_log(ParquetLog(path=log, schema=SCHEMA))
    pid = os.fork()
    if pid == 0:
        if action == "build":
            build_table(source, Path(folder), CONFIG, overwrite=True)
        elif action == "append":
            append_table(source, Path(folder), CONFIG, resume=True)
        else:
            compact_table(Path(folder), WriterConfig())
        os._exit(0)
    if float(kill_after) >= 0:
        descriptor = os.pidfd_open(pid)
        ended, _, _ = select.select([descriptor], [], [], float(kill_after))
        os.close(descriptor)
        if not ended:  # or as good as: its number is its own until it is waited for
            os.kill(pid, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def nursery():
    """Yield a process that builds what it is told: `action log folder seconds` in; its exit code out."""
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        yield process
        process.kill()


def build_in_child(nursery, log, folder, kill_after=None, action="build"):
    """Build, append or compact in a child, kill -9 it after some seconds (None: never), and return its exit code."""
    nursery.stdin.write(f"{action} {log} {folder} {-1 if kill_after is None else kill_after}\n")
    return int(nursery.stdout.readline())


def write_log(path, seed, day=0):
    """Write a log of a day (its samples take under three hours) and return its samples."""
    rows = many(num_samples=1500, seed=seed).to_pylist()
    batch = batch_of([r | {"time": r["time"] + day * DAY_MS, "event": f"{day}{r['event']}"} for r in rows], SCHEMA)
    pq.write_table(pa.Table.from_batches([batch]), path)
    return multiset([batch], SCHEMA)


def test_kill_9_at_random_points_leaves_the_older_or_the_newer_table_F12(tmp_path, nursery):
    """20 builds over a complete table are killed: the folder is always one whole table; the next one tidies."""
    logs = [tmp_path / "old.parquet", tmp_path / "new.parquet"]
    old, new = (write_log(path, seed) for seed, path in enumerate(logs))
    folder = tmp_path / "table"
    assert build_in_child(nursery, logs[0], folder) == 0
    began = time.perf_counter()
    assert build_in_child(nursery, logs[0], folder) == 0
    duration = time.perf_counter() - began
    rng = random.Random(2)
    codes = []
    for turn in range(20):
        codes.append(build_in_child(nursery, logs[1 - turn % 2], folder, kill_after=rng.uniform(0, 1.1) * duration))
        table = open_table(folder)
        assert [problem for problem in verify_table(table) if "is not in the manifest" not in problem] == []
        assert multiset(table.iter_samples(), SCHEMA) in (old, new)
    assert codes.count(-signal.SIGKILL) >= 5
    assert build_in_child(nursery, logs[1], folder) == 0
    assert multiset(open_table(folder).iter_samples(), SCHEMA) == new
    assert verify_table(open_table(folder)) == []


def test_kill_9_of_appends_and_compactions_leaves_a_whole_table(tmp_path, nursery):
    """Days are appended and merged under kill -9: each day is in the table whole or not at all, and never twice."""
    num_days = 6
    logs = [tmp_path / f"{day}.parquet" for day in range(num_days)]
    held = [write_log(path, seed=day, day=day) for day, path in enumerate(logs)]
    folder = tmp_path / "table"
    assert build_in_child(nursery, logs[0], folder) == 0
    rng = random.Random(3)
    took = {"append": 0.2, "compact": 0.1}
    codes = {action: [] for action in took}

    def once(action, day, limit=None):
        began = time.perf_counter()
        codes[action].append(build_in_child(nursery, logs[day], folder, kill_after=limit, action=action))
        if limit is None:
            took[action] = time.perf_counter() - began
        table = open_table(folder)
        assert [problem for problem in verify_table(table) if "is not in the manifest" not in problem] == []
        return table

    for day in range(1, num_days):
        older = sorted(sample for samples in held[:day] for sample in samples)
        newer = sorted(older + held[day])
        found = once("append", day, rng.uniform(0, 1.1) * took["append"])
        assert multiset(found.iter_samples(), SCHEMA) in (older, newer)
        # a stopped one goes on; a finished one is asked for again, and then every sample is a repeat
        assert multiset(once("append", day).iter_samples(), SCHEMA) == newer
        rows = pa.Table.from_batches(once("compact", day, rng.uniform(0, 1.1) * took["compact"]).iter_rows())
        assert multiset(open_table(folder).iter_samples(), SCHEMA) == newer
        compacted = once("compact", day)
        assert pa.Table.from_batches(compacted.iter_rows()).equals(rows)
        assert len(compacted.manifest.parts) == 1
        assert verify_table(compacted) == []
    assert codes["append"].count(-signal.SIGKILL) >= 2
    assert codes["compact"].count(-signal.SIGKILL) >= 2


class StoppedError(Exception):
    """Raised by a progress function to stop a build at a chosen point."""


class CountedLog(MemoryLog):
    """A log that counts how often it is read to its end."""

    reads = 0

    def batches(self, columns=None, **options):
        yield from super().batches(columns, **options)
        self.reads += 1


def stop_at(task, number):
    """Return a progress function that stops the build at the given report of a task."""

    def progress(name, done, _total):
        if name == task and done >= number:
            raise StoppedError

    return progress


@pytest.mark.parametrize(
    ("task", "number"), [("encode sessions", 1), ("encode sessions", 4), ("write table", 1), ("write table", 40)]
)
def test_a_resumed_build_makes_no_finished_stage_again(tmp_path, task, number):
    """Stopped anywhere after the spool, a build goes on: no log read again, runs and parts stay the files they are."""
    batch = many(num_samples=2500)
    log = CountedLog(batch, SCHEMA, batch_samples=500)
    build_table(log, tmp_path / "whole", CONFIG)
    with pytest.raises(StoppedError):
        build_table(log, tmp_path / "table", CONFIG, progress=stop_at(task, number))
    reads = log.reads
    kept = {path: path.stat().st_ino for path in (tmp_path / "table").rglob("run-*.arrow")}
    parts = json.loads((tmp_path / "table/.build/parts.json").read_text())["parts"] if number == 40 else []
    kept |= {path: path.stat().st_ino for part in parts for path in [tmp_path / "table/parts" / part["name"]]}
    assert len(kept) >= min(number, 6) + (number == 40)
    seen = {}

    def watch(name, done, total):
        seen.update({path: path.stat().st_ino for path in kept if path.exists()})
        if name == "write table" and done == total:
            assert seen == kept

    manifest = build_table(log, tmp_path / "table", CONFIG, resume=True, progress=watch)
    assert log.reads == reads
    assert {p.name for p in (tmp_path / "table").iterdir()} == {"manifest.json", "parts"}
    assert manifest.counts == open_table(tmp_path / "whole").manifest.counts
    tables = [pa.Table.from_batches(open_table(tmp_path / name).iter_rows()) for name in ("whole", "table")]
    assert tables[0].equals(tables[1])
    assert verify_table(open_table(tmp_path / "table")) == []


def test_a_stopped_rebuild_resumes_beside_the_complete_table(tmp_path):
    """--resume goes on with a stopped --overwrite; after its commit it keeps the table as it is."""
    old, new = many(num_samples=2000, seed=1), many(num_samples=2500, seed=2)
    build_table(MemoryLog(old, SCHEMA), tmp_path / "table", CONFIG)
    log = MemoryLog(new, SCHEMA, batch_samples=500)
    with pytest.raises(StoppedError):
        build_table(log, tmp_path / "table", CONFIG, overwrite=True, progress=stop_at("write table", 1))
    assert multiset(open_table(tmp_path / "table").iter_samples(), SCHEMA) == multiset([old], SCHEMA)
    assert build_table(log, tmp_path / "table", CONFIG, resume=True).generation == 1
    assert multiset(open_table(tmp_path / "table").iter_samples(), SCHEMA) == multiset([new], SCHEMA)
    assert build_table(log, tmp_path / "table", CONFIG, resume=True).generation == 1


def test_a_stopped_build_of_another_log_is_not_resumed(tmp_path):
    """Another log or other settings: one error that says how to start again."""
    log = MemoryLog(many(num_samples=2500), SCHEMA, batch_samples=500)
    with pytest.raises(StoppedError):
        build_table(log, tmp_path / "table", CONFIG, progress=stop_at("encode sessions", 2))
    other = BuildConfig(num_buckets=6, memory_bytes=1_000_000)
    with pytest.raises(TableError, match=r"expected a stopped build of the same log and settings .*without --resume"):
        build_table(log, tmp_path / "table", other, resume=True)


def test_a_full_disk_commits_nothing(tmp_path):
    """A write that fails (a file-size limit stands for a full disk) is one error, and the older table stays whole."""
    log = tmp_path / "log.parquet"
    write_log(log, 3)
    code = (
        "import resource, sys; from pathlib import Path; from recoup.core import RecoupError\n"
        "from recoup.log import ParquetLog, open_log; from recoup.table import build_table\n"
        "from tests.table.test_resume import CONFIG, SCHEMA\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "log = open_log(ParquetLog(path=sys.argv[1], schema=SCHEMA))\n"
        "try: build_table(log, Path(sys.argv[2]), CONFIG, overwrite=True)\n"
        "except RecoupError as err: print(err); sys.exit(7)\n"
    )
    build_table(open_log(ParquetLog(path=str(log), schema=SCHEMA)), tmp_path / "table", CONFIG)
    child = subprocess.run(
        [sys.executable, "-c", code, str(log), str(tmp_path / "table")], capture_output=True, text=True, check=False
    )
    assert child.returncode == 7, child.stderr
    assert "nothing was committed" in child.stdout
    assert open_table(tmp_path / "table").manifest.generation == 0
    assert [p for p in verify_table(open_table(tmp_path / "table")) if "is not in the manifest" not in p] == []
