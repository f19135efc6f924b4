"""The demo's stages; each returns plain values that the summary shows and a resumed demo reuses.

table     log -> session table, and the same samples as ordinary row-per-sample Parquet in time order
readers   samples/s of both
dedup     the model trained on deduplicated batches
plain     the same training on plain KJT batches: the losses must agree
failure   the same training again; a shard is lost on the way
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from recoup.core import Progress
from recoup.demo.errors import DemoError
from recoup.demo.failure import FailureConfig, train_through_failure
from recoup.demo.movielens import TRAIN_SHARE, movielens_build, movielens_log, movielens_run
from recoup.demo.plain_rows import read_plain_rows
from recoup.jagged import measured_factor, to_kjt
from recoup.log import open_log
from recoup.reader import SessionReader
from recoup.table import SessionTable, build_table, open_table
from recoup.table.inspect import inspect_table
from recoup.train import train
from recoup.train.metrics import BinaryMetrics
from recoup.train.ranks import Ranks
from recoup.train.run_config import training_reader

LOSS_TOLERANCE = 5e-3
"""Largest difference of two losses of the same step, with and without deduplication. The forward pass of a step is
equal; gradients are sums of the same numbers in another order, off by a few eps, and a training run amplifies that:
seen over 316 steps and 5 seeds, at most 1.1e-3."""
_READ_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoConfig:
    """What the demo runs."""

    num_epochs: int = 4
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage of the demo in a folder."""

    name: str
    run: Callable[[Path, DemoConfig, Progress], dict[str, Any]]


def table_stage(folder: Path, config: DemoConfig, progress: Progress) -> dict[str, Any]:
    """Build the session table and the ordinary file of the same samples."""
    del config
    source = open_log(movielens_log())
    manifest = build_table(source, folder / "table", movielens_build(), overwrite=True, progress=progress)
    table = open_table(folder / "table")
    row_bytes = table.export_rows(folder / "rows.parquet", progress=progress)
    clustered_bytes = table.export_rows(folder / "rows_by_session.parquet", order="session", progress=progress)
    facts = inspect_table(table, progress=progress)
    return {
        "log_bytes": source.num_bytes,
        "table_bytes": table.num_bytes,
        "row_bytes": row_bytes,
        "clustered_bytes": clustered_bytes,
        "counts": asdict(manifest.counts),
        "groups": [asdict(group) for group in facts.groups],
        "samples_per_session": facts.samples_per_session,
        "baselines": _baselines(table),
    }


def readers_stage(folder: Path, config: DemoConfig, progress: Progress) -> dict[str, Any]:
    """Measure both readers: from file to ready batches of 1,024, in their own order, each for about two seconds."""
    run = movielens_run(folder / "table", dedup=True, num_epochs=1, seed=config.seed)
    table = open_table(folder / "table")
    reader_config = training_reader(run, table.schema)
    features, dense = reader_config.features, table.schema.dense_names
    factors: dict[str, list[float]] = {group.name: [] for group in table.schema.groups if group.name}
    sessions = SessionReader(table, reader_config)
    for batch in sessions:
        for name, seen in factors.items():
            if name in batch.sparse.inverse:
                seen.append(measured_factor(batch.sparse, name))

    def deduplicated() -> int:
        return sum(batch.num_samples for batch in SessionReader(table, reader_config))

    def plain() -> int:
        rows = read_plain_rows(folder / "rows.parquet", features, dense, "label", 1024)
        return sum(batch.labels.shape[0] for batch in rows)

    rates = {}
    for number, (name, read) in enumerate((("deduplicated", deduplicated), ("plain", plain))):
        read()
        rates[name] = _rate(read)
        progress("measure readers", number + 1, 2)
    return {
        "samples_per_second": rates,
        "batch_factors": {name: float(np.mean(seen)) for name, seen in factors.items() if seen},
        "sessions_per_batch": sessions.report.sessions_per_batch,
        "ids_per_batch": _ids_per_batch(table, run),
    }


def train_stage(dedup: bool) -> Callable[[Path, DemoConfig, Progress], dict[str, Any]]:
    """Return the stage that trains with or without deduplication."""

    def stage(folder: Path, config: DemoConfig, progress: Progress) -> dict[str, Any]:
        run = movielens_run(folder / "table", dedup=dedup, num_epochs=config.num_epochs, seed=config.seed)
        target = folder / ("run_deduplicated" if dedup else "run_plain")
        result = train(run, target, overwrite=target.exists(), progress=progress)
        return {
            "losses": list(result.losses),
            "metrics": result.metrics.to_dict(),
            "num_steps": result.num_steps,
            "step_seconds": result.step_seconds,
        }

    return stage


def failure_stage(folder: Path, config: DemoConfig, progress: Progress) -> dict[str, Any]:
    """Train once more and lose a shard on the way."""
    run = movielens_run(folder / "table", dedup=True, num_epochs=config.num_epochs, seed=config.seed)
    return asdict(train_through_failure(run, folder / "failure", FailureConfig(), progress=progress))


STAGES = (
    Stage(name="table", run=table_stage),
    Stage(name="readers", run=readers_stage),
    Stage(name="dedup", run=train_stage(dedup=True)),
    Stage(name="plain", run=train_stage(dedup=False)),
    Stage(name="failure", run=failure_stage),
)


def check_losses(results: dict[str, dict[str, Any]]) -> float:
    """Return the largest difference of the two loss curves.

    Raises:
        DemoError: it is beyond the bound: deduplication changed the model.
    """
    curves = [np.asarray(results[name]["losses"]) for name in ("dedup", "plain")]
    if curves[0].shape != curves[1].shape:
        raise DemoError(f"expected as many steps with and without deduplication, got {[len(c) for c in curves]}")
    difference = float(np.abs(curves[0] - curves[1]).max(initial=0.0))
    if not difference <= LOSS_TOLERANCE:
        raise DemoError(f"expected equal losses (within {LOSS_TOLERANCE}) without deduplication, got {difference} off")
    return difference


def _rate(read: Callable[[], int]) -> float:
    began, samples = time.perf_counter(), 0
    while time.perf_counter() - began < _READ_SECONDS:
        samples += read()
    return samples / (time.perf_counter() - began)


def _ids_per_batch(table: SessionTable, run: Any) -> dict[str, float]:  # noqa: ANN401
    reader_config = training_reader(run, table.schema)
    stored, expanded, batches = 0, 0, 0
    for batch in SessionReader(table, reader_config):
        stored += sum(rows.values.numel() for rows in batch.sparse.rows.values())
        expanded += to_kjt(batch.sparse).values().numel()
        batches += 1
    return {"deduplicated": stored / max(1, batches), "plain": expanded / max(1, batches)}


def _baselines(table: SessionTable) -> dict[str, float | None]:
    """AUC on the test part of two rules without a model: the film's mean label, and that plus the user's."""
    columns = [table.schema.time, "label", "item_id", "user_mean"]
    samples = pa.Table.from_batches(table.iter_samples(columns)).combine_chunks()
    time_n, label, user_mean = (samples.column(name).to_numpy() for name in (columns[0], "label", "user_mean"))
    film = np.concatenate([chunk.flatten().to_numpy() for chunk in samples.column("item_id").chunks])
    order = np.argsort(time_n, kind="stable")
    split = int(TRAIN_SHARE * len(order))
    train_n, test_n = order[:split], order[split:]
    size = int(film.max()) + 1
    prior = float(label[train_n].mean())
    sums = np.bincount(film[train_n], weights=label[train_n], minlength=size)
    film_mean = (sums + 5 * prior) / (np.bincount(film[train_n], minlength=size) + 5)
    scores = {"film_mean": film_mean[film], "film_and_user_mean": film_mean[film] + user_mean - prior}
    return {name: _auc(score[test_n], label[test_n]) for name, score in scores.items()}


def _auc(scores: "np.ndarray[Any, Any]", labels: "np.ndarray[Any, Any]") -> float | None:
    metrics = BinaryMetrics()
    metrics.add(torch.from_numpy(scores.astype(np.float32)), torch.from_numpy(labels.copy()))
    auc = metrics.result(Ranks.join(torch.device("cpu"))).auc
    return None if auc != auc else auc
