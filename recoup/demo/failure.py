"""Lose one emulated embedding shard in mid-training, go on by partial recovery, and say what it cost.

The table rows of one process are spread over emulated shards by hash, as the paper emulates a cluster (CPR, arXiv
2011.02999). Training saves now and then; at the failure the shard's rows are overwritten with noise, the guard decides,
and only that shard is read back from the last checkpoint. Everything else goes on as it is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recoup.checkpoint import CheckpointStore, SaveRequest, ShardPlan, TableView
from recoup.core import EventLog, Progress, no_progress
from recoup.demo.errors import DemoError
from recoup.reader import SessionReader
from recoup.recovery import POSITION, FailureNotice, GuardConfig, Ledger, recover
from recoup.table import open_table
from recoup.train import Metrics, RunConfig, Trainer
from recoup.train.run_config import batch_schema, evaluation_reader, training_reader


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureConfig:
    """What fails when."""

    num_shards: int = 8
    """Emulated embedding shards; CPR emulates 8."""
    shard: int = 3
    """The one that is lost."""
    saves: int = 4
    """Whole saves over the run, the first before the first step."""
    at: float = 0.7
    """When it is lost, as a share of the run: between two saves."""
    pls_budget: float = 0.1
    """CPR's budget for quality on par."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureResult:
    """What the failure cost."""

    step: int
    """Last step before the failure."""
    checkpoint_step: int
    """Step of the checkpoint that the shard came back from."""
    decision: str
    reason: str
    pls: float
    """Portion of lost samples."""
    rows_lost: int
    rows_restored: int
    survivors_changed: int
    """Rows of other shards that the recovery changed; must be 0."""
    metrics: dict[str, Any]
    """Quality at the end."""


def train_through_failure(
    config: RunConfig, folder: Path, failure: FailureConfig, *, progress: Progress = no_progress
) -> FailureResult:
    """Train the run of `config`, lose a shard, recover it, and evaluate.

    Raises:
        DemoError: the recovery changed a survivor's row.
    """
    table = open_table(config.table)
    reader_config = training_reader(config, table.schema)
    trainer = Trainer(config.model, config.train, batch_schema(table.schema, reader_config))
    views = trainer.table_views()
    plan = ShardPlan.by_hash({name: view.num_rows_total for name, view in views.items()}, failure.num_shards)
    events = EventLog(folder / "events.jsonl")
    folder.mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(str(folder / "checkpoints"), "failure", plan, events=events)
    reader = SessionReader(table, reader_config)
    total_steps = reader.steps_left * config.train.num_epochs
    job = _Job(trainer, store, Ledger(failure.num_shards, _total_samples(reader, config)), views, plan, events)
    fail_at = int(total_steps * failure.at)
    save_every = max(1, total_steps // failure.saves)
    job.save()
    outcome: dict[str, Any] = {}
    for _ in range(config.train.num_epochs):
        for batch in reader:
            result = trainer.step(batch)
            job.num_samples += result.num_samples
            if trainer.num_steps % save_every == 0:
                job.save()
            if trainer.num_steps == fail_at:
                outcome = job.lose_and_recover(failure)
            progress("train through a failure", trainer.num_steps, total_steps)
    metrics = _evaluate(config, trainer)
    store.close()
    return FailureResult(**outcome, metrics=metrics.to_dict())


@dataclass(slots=True)
class _Job:
    trainer: Trainer
    store: CheckpointStore
    ledger: Ledger
    views: dict[str, TableView]
    plan: ShardPlan
    events: EventLog
    num_samples: int = 0

    def save(self) -> None:
        request = SaveRequest(
            step=self.trainer.num_steps,
            views=self.views,
            dense=self.trainer.dense_state(),
            extra={POSITION: self.num_samples},
        )
        self.store.save(request)
        self.ledger.saved(self.num_samples)

    def lose_and_recover(self, failure: FailureConfig) -> dict[str, Any]:
        shard = failure.shard
        lost = {name: self.plan.rows_of(name, shard) for name in self.views}
        kept = {name: view.weight.detach().clone() for name, view in self.views.items()}
        with torch.no_grad():
            for name, view in self.views.items():
                view.weight[lost[name]] = float("nan")
        notice = FailureNotice(shards=(shard,), position=self.num_samples, staleness_seconds=0.0, num_dense_replicas=1)
        budget = GuardConfig(pls_budget=failure.pls_budget)
        done = recover(self.store, self.views, notice, self.ledger, budget, self.events)
        assert done.decision is not None
        if done.dense is not None:
            self.trainer.load_dense_state(done.dense)
        changed = 0
        for name, view in self.views.items():
            survivors = torch.ones(view.num_rows_total, dtype=torch.bool)
            survivors[lost[name]] = False
            changed += int((view.weight.detach() != kept[name]).any(dim=1)[survivors].sum())
        if changed and done.recovery == "partial":
            raise DemoError(f"expected no survivor's row to change in a partial recovery, got {changed}")
        return {
            "step": self.trainer.num_steps,
            "checkpoint_step": done.manifest.step,
            "decision": done.recovery,
            "reason": done.decision.reason,
            "pls": self.ledger.pls,
            "rows_lost": sum(rows.numel() for rows in lost.values()),
            "rows_restored": sum(entry.num_rows for entry in done.manifest.chain(shard)),
            "survivors_changed": changed,
        }


def _total_samples(reader: SessionReader, config: RunConfig) -> int:
    """Return the samples of the run, the last batches counted as full ones."""
    return max(1, reader.steps_left * config.reader.batch_size * config.train.num_epochs)


def _evaluate(config: RunConfig, trainer: Trainer) -> Metrics:
    table = open_table(config.table)
    return trainer.evaluate(SessionReader(table, evaluation_reader(config, table.schema)))
