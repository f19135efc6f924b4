"""Atomic files, event logs, seeds and versioned states."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recoup.core import EventLog, StateError, check_state, derive_seed, generator, read_events, write_atomic

_WRITER = """
import sys, itertools
from pathlib import Path
from recoup.core import write_atomic
print("ready", flush=True)
for i in itertools.count():
    write_atomic(Path(sys.argv[1]), bytes([i % 251]) * 200_000)
"""


def test_a_killed_writer_leaves_a_whole_file_C01(tmp_path: Path):
    """Kill -9 at a random moment of a rewrite leaves one whole version of the file."""
    path = tmp_path / "state.bin"
    write_atomic(path, b"\x00" * 200_000)
    rng = generator(7, "kills")
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        try:
            process.wait(timeout=float(rng.uniform(0.01, 0.05)))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        data = path.read_bytes()
        assert len(data) == 200_000
        assert len(set(data)) == 1


def test_events_come_back_in_order_and_a_cut_line_is_left_out(tmp_path: Path):
    """What was emitted is read back; a line cut by a kill is not an event."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path, clock=lambda: 1.5, rank=2)
    log.emit("saved", step=3)
    log.bind(generation=1).emit("restored", step=4)
    with path.open("a") as file:
        file.write('{"event": "cut')
    assert list(read_events(path)) == [
        {"event": "saved", "time": 1.5, "rank": 2, "step": 3},
        {"event": "restored", "time": 1.5, "rank": 2, "generation": 1, "step": 4},
    ]


def test_a_log_without_a_path_keeps_nothing():
    """Library use without a run folder costs nothing."""
    EventLog().emit("saved", step=1)


def test_seeds_depend_on_every_part_of_the_path():
    """Streams of different names differ; the same name gives the same stream."""
    seeds = {derive_seed(1), derive_seed(2), derive_seed(1, "a"), derive_seed(1, "a", 0), derive_seed(1, "a", "0")}
    assert len(seeds) == 5
    assert generator(1, "a").integers(1 << 40) == generator(1, "a").integers(1 << 40)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"version": 2, "step": 1}, "expected a state of version 1, got 2"),
        ({"step": 1}, "expected a state of version 1, got None"),
        ({"version": 1}, "expected key 'step'"),
        ({"version": 1, "step": 1, "extra": 0}, "unknown key 'extra'"),
    ],
)
def test_foreign_states_are_refused(state, message):
    """A state of another version or shape is refused with the owner and the key."""
    with pytest.raises(StateError, match=f"reader: .*{message}"):
        check_state(state, version=1, keys={"step"}, owner="reader")
