"""What other benches measured, or what is measured here and now: never a guess.

A stored result is the last JSON object in the newest file `benches/results/<bench>*` (the output of that bench, kept).
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recoup.checkpoint import CheckpointStore, SaveRequest, ShardPlan, TableView
from recoup.checkpoint.policies import StaleUse
from recoup.emulate.strategy import RECOUP_FRACTION

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Measured:
    """A figure and where it comes from."""

    value: float
    source: str


def stored_result(bench: str) -> tuple[dict[str, Any], str] | None:
    """Return the newest stored JSON result of a bench and its file's name, or None."""
    files = sorted(RESULTS.glob(f"{bench}*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files:
        for line in reversed(path.read_text(encoding="utf-8").splitlines()):
            text = line.strip().strip("`")
            if text.startswith("{") and text.endswith("}"):
                return json.loads(text), path.name
    return None


def measured_stall(num_rows: int) -> Measured:
    """Return what Recoup's own asynchronous saves stall: the stall over the save's share of a whole synchronous save.

    Read from a stored result of `benches.checkpoint` (key `stall_fraction`), else measured here: the store's own
    asynchronous priority save, the choice of rows included, against its synchronous save of everything.
    """
    stored = stored_result("checkpoint")
    if stored is not None and "stall_fraction" in stored[0]:
        return _capped(float(stored[0]["stall_fraction"]), f"benches/results/{stored[1]}")
    return _capped(stall_fraction(num_rows), f"measured in this run, {num_rows} rows of dim 64")


def _capped(fraction: float, source: str) -> Measured:
    """Return at most 1: saving synchronously is always possible; a higher figure comes from a busy machine."""
    if fraction <= 1:
        return Measured(fraction, source)
    return Measured(1.0, f"{source}: {fraction:.3g}, more than a synchronous save: taken as 1")


def measured_restart() -> Measured | None:
    """Return seconds from a kill to the next step with a hot spare (`benches.recovery`); None if not measured yet."""
    stored = stored_result("recovery")
    if stored is None:
        return None
    result, name = stored
    seconds = result.get("seconds_kill_to_step_spare", result.get("seconds_kill_to_step"))
    if isinstance(seconds, dict):
        seconds = seconds.get("spare", seconds.get("with_spare"))
    return None if seconds is None else Measured(float(seconds), f"benches/results/{name}")


def stall_fraction(num_rows: int) -> float:
    """Measure the stall fraction on a table of `num_rows` rows of dim 64 and 8 shards, on a local disk; median of 5."""
    generator = torch.Generator().manual_seed(0)
    view = TableView(
        name="t",
        weight=torch.randn(num_rows, 64, generator=generator),
        optimizer={"momentum1": torch.rand(num_rows, generator=generator)},
        first_row=0,
        num_rows_total=num_rows,
    )
    policy = StaleUse({"t": num_rows})
    stalls: list[float] = []
    wholes: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder, run_id="bench", plan=ShardPlan.by_hash({"t": num_rows}, 8))
        for step in range(3):
            began = time.perf_counter()
            store.save(SaveRequest(step=step, views={"t": view}))
            wholes.append(time.perf_counter() - began)
        for step in range(5):
            policy.observe("t", torch.randint(num_rows, (num_rows // 4,), generator=generator))
            began = time.perf_counter()
            rows = policy.select("t", int(RECOUP_FRACTION * num_rows))
            pending = store.start_save(SaveRequest(step=10 + step, views={"t": view}, rows={"t": rows}))
            policy.saved("t", rows)
            stalls.append(time.perf_counter() - began)
            pending.result()
        store.close()
    return sorted(stalls)[2] / (RECOUP_FRACTION * sorted(wholes)[1])
