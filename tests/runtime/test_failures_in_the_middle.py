"""Failures where it hurts: during a save, during a recovery, a rank that is slow, a host that is gone."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from recoup.core import to_toml
from recoup.failures import Injection, Injector
from recoup.runtime import launch
from tests.runtime.test_live_recovery import ROOT, events_of, run_config, settings

pytestmark = pytest.mark.timeout(200)  # several processes on two cores; seconds when the machine is quiet


def all_steps_trained(folder):
    finished = events_of(folder, "run_finished")[0]["step"]
    return sorted({event["step"] for event in events_of(folder, "step")}) == list(range(1, finished + 1))


def test_killed_during_saves_and_during_a_recovery(tmp_path):
    """With a save after every step kills hit saves; killing a survivor in a recovery starts another."""
    folder = tmp_path / "run"
    injector = Injector(
        [
            *(Injection(rank=rank, step=number) for number, rank in enumerate((1, 2, 0))),
            Injection(rank=1, step=3),
            Injection(rank=0, step=4, action="kill during recovery"),
        ]
    )
    pids = {}

    def inject(launcher):
        number = len(injector.fired)
        steps = events_of(folder, "step")
        if number == 4 and launcher.ranks[1].pid != pids.get(1):  # rank 1's next process has just been started
            kill(launcher, 0)
        elif number < 4 and len(events_of(folder, "recovered")) >= number and len(steps) >= 4 * (number + 1):
            recent = events_of(folder, "recovered")
            if not recent or steps[-1]["time"] > recent[-1]["time"]:
                kill(launcher, injector.pending[0].rank)

    def kill(launcher, rank):
        if launcher.ranks[rank].process.poll() is None:
            (injection,) = injector.due(rank=rank, step=len(injector.fired))
            pids[injection.rank] = launcher.ranks[rank].pid
            os.kill(launcher.ranks[rank].pid, signal.SIGKILL)

    config = run_config(num_epochs=1, every_steps=1)
    launch(config, folder, settings(), on_poll=inject)
    injector.check_fired()
    assert all_steps_trained(folder)
    assert "saving" in {event["phase"] for event in events_of(folder, "interrupted")}
    last = events_of(folder, "recovered")[-1]
    assert last["failed"] == [0, 1]
    assert last["generation"] >= 5
    verified = {event["generation"] for event in events_of(folder, "survivor_verified")}
    assert last["generation"] in verified
    lost = sum(len(e["failed"]) * (e["position"] - e["checkpoint_position"]) for e in events_of(folder, "recovered"))
    pls = events_of(folder, "run_finished")[0]["pls"]
    assert (pls > 0) == (lost > 0)


def test_a_slow_rank_is_named_and_replaced_X01(tmp_path):
    """A rank whose reader stands still longer than the limit is killed, named, and the run goes on to its end."""
    folder = tmp_path / "run"
    config = run_config(num_epochs=1)
    reader = replace(config.reader, num_workers=1, prefetch=1, worker_silence_limit=timedelta(minutes=5))
    frozen = []

    def freeze(launcher):
        if not frozen and len(events_of(folder, "step")) >= 5:
            for worker in psutil.Process(launcher.ranks[1].pid).children(recursive=True):
                os.kill(worker.pid, signal.SIGSTOP)
                frozen.append(worker)

    limits = settings(nproc=2, stall_limit=timedelta(seconds=12))
    launch(replace(config, reader=reader), folder, limits, on_poll=freeze)
    slow = events_of(folder, "rank_slow")[0]
    assert frozen
    assert (slow["rank"], slow["phase"]) == (1, "reading")
    assert 12 < slow["seconds"] < 14
    assert all_steps_trained(folder)
    _, alive = psutil.wait_procs(frozen, timeout=5)
    for worker in alive:  # a stopped worker cannot end by itself
        worker.kill()


def test_a_lost_host_comes_back_and_the_others_kept_their_rows(tmp_path):
    """Kill -9 the launcher of host 1: host 0 waits, host 1 is started again by the same command, the run goes on."""
    folder = tmp_path / "run"
    (tmp_path / "run.toml").write_text(to_toml(run_config(num_epochs=3)))
    command = [str(Path(sys.executable).parent / "recoup"), "launch", str(tmp_path / "run.toml"), str(folder)]
    command += ["--nproc", "1", "--nnodes", "2", "--store", f"127.0.0.1:{free_port()}", "--pls-budget", "1"]

    def start(node):
        return subprocess.Popen([*command, "--node-rank", str(node)], cwd=ROOT, stdout=subprocess.DEVNULL)

    hosts = [start(0)]
    try:
        wait_for(lambda: (folder / "launch.toml").exists(), hosts)
        hosts.append(start(1))
        wait_for(lambda: len(events_of(folder, "step")) >= 5, hosts)
        children = psutil.Process(hosts[1].pid).children(recursive=True)
        hosts[1].kill()
        hosts[1].wait()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert alive == []
        hosts[1] = start(1)
        assert [host.wait(timeout=120) for host in hosts] == [0, 0]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    recovered = [event for event in events_of(folder, "recovered") if event["failed"]]
    assert [(event["failed"], event["recovery"]) for event in recovered] == [([1], "partial")]
    assert all_steps_trained(folder)


def wait_for(condition, hosts, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert all(host.poll() is None for host in hosts)
        time.sleep(0.05)  # polls another process's files


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
