"""Worker processes: same batches, bounded memory, replaced when killed or frozen, gone when the reader goes."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from recoup.core import from_table
from recoup.reader import ReaderConfig, ReaderError, SessionReader
from tests.reader.tables import plain_samples, random_sessions, samples_of, write_table

ROOT = str(Path(__file__).resolve().parents[2])


def reader_of(table, **options):
    options = {"batch_size": 7, "num_workers": 2, "prefetch": 2, **options}
    return SessionReader(table, from_table(ReaderConfig, options))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("worker", [0, 1])
def test_killed_or_frozen_worker_is_replaced_X14(tmp_path, sent, worker):
    """Kill -9 and kill -STOP of each worker: no sample lost or doubled, within the stated bound."""
    sessions = random_sessions(1, 80)
    reader = reader_of(write_table(tmp_path / "t", sessions), worker_silence_limit="2s")
    found, hit = [], None
    began = time.monotonic()
    for i, batch in enumerate(reader):
        found += samples_of(batch)
        if i == 5:
            hit = reader.worker_pids[worker]
            os.kill(hit, sent)
    assert found == plain_samples(sessions)
    assert hit not in reader.worker_pids
    assert not psutil.pid_exists(hit)
    assert time.monotonic() - began < 30
    reader.close()


def test_all_workers_killed_again_and_again_X14(tmp_path):
    """Killing both workers at two places of an epoch still yields every sample once, in order."""
    sessions = random_sessions(2, 80)
    reader = reader_of(write_table(tmp_path / "t", sessions), max_worker_restarts=6)
    found = []
    for i, batch in enumerate(reader):
        found += samples_of(batch)
        if i in (0, 9):
            for pid in reader.worker_pids:
                os.kill(pid, signal.SIGKILL)
    assert found == plain_samples(sessions)
    reader.close()


def test_restarts_are_bounded_X14(tmp_path):
    """One death more than allowed is an error that names the worker and how it ended, never a hang."""
    reader = reader_of(write_table(tmp_path / "t", random_sessions(3, 80)), max_worker_restarts=0, num_workers=1)

    def kill_after_each_batch():
        for _ in reader:
            os.kill(reader.worker_pids[0], signal.SIGKILL)

    with pytest.raises(ReaderError, match=r"got worker 0 \(pid \d+\), which ended with exit code -9"):
        kill_after_each_batch()
    reader.close()


def test_error_in_a_worker_is_the_readers_error(tmp_path):
    """Batches before the damage arrive; then the error names the file, as without workers."""
    sessions = random_sessions(4, 40)
    table = write_table(tmp_path / "t", sessions, groups_per_part=2)
    path = tmp_path / "t" / "parts" / "part-00002.parquet"
    path.write_bytes(path.read_bytes()[:100])
    outcomes = []
    for num_workers in (0, 2):
        found, reader = [], reader_of(table, num_workers=num_workers, batch_size=1)
        with pytest.raises(ReaderError, match=r"readable table part at .*part-00002.parquet") as caught:
            found.extend(sample for batch in reader for sample in samples_of(batch))
        outcomes.append((found, str(caught.value)))
        reader.close()
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == plain_samples(sessions)[: len(outcomes[0][0])] != []


def test_batches_outlive_reader_and_workers(tmp_path):
    """Tensors stay valid after later batches, the next epoch and the end of the workers; memory is not reused early."""
    sessions = random_sessions(5, 60)
    reader = reader_of(write_table(tmp_path / "t", sessions), shuffle="window", window_sessions=8)
    kept = list(reader)
    values = [samples_of(batch) for batch in kept]
    for _ in reader:
        pass
    reader.close()
    assert [samples_of(batch) for batch in kept] == values
    assert sorted(s["time"] for batch in values for s in batch) == [s["time"] for s in plain_samples(sessions)]


def test_an_epoch_left_early_can_be_read_again(tmp_path):
    """Breaking out, again and again, with full queues: the next loop begins at the first batch not trained."""
    sessions = random_sessions(6, 60)
    reader = reader_of(write_table(tmp_path / "t", sessions))
    found = []
    while len(found) < len(plain_samples(sessions)):
        for i, batch in enumerate(reader):
            found += samples_of(batch)
            reader.commit()
            if i == 3:
                break
    assert found == plain_samples(sessions)
    assert reader.epoch == 1
    reader.close()


def test_prefetch_is_bounded(tmp_path):
    """However slow the consumer, a worker holds at most `prefetch` finished batches (counted by its segments)."""
    sessions = random_sessions(7, 200)
    reader = reader_of(write_table(tmp_path / "t", sessions, rows_per_group=100), num_workers=1, prefetch=3)
    batches = iter(reader)
    next(batches)
    worker = psutil.Process(reader.worker_pids[0])
    before = None
    while before is None or before != worker.cpu_times().user or not segments(worker):
        before = worker.cpu_times().user
        time.sleep(0.3)  # not a synchronisation: waits until the worker idles, however long that takes
    assert segments(worker) <= 3 + 2
    batches.close()
    reader.close()


def segments(process):
    """Return the shared-memory segments that a process has mapped."""
    return sum("recoup-reader" in m.path for m in process.memory_maps(grouped=False))


PROGRAM = """
import sys, time
from recoup.reader import ReaderConfig, SessionReader
from tests.reader.tables import random_sessions, write_table
from pathlib import Path
table = write_table(Path(sys.argv[1]), random_sessions(8, 60))
reader = SessionReader(table, ReaderConfig(batch_size=7, num_workers=2))
batches = iter(reader)
next(batches)
print(*reader.worker_pids, flush=True)
time.sleep(600)
"""


def test_workers_end_with_their_reader_X11(tmp_path):
    """Kill -9 of the training process: within 10 s none of its workers is left, not even a stopped one."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "t")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        workers[1].suspend()
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_worker_imports_no_torch():
    """A worker costs about half a second and 150 MB less because it imports no torch and no engine."""
    code = "import sys, recoup.reader.worker; print([m for m in ('torch', 'torchrec', 'duckdb') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "[]"


def test_silence_limit_is_a_duration():
    """The bounds are durations in TOML."""
    config = from_table(ReaderConfig, {"batch_size": 1, "worker_silence_limit": "3s", "worker_stall_limit": "1m"})
    assert (config.worker_silence_limit, config.worker_stall_limit) == (timedelta(seconds=3), timedelta(minutes=1))
