"""The folder of a run: its configuration, its events, its checkpoints, its result.

config.toml      the configuration as given
events.jsonl     run_started, step (step, loss, num_samples), evaluated, checkpoint_..., run_finished
checkpoints/     the checkpoint store
result.json      written at the end: steps, losses, metrics
"""

import shutil
from pathlib import Path
from typing import Any

from recoup.core import EventLog, load_config, read_events, to_table, to_toml, write_atomic
from recoup.train.errors import TrainError
from recoup.train.run_config import RunConfig, may_change

CONFIG, EVENTS, CHECKPOINTS, RESULT = "config.toml", "events.jsonl", "checkpoints", "result.json"


def check_folder(folder: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that cannot be used as asked; nothing is changed.

    Raises:
        TrainError: it holds a run and neither was asked for; or there is nothing to resume; or the settings differ.
    """
    taken = folder.exists() and any(folder.iterdir())
    has_run = (folder / CONFIG).is_file()
    if resume and overwrite:
        raise TrainError("expected --resume or --overwrite, got both")
    if resume and not has_run:
        raise TrainError(
            f"expected a run to resume in '{folder}', got {'no ' + CONFIG if taken else 'nothing'}: check the path, "
            "or start without --resume"
        )
    if resume:
        _check_same(load_config(RunConfig, folder / CONFIG), config, folder)
    elif taken and not overwrite:
        raise TrainError(f"'{folder}' is not empty: use --resume to go on with its run, or --overwrite to start anew")
    elif taken and not has_run:
        raise TrainError(f"'{folder}' holds something other than a run: --overwrite removes runs only")


def start_folder(folder: Path, config: RunConfig) -> None:
    """Make the folder of a new run; what was there is removed."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    write_atomic(folder / CONFIG, to_toml(config).encode())


def read_losses(folder: Path) -> list[float]:
    """Return the loss of every step, from the first; of a step trained twice (before and after a resume), the last."""
    losses: dict[int, float] = {}
    for event in read_events(folder / EVENTS):
        if event["event"] == "step":
            losses[event["step"]] = event["loss"]
    return [losses[step] for step in sorted(losses)]


def event_log(folder: Path, rank: int) -> EventLog:
    """Return the run's events; only the first rank writes them."""
    return EventLog(folder / EVENTS if rank == 0 else None)


def _check_same(saved: RunConfig, now: RunConfig, folder: Path) -> None:
    before, after = _flat(to_table(saved)), _flat(to_table(now))
    for key in sorted(before | after):
        if before.get(key) != after.get(key) and not may_change(key):
            raise TrainError(
                f"run '{folder}' was started with {key} = {before.get(key)}, got {after.get(key)}: "
                "resume with the settings it was started with, or use --overwrite to start anew"
            )


def _flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return flat
