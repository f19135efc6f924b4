"""Kill (-9) processes that save in a loop, and restore after every kill: `python -m benches.checkpoint --kills 200`.

A saver changes a quarter of the rows a step, known from the step's number alone, and saves them (every eighth step
saves all), with compaction and retention under way. After each kill the newest checkpoint must restore, be none older
than the saver reported as committed, and hold every row as of its step, bit for bit.
"""

import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recoup.checkpoint import CheckpointStore, SaveRequest, ShardPlan, StoreConfig, TableView

ROWS = {"large": 4_000, "small": 300}
QUARTERS = 4


def kill_savers(number: int, *, seed: int = 0) -> dict[str, Any]:
    """Return what was seen; an assertion fails if a checkpoint was lost or wrong."""
    torch.set_num_threads(1)  # the savers are forked
    rng = random.Random(seed)
    seen = {"kills": 0, "kills_while_a_file_was_written": 0, "kills_between_commit_and_report": 0, "last_step": 0}
    with tempfile.TemporaryDirectory(prefix="recoup-bench-kills-") as folder:
        reported = 0
        while seen["kills"] < number:
            reader, writer = os.pipe()
            before = set(Path(folder).rglob(".*"))
            saver = _fork(folder, reader, writer)
            os.close(writer)
            with os.fdopen(reader) as reports:
                assert reports.readline() == "ready\n"
                if not reported:
                    reported = int(reports.readline())  # from here on a checkpoint exists
                time.sleep(rng.uniform(0.0, 0.5))
                os.kill(saver, signal.SIGKILL)
                assert os.WTERMSIG(os.waitpid(saver, 0)[1]) == signal.SIGKILL
                reported = max([reported, *(int(line) for line in reports)])
            half_written = set(Path(folder).rglob(".*")) - before
            restored = _check(folder, reported)
            seen["kills"] += 1
            seen["kills_while_a_file_was_written"] += bool(half_written)
            seen["kills_between_commit_and_report"] += restored > reported
            seen["last_step"] = reported = restored
    assert seen["last_step"] > number // 20, f"expected savers to commit between kills, got {seen}"
    return seen


def _fork(folder: str, reader: int, writer: int) -> int:
    saver = os.fork()
    if saver:
        return saver
    try:
        os.close(reader)
        _save_forever(folder, writer)
    finally:
        os._exit(1)


def _save_forever(folder: str, writer: int) -> None:
    store, views = _store(folder), _views()
    step = int(store.restore(views).extra["step"]) if store.latest() else 0
    os.write(writer, b"ready\n")
    while True:
        step += 1
        rows = {name: _rows(total, step) for name, total in ROWS.items()}
        for name, chosen in rows.items():
            for part in views[name].parts().values():
                part[chosen] = float(step)
        request = SaveRequest(step=step, views=views, rows=None if step % 8 == 1 else rows, extra={"step": step})
        os.write(writer, f"{store.start_save(request).result().step}\n".encode())


def _check(folder: str, reported: int) -> int:
    """Return the step restored, after comparing every row with what that step must hold."""
    store, views = _store(folder), _views(fill=-1.0)
    step = int(store.restore(views).extra["step"])
    store.close()
    assert step >= reported, f"expected a checkpoint of step {reported} or later, got {step}"
    for name, total in ROWS.items():
        quarter = torch.arange(total) % QUARTERS
        expected = (step - (step - quarter) % QUARTERS).clamp(min=0).float()
        for part in views[name].parts().values():
            assert torch.equal(part.reshape(total, -1), expected[:, None].expand(total, part.numel() // total))
    return step


def _rows(total: int, step: int) -> Tensor:
    return torch.arange(step % QUARTERS, total, QUARTERS)


def _store(folder: str) -> CheckpointStore:
    return CheckpointStore(folder, "kills", ShardPlan.by_hash(ROWS, 4), config=StoreConfig(keep=2, max_chain=3))


def _views(fill: float = 0.0) -> dict[str, TableView]:
    return {
        name: TableView(
            name=name,
            weight=torch.full((total, 16), fill),
            optimizer={"momentum1": torch.full((total,), fill)},
            first_row=0,
            num_rows_total=total,
        )
        for name, total in ROWS.items()
    }
