"""How long does a killed rank stop training, and how much work does it cost, against a full restart?

Ours: the real job on three ranks under `recoup.runtime`, one rank killed (-9) again and again, with and without a warm
spare; time from the kill to the next trained step. Baseline: the same job under torchrun with elastic restarts, all
ranks restarted from the last checkpoint (`recoup.train`, the same model, table, save interval), killed once;
its lost time is the time from the kill until the step that was lost is trained again: restart and recomputation.
Steady state: what putting off table updates and making marks adds to a step (paired, one process), as if every rank had
to pay it on the cores there are, over the step of the plain job on three ranks; plus heartbeats.

    python -m benches.recovery [--quick]
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from recoup.core import read_events, to_toml, write_atomic
from recoup.log import SyntheticLog, open_log
from recoup.log.synthetic import SyntheticGroup
from recoup.model import DLRMConfig, EmbeddingTable
from recoup.reader import Modulo, ReaderConfig
from recoup.recovery import GuardConfig
from recoup.report import summary_table
from recoup.runtime import LaunchConfig, launch
from recoup.table import BuildConfig, build_table
from recoup.train import CheckpointConfig, EvaluationConfig, RunConfig, TrainConfig

RANKS = 3
ROWS = 100_000
FEATURES = (*(f"user_{i}" for i in range(4)), "hist_0", "hist_1", *(f"item_{i}" for i in range(4)))
GROUPS = (
    SyntheticGroup(
        name="user", prefix="user", num_features=4, repeat=0.95, mean_length=10, min_length=2, max_length=20
    ),
    SyntheticGroup(
        name="history", prefix="hist", num_features=2, repeat=0.75, shift=True, mean_length=20, max_length=40
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer kills; ends within 50 s on 2 cores")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = make_run(folder)
        kills = 3 if quick else 12
        spare, bare = ours(run, folder / "live", with_spare=kills, without=2 if quick else 8)
        full = torchrun(run, folder / "full")
        cost = steady_state(run, folder, full.pop("step_seconds"))
    result = {
        "seconds_kill_to_step": {"with_spare": spare["median"], "without_spare": bare["median"]},
        "kill_to_step_all": {"with_spare": spare["all"], "without_spare": bare["all"]},
        "seconds_by_phase": spare["phases"],
        "seconds_by_phase_without_spare": bare["phases"],
        "lost_seconds_full_restart": full["lost_seconds"],
        "full_restart": full,
        "lost_seconds_ratio_vs_full": full["lost_seconds"] / spare["median"],
        "lost_seconds_ratio_vs_full_without_spare": full["lost_seconds"] / bare["median"],
        "steady_state_cost": cost["cost"],
        "steady_state": cost,
        "ranks": RANKS,
    }
    rows = [
        ("kill to next step, warm spare, s", spare["median"], full["lost_seconds"] / spare["median"]),
        ("kill to next step, no spare, s", bare["median"], full["lost_seconds"] / bare["median"]),
        ("full restart under torchrun, s", full["lost_seconds"], 1.0),
        ("cost of being recoverable, share of a step", cost["cost"], None),
    ]
    note = f"{RANKS} ranks on this host; synthetic log; kills: {kills} with a spare, medians"
    Console().print(summary_table("A rank is killed", ("", "value", "times better"), rows, note).rich())
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    write_atomic(results / "recovery.json", (json.dumps(result) + "\n").encode())
    print(json.dumps(result))


def make_run(folder: Path, num_epochs: int = 400) -> RunConfig:
    log = SyntheticLog(num_samples=40_000, groups=GROUPS, num_item_features=4, num_dense=4, num_ids=ROWS, seed=1)
    build_table(open_log(log), folder / "table", BuildConfig())
    tables = tuple(
        EmbeddingTable(name=f"t_{name}", num_embeddings=ROWS, embedding_dim=32, features=(name,)) for name in FEATURES
    )
    return RunConfig(
        table=str(folder / "table"),
        reader=ReaderConfig(batch_size=512, shuffle="full", transforms=(Modulo(features=FEATURES, size=ROWS),)),
        model=DLRMConfig(tables=tables, bottom_mlp=(64,), top_mlp=(128, 64)),
        train=TrainConfig(num_epochs=num_epochs, num_threads=1, max_steps=100_000),
        evaluation=EvaluationConfig(batch_size=2048),
        checkpoint=CheckpointConfig(every_steps=40),
    )


def events_of(folder: Path, *names: str) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return [event for event in read_events(path) if event["event"] in names] if path.exists() else []


class Enough(Exception):  # noqa: N818 - it ends a job on purpose
    """The job has shown what it was started for."""


def ours(run: RunConfig, folder: Path, *, with_spare: int, without: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Kill ranks in turn, first with a warm spare, then with none; return seconds from kill to next step of both."""
    moments: list[float] = []
    looked = [0.0]

    def inject(launcher: Any) -> None:
        if time.time() - looked[0] < 0.1:
            return
        looked[0] = time.time()
        steps = events_of(folder, "step")
        since = moments[-1] if moments else 0.0
        after = [step for step in steps if step["time"] > since + 1.0]
        if len(events_of(folder, "recovered")) < len(moments) or len(after) < 5 or steps[-1]["step"] < 60:
            return
        if len(moments) == with_spare + without:
            raise Enough
        if len(moments) >= with_spare:
            while launcher.spares:
                launcher.spares.pop().kill()
        elif not spare_ready(launcher):
            return
        moments.append(time.time())
        os.kill(launcher.ranks[len(moments) % RANKS].pid, signal.SIGKILL)

    settings = LaunchConfig(
        nproc=RANKS,
        spares=1,
        max_restarts=1000,
        back_off=timedelta(milliseconds=1),
        guard=GuardConfig(pls_budget=9.0),
    )
    with contextlib.suppress(Enough):
        launch(run, folder, settings, on_poll=inject)
    assert len(moments) == with_spare + without, "every kill fired and was recovered from"
    assert all(event["recovery"] == "partial" for event in events_of(folder, "recovered"))
    return measured(folder, moments[:with_spare]), measured(folder, moments[with_spare:])


def measured(folder: Path, moments: list[float]) -> dict[str, Any]:
    """Return seconds from each kill to the first step trained after its recovery, and their phases."""
    found = [phases_of(folder, moment) for moment in moments]
    seconds = [sum(phases.values()) for phases in found]
    return {
        "median": statistics.median(seconds),
        "all": [round(s, 3) for s in seconds],
        "phases": {name: round(statistics.median(phases[name] for phases in found), 4) for name in found[0]},
    }


def phases_of(folder: Path, moment: float) -> dict[str, float]:
    """Return seconds of each phase of the recovery from a kill at `moment`."""
    events = [event for event in events_of(folder, "interrupted", "generation", "recovered", "step")]
    noticed = first(events, "interrupted", moment)["time"]
    recovered = first(events, "recovered", moment)
    ready = recovered["time"]
    restore = recovered["restore_seconds"]
    step = first(events, "step", ready)["time"]
    return {
        "notice": noticed - moment,
        "start_meet_build": ready - noticed - restore - recovered["agree_seconds"],
        "agree": recovered["agree_seconds"],
        "restore": restore,
        "first_step": step - ready,
    }


def first(events: list[dict[str, Any]], name: str, moment: float) -> dict[str, Any]:
    return next(event for event in events if event["event"] == name and event["time"] > moment)


def spare_ready(launcher: Any) -> bool:
    """Whether the spare has had the time to warm up: it uses no CPU any more."""
    return bool(launcher.spares) and all(
        time.monotonic() - child.started > 4 and psutil.Process(child.pid).cpu_percent(0.05) < 20
        for child in launcher.spares
    )


def torchrun(run: RunConfig, folder: Path) -> dict[str, Any]:
    """Run the same job under torchrun, kill one rank, and measure until the lost step is trained again."""
    settings = folder.with_suffix(".toml")
    settings.write_text(to_toml(run))
    script = Path(__file__).parent / "full_restart.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["--max-restarts=3", "--monitor-interval=0.1", str(script), str(settings), str(folder)]
    root = Path(__file__).parents[1]
    # A new store for each attempt: in the shared one restarted ranks find the addresses of the dead and wait for them.
    environment = {**os.environ, "PYTHONPATH": str(root), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL, env=environment)
    try:
        steps = wait_for(folder, lambda events: len(events) >= 75, 120)  # between the saves of steps 40 and 80
        lost = steps[-1]["step"]
        moment = time.time()
        ranks = [p for p in psutil.Process(process.pid).children() if "full_restart.py" in " ".join(p.cmdline())]
        ranks[1].kill()
        steps = wait_for(folder, lambda events: again(events, moment, lost), 240)
        done = next(e["time"] for e in steps if e["time"] > moment + 0.3 and e["step"] > lost)
        first = next(e for e in steps if e["time"] > moment + 0.3)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()
    times = [event["time"] for event in steps if 20 < event["step"] <= lost and event["time"] < moment]
    return {
        "lost_seconds": done - moment,
        "step_seconds": statistics.median(b - a for a, b in itertools.pairwise(times)),
        "restart_seconds": first["time"] - moment,
        "steps_trained_again": lost - first["step"] + 1,
    }


def again(events: list[dict[str, Any]], moment: float, lost: int) -> bool:
    return any(event["time"] > moment + 0.3 and event["step"] > lost for event in events)


def wait_for(folder: Path, ready: Any, limit: float) -> list[dict[str, Any]]:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        events = events_of(folder, "step")
        if ready(events):
            return events
        time.sleep(0.02)
    raise TimeoutError(f"the baseline did not get on within {limit} s")


def steady_state(run: RunConfig, folder: Path, job_step: float) -> dict[str, float]:
    """Return the share of a step of the job that being recoverable takes: put-off updates and marks; heartbeats."""
    from recoup.reader import SessionReader
    from recoup.recovery import Ledger
    from recoup.runtime.deferred import DeferredUpdates
    from recoup.table import open_table
    from recoup.train import Trainer
    from recoup.train.run_config import batch_schema, training_reader

    table = open_table(folder / "table")
    reader = SessionReader(table, training_reader(run, table.schema))
    schema = batch_schema(table.schema, training_reader(run, table.schema))
    plain, recoverable = (Trainer(run.model, run.train, schema) for _ in range(2))
    updates, ledger = DeferredUpdates(recoverable.model), Ledger(RANKS, 1_000_000)
    batches = list(reader)[:30]
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(160):
        batch = batches[number // 2 % len(batches)]
        began = time.perf_counter()
        if number % 2:
            updates.discard()
            watched = recoverable.step(batch)
            updates.apply()
            reader.state_dict(), ledger.state_dict()
        else:
            result = plain.step(batch)
        seconds[number % 2].append(time.perf_counter() - began)
        assert number % 2 == 0 or watched.loss == result.loss, "the same losses, to the bit"
    # Paired differences: neighbours in time do the same step on the same batch.
    base = statistics.median(seconds[0][20:])
    extra = statistics.median(b - a for a, b in zip(seconds[0][20:], seconds[1][20:], strict=True))
    beat = beat_seconds() / LaunchConfig().beat.total_seconds()
    crowding = max(1.0, RANKS / len(os.sched_getaffinity(0)))
    return {
        "cost": extra * crowding / job_step + beat,
        "step_seconds": job_step,
        "extra_seconds": extra,
        "one_process_step_seconds": base,
        "heartbeat_share": beat,
    }


def beat_seconds() -> float:
    """Return the time of one heartbeat: its calls to the store."""
    import torch.distributed as dist

    from recoup.runtime import keys

    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = keys.connect("127.0.0.1", master.port, limit=timedelta(seconds=10))
    store.set(keys.owner(0), "me")
    began = time.process_time()
    for _ in range(200):
        store.get(keys.owner(0))
        store.set(keys.beat(0), json.dumps({"phase": "training", "step": 1, "seconds": 0.5, "incarnation": "me"}))
        keys.generation_of(store)
    return (time.process_time() - began) / 200


if __name__ == "__main__":
    main()
