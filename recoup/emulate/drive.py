"""Run a whole emulation into a folder: resumable, parallel over seeds, one JSON line a run.

The folder holds `config.toml` (what was asked) and `results.jsonl` (what came out, appended as runs end). Killed at any
moment, a resumed emulation runs what is missing and nothing else; another configuration is refused.
"""

import json
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from recoup.core import Progress, no_progress, to_toml, write_atomic
from recoup.emulate.config import EmulateConfig
from recoup.emulate.data import load_dataset
from recoup.emulate.errors import EmulationError
from recoup.emulate.learner import Learner
from recoup.emulate.results import append_record, key_of, read_records
from recoup.emulate.runs import RunKey, prepare, run_seed, wanted_runs
from recoup.emulate.samples import Dataset
from recoup.emulate.sweep import clock_records

MakeLearner: TypeAlias = Callable[[EmulateConfig, Dataset, int], Learner]
Existing: TypeAlias = Literal["refuse", "overwrite", "resume"]
RESULTS = "results.jsonl"


def emulate(
    config: EmulateConfig,
    folder: Path,
    *,
    make_learner: MakeLearner,
    workers: int = 1,
    existing: Existing = "refuse",
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """Run every wanted run that `folder` does not hold yet; return all records.

    Args:
        config: what to compare.
        folder: where results go; created if absent.
        make_learner: makes a learner of the configuration for a data set and seed; a module-level function.
        workers: processes; each takes whole seeds, or parts of one if there are fewer seeds than workers.
        existing: what to do with an emulation that the folder holds: refuse, drop it, or go on with it.
        progress: called as ("emulate", runs done, runs in all).
    Raises:
        EmulationError: the folder holds results and neither is asked for, or they are of another configuration.
    """
    open_folder(config, folder, existing)
    results, wanted = folder / RESULTS, wanted_runs(config)
    records = read_records(results)
    done = {key_of(record) for record in records if record["kind"] == "run"}
    missing = [key for key in wanted if key not in done]
    progress("emulate", len(wanted) - len(missing), len(wanted))
    work = partial(_work, config, results, make_learner=make_learner)
    if workers <= 1:
        for keys in split_work(missing, 1):
            work(keys)
            progress("emulate", _count(results), len(wanted))
    elif missing:
        for _ in _in_parallel(work, split_work(missing, workers), workers):
            progress("emulate", _count(results), len(wanted))
    if not any(record["kind"] == "clock" for record in records):
        for record in clock_records(config):
            append_record(results, record)
    return read_records(results)


def open_folder(config: EmulateConfig, folder: Path, existing: Existing) -> None:
    """Make the folder ready, or refuse it.

    Raises:
        EmulationError: it holds results and neither is asked for, or they are of another configuration.
    """
    text, stored = to_toml(config), folder / "config.toml"
    if stored.exists() and existing != "overwrite":
        if existing == "refuse":
            raise EmulationError(f"{folder} holds an emulation: go on with --resume or drop it with --overwrite")
        if stored.read_text(encoding="utf-8") != text:
            raise EmulationError(f"{folder} holds an emulation of another configuration: use --overwrite")
        whole_lines = "".join(json.dumps(record) + "\n" for record in read_records(folder / RESULTS))
        write_atomic(folder / RESULTS, whole_lines.encode())  # a line cut by a kill goes
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).unlink(missing_ok=True)
    write_atomic(stored, text.encode())


def split_work(keys: Sequence[RunKey], workers: int) -> list[list[RunKey]]:
    """Return the keys in pieces of one seed each, small enough that every worker gets one."""
    seeds: dict[int, list[RunKey]] = {}
    for key in keys:
        seeds.setdefault(key.seed, []).append(key)
    pieces = math.ceil(workers / max(len(seeds), 1))
    sizes = {seed: math.ceil(len(group) / pieces) for seed, group in seeds.items()}
    return [
        group[start : start + sizes[seed]]
        for seed, group in seeds.items()
        for start in range(0, len(group), sizes[seed])
    ]


def _in_parallel(work: Callable[[list[RunKey]], None], pieces: list[list[RunKey]], workers: int) -> Iterator[None]:
    """Do every piece in a process pool; yield about once a second, so that progress can be shown."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=workers, mp_context=context) as pool:
        waiting: set[Future[None]] = {pool.submit(work, piece) for piece in pieces}
        while waiting:
            done, waiting = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
            yield
            for future in done:
                future.result()


def _work(config: EmulateConfig, results: Path, keys: Sequence[RunKey], make_learner: MakeLearner) -> None:
    """Run keys of one seed; append each record as it comes."""
    import torch

    torch.set_num_threads(1)
    dataset = load_dataset(config.data)
    bench = prepare(config, dataset, keys[0].seed, make_learner)
    facts = {"dataset": dataset.name, "synthetic": dataset.synthetic}
    for record in run_seed(bench, keys):
        append_record(results, record | facts)


def _count(results: Path) -> int:
    return sum(record["kind"] == "run" for record in read_records(results))
