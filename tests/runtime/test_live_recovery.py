"""Real processes killed with real signals: the others keep their rows, and the run ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest

from recoup.core import generator, read_events, to_toml
from recoup.recovery import GuardConfig
from recoup.runtime import JobError, LaunchConfig, launch
from recoup.train import CheckpointConfig, TrainConfig
from tests.train import tiny

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)  # three ranks on two cores; a minute when the machine is quiet


def run_config(num_epochs=2, every_steps=10):
    return tiny.run_config(
        table=str(tiny.table(6000).path),
        model=tiny.model(sequences=()),  # a new process compiles no attention kernels: a tenth of its start
        train=TrainConfig(num_epochs=num_epochs, dense_lr=0.01),
        checkpoint=CheckpointConfig(every_steps=every_steps),
    )


def settings(**overrides):
    values = {
        "nproc": 3,
        "verify_survivors": True,
        "silence_limit": timedelta(seconds=3),
        "back_off": timedelta(milliseconds=1),
        "max_restarts": 100,
        "guard": GuardConfig(pls_budget=1.0),
    }
    return LaunchConfig(**{**values, **overrides})


def events_of(folder, *names):
    path = folder / "events.jsonl"
    return [event for event in read_events(path) if event["event"] in names] if path.exists() else []


class Failures:
    """Inject each failure once training has gone on for some steps since the last; remember that they fired."""

    def __init__(self, folder, plan, *, gap=4):
        self._folder, self._plan, self._gap = folder, list(plan), gap
        self._next_step = gap
        self.fired = []

    def __call__(self, launcher):
        if not self._plan:
            return
        recovered = len(events_of(self._folder, "recovered"))
        steps = events_of(self._folder, "step")
        if recovered < len(self.fired) or not steps or steps[-1]["step"] < self._next_step:
            return
        if any(child.process.poll() is not None for child in launcher.ranks.values()):
            return
        ranks, number = self._plan.pop(0)
        for rank in ranks:
            os.kill(launcher.ranks[rank].pid, number)
        self._next_step = steps[-1]["step"] + self._gap
        self.fired.append((ranks, number))


def check(folder, failures, *, planned, ranks=3):
    """Every failure fired; every step was trained; survivors were verified; the ledger equals a brute-force count."""
    assert len(failures.fired) == planned
    steps = [event["step"] for event in events_of(folder, "step")]
    finished = events_of(folder, "run_finished")[0]
    assert sorted(set(steps)) == list(range(1, finished["step"] + 1))
    recovered = events_of(folder, "recovered")
    assert all(event["recovery"] == "partial" for event in recovered)
    verified = {event["generation"] for event in events_of(folder, "survivor_verified")}
    assert verified >= {event["generation"] for event in recovered}
    lost = sum(len(e["failed"]) * (e["position"] - e["checkpoint_position"]) for e in recovered if e["failed"])
    config = run_config()
    total = finished["pls"] and lost / finished["pls"] / ranks
    assert lost > 0
    assert total == pytest.approx(round(total))
    assert total >= 0.75 * 6000 * config.train.num_epochs
    losses = np.array([event["loss"] for event in events_of(folder, "step")])
    assert np.isfinite(losses).all()
    assert losses[-5:].mean() < losses[:5].mean() + 0.1


def test_twenty_failures_in_one_run_each_rank_a_frozen_one_two_at_once_X01(tmp_path):
    """Kill -9 each rank, freeze one, kill two at once, then kill at random: the job ends with every step trained.

    Survivors are bit-equal across each event, and the ledger equals the count over the events. Rows are saved by
    priority, in the background: kills meet those saves too.
    """
    kill, stop = signal.SIGKILL, signal.SIGSTOP
    rng = generator(5, "live kills")
    plan = [((0,), kill), ((1,), kill), ((2,), kill), ((1,), stop), ((0, 2), kill)]
    plan += [((int(rng.integers(0, 3)),), kill) for _ in range(15)]
    failures = Failures(tmp_path / "run", plan, gap=3)
    saves = CheckpointConfig(every_steps=8, policy="stale_use", fraction=0.25)
    config = replace(run_config(num_epochs=3), checkpoint=saves)
    launch(config, tmp_path / "run", settings(spares=2), on_poll=failures)
    check(tmp_path / "run", failures, planned=20)
    committed = events_of(tmp_path / "run", "checkpoint_committed")
    assert sum(not event["full"] for event in committed) > 10
    assert [event["full"] for event in (committed[0], committed[-1])] == [True, True]
    reports = {path.name.partition("-")[0] for path in (tmp_path / "run" / "checkpoints" / "reports").iterdir()}
    assert len(reports) <= 1, "reports of saves that were given up are removed"
    silent = events_of(tmp_path / "run", "rank_silent")
    assert 1 in {event["rank"] for event in silent}
    assert max(event["seconds"] for event in silent) < 5


def test_past_the_budget_or_when_all_are_dead_recovery_is_full(tmp_path):
    """Where PLS would pass its budget, or every rank died, all go on from the newest checkpoint: the same losses."""
    kill = signal.SIGKILL
    failures = Failures(tmp_path / "run", [((1,), kill), ((0, 1), kill)], gap=13)
    tight = settings(nproc=2, guard=GuardConfig(pls_budget=0.0))
    launch(run_config(num_epochs=1), tmp_path / "run", tight, on_poll=failures)
    (recovered,) = events_of(tmp_path / "run", "recovered")
    assert recovered["recovery"] == "full"
    assert "budget" in recovered["reason"]
    assert recovered["step"] == recovered["checkpoint_step"]
    assert events_of(tmp_path / "run", "run_finished")[0]["pls"] == 0
    assert len(failures.fired) == 2
    how = [event["how"] for event in events_of(tmp_path / "run", "generation") if event["rank"] == 0]
    assert how == ["start", "full", "resume"]
    losses = {}
    for event in events_of(tmp_path / "run", "step"):
        assert losses.setdefault(event["step"], event["loss"]) == event["loss"]


def test_no_process_outlives_its_launcher_X11(tmp_path):
    """Kill -9 the launcher: within ten seconds no rank is left; the same folder then resumes on another rank count."""
    (tmp_path / "run.toml").write_text(to_toml(run_config()))
    command = [str(Path(sys.executable).parent / "recoup"), "launch", str(tmp_path / "run.toml"), str(tmp_path / "run")]
    process = subprocess.Popen([*command, "--nproc", "2", "--spares", "1"], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(events_of(tmp_path / "run", "step")) < 15:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    result = launch(run_config(), tmp_path / "run", settings(nproc=3), resume=True)
    assert result["num_steps"] > 15
    assert [event["how"] for event in events_of(tmp_path / "run", "generation")][-1] == "resume"


def test_a_rank_that_cannot_save_ends_all_of_them_X08(tmp_path):
    """One rank's file cannot be written: every rank raises the same error, and the job ends with its name."""
    run = replace(run_config(num_epochs=1), checkpoint=CheckpointConfig(every_steps=5))
    name = "run-g0000-n00000001-s000000000005-shard0001-base.safetensors"
    in_the_way = tmp_path / "run" / "checkpoints" / "data" / name
    blocked = []

    def block(launcher):
        del launcher
        if not blocked and in_the_way.parent.is_dir():
            (in_the_way / "occupied").mkdir(parents=True)
            blocked.append(True)

    with pytest.raises(JobError, match=r"ended with an error: see its last lines in 'ranks\.log'"):
        launch(run, tmp_path / "run", settings(nproc=2), on_poll=block)
    assert blocked
    log = (tmp_path / "run" / "ranks.log").read_text()
    assert "rank 1 of 2: writing" in log
    assert [event["step"] for event in events_of(tmp_path / "run", "step")][-1] == 5
