"""Kills (-9) and failing ranks: there is always a complete checkpoint, and every rank hears of a failure."""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from recoup.checkpoint import StoreConfig
from tests.checkpoint.builders import contents, make_store, make_views, request, same
from tests.checkpoint.saver import WORLD, rows_of_step

ROOT = Path(__file__).parents[2]


@contextmanager
def saver(mode, folder):
    """Start the process of `saver.py`; yield it when it is ready."""
    command = [sys.executable, "-m", "tests.checkpoint.saver", mode, str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def as_of(number):
    """Return every row as step `number` left it."""
    views = make_views()
    rows_of_step(views, number)
    return contents(views)


@pytest.fixture
def memory_folder():
    """Yield a folder of a file system in memory, where there is one: flushing is quick, kills come at any stage."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


def test_kills_leave_a_loadable_checkpoint_C01(memory_folder):
    """After each kill at a random moment the newest checkpoint restores, and is none older than was reported.

    20 kills here; `python -m benches.checkpoint --kills 200` makes 200.
    """
    store = make_store(memory_folder, kind="hash")
    rng = random.Random(5)
    reported, kills = 0, 0
    with saver("forever", memory_folder) as process:
        while kills < 20:
            process.stdin.write("start\n")
            if reported == 0 or rng.random() < 0.3:
                reported = int(process.stdout.readline().split()[1])
            time.sleep(rng.uniform(0.001, 0.02))  # the random moment
            process.stdin.write("kill\n")
            while (line := process.stdout.readline().split())[0] == "saved":
                reported = int(line[1])
            assert line == ["dead", "9"]
            kills += 1
            views = make_views(seed=8)
            number = store.restore(views).extra["at"]
            assert number >= reported
            for table, parts in as_of(number).items():
                if table != "tiny":  # rows of "tiny" are saved every fourth step
                    assert torch_equal(views[table], parts)
    assert reported > 5
    assert kills == 20


def torch_equal(view, parts):
    """Whether a table equals a copy."""
    return same({view.name: view}, {view.name: parts})


def test_kill_inside_a_slow_write_leaves_the_older_checkpoint_C04(tmp_path):
    """Killed in the middle of any file of a save, the manifest included, the older one is there whole and is used."""
    files_of_a_save = 3 + 1 + 1  # shards, dense, manifest
    with saver("slow", tmp_path) as process:
        for stop_at in range(files_of_a_save):
            process.stdin.write(f"{stop_at}\n")
            assert process.stdout.readline() == "stopped\n"
            folder = tmp_path / str(stop_at)
            assert make_store(folder).latest().step == 1  # while the write is under way
            process.stdin.write("kill\n")
            assert process.stdout.readline() == "dead 9\n"
            views = make_views(seed=8)
            store = make_store(folder, config=StoreConfig(keep=1))
            assert store.restore(views).extra == {"at": 1}
            assert same(views, as_of(1))
            rows_of_step(views, 3)  # the next save replaces what is left of the dead one
            store.save(request(views, 3))
            store.save(request(views, 4))
            assert [manifest.step for manifest in store.checkpoints()] == [4, 3]
            held = {path.stem.split("-s")[1][:12] for path in (folder / "data").iterdir()}
            assert held == {f"{3:012d}", f"{4:012d}"}


def test_failing_rank_fails_all_or_none_X08(memory_folder):
    """When a rank's disk is full, its rows are NaN, or it is killed, all raise one error; the next save succeeds."""
    outcomes = defaultdict(dict)
    with saver("together", memory_folder) as process:
        for line in process.stdout:
            outcome = json.loads(line)
            outcomes[outcome["case"], outcome["step"]][outcome["rank"]] = outcome
    assert max(got["seconds"] for ranks in outcomes.values() for got in ranks.values()) < 30
    assert len({got["got"] for got in outcomes["-1-none", 2].values()}) == 1
    check_saved_together(memory_folder)
    for failing, how, words in (
        *((rank, "full", "File too large") for rank in range(WORLD)),
        *((rank, "fuller", "could not write its report") for rank in (0, 1)),
        (1, "nan", "NaN or infinity in weight of table 'users', row 36"),
    ):
        case = f"{failing}-{how}"
        assert len(outcomes[case, 1]) == len(outcomes[case, 3]) == WORLD
        errors = {got["error"] for got in outcomes[case, 2].values()}
        assert len(outcomes[case, 2]) == WORLD
        assert len(errors) == 1
        (error,) = errors
        assert error.startswith(f"rank {failing} of 3")
        assert words in error
        assert len({got["got"] for got in outcomes[case, 3].values()}) == 1
        store = make_store(memory_folder, shards=WORLD, run_id=f"fail{failing}{how}")
        assert [manifest.step for manifest in store.checkpoints()] == [3, 1]
    killed = outcomes["2-killed", 2]
    assert {rank: got["error"] for rank, got in killed.items()} == dict.fromkeys(
        (0, 1), "ranks [2] did not report a save within 3.0 s: are they alive"
    )
    assert make_store(memory_folder, shards=WORLD, run_id="fail2killed").latest().step == 1


def check_saved_together(folder):
    """What three ranks saved in steps 2 (all rows) and 3 (every third user) is in the checkpoint of step 3."""
    found = make_views(seed=8)
    assert make_store(folder, shards=WORLD, run_id="fail-1none").restore(found).extra == {"at": 3}
    for rank in range(WORLD):
        second, third = (make_views(part=(rank, WORLD)) for _ in range(2))
        for number in (1, 2):
            rows_of_step(second, number)
        for number in (1, 2, 3):
            rows_of_step(third, number)
        for name, view in second.items():
            numbers = torch.arange(view.first_row, view.first_row + view.weight.shape[0])
            newer = (numbers % 3 == 0) & (name == "users")
            for part, rows in view.parts().items():
                saved = found[name].parts()[part][numbers]
                assert torch.equal(saved[~newer], rows[~newer])
                assert torch.equal(saved[newer], third[name].parts()[part][newer])
