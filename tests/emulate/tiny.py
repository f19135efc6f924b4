"""A learner of forty lines: logistic regression on pooled rows, row-wise Adagrad, plain torch, deterministic."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch


@dataclass
class TinyLearner:
    num_rows: dict
    num_dense: int
    dim: int = 4
    seed: int = 0
    lr: float = 0.1
    tables: dict = field(init=False)

    def __post_init__(self):
        rng = torch.Generator().manual_seed(self.seed)
        self.tables = {
            name: SimpleNamespace(
                weight=torch.randn(rows, self.dim, generator=rng) * 0.1, optimizer={"momentum1": torch.zeros(rows)}
            )
            for name, rows in self.num_rows.items()
        }
        self.dense = torch.zeros(self.num_dense + self.dim * len(self.tables) + 1)

    def table_views(self):
        return self.tables

    def dense_state(self):
        return {"dense": self.dense}

    def load_dense_state(self, state):
        self.dense = state["dense"].clone()

    def ids_by_table(self, batch):
        return {key: rows.values for key, rows in batch.sparse.rows.items()}

    def features(self, batch):
        pooled = []
        for key, table in self.tables.items():
            rows = batch.sparse.rows[key]
            sample = torch.repeat_interleave(torch.arange(batch.num_samples), rows.length)
            pooled.append(torch.zeros(batch.num_samples, self.dim).index_add_(0, sample, table.weight[rows.values]))
        return torch.cat([batch.dense, *pooled, torch.ones(batch.num_samples, 1)], dim=1)

    def step(self, batch):
        features = self.features(batch)
        error = torch.sigmoid(features @ self.dense) - batch.labels[:, 0]
        for i, (key, table) in enumerate(self.tables.items()):
            rows = batch.sparse.rows[key]
            sample = torch.repeat_interleave(torch.arange(batch.num_samples), rows.length)
            weights = self.dense[self.num_dense + i * self.dim :][: self.dim] + 0.3
            grad = torch.zeros_like(table.weight).index_add_(0, rows.values, error[sample, None] * weights)
            table.optimizer["momentum1"] += grad.square().mean(dim=1)
            table.weight -= self.lr * grad / (table.optimizer["momentum1"][:, None].sqrt() + 1e-8)
        self.dense -= 0.01 * features.T @ error
        return error

    def evaluate(self, batches):
        scores = np.concatenate([(self.features(b) @ self.dense).numpy() for b in batches])
        labels = np.concatenate([b.labels[:, 0].numpy() for b in batches])
        ranks = np.empty(scores.size)
        ranks[np.argsort(scores)] = np.arange(1, scores.size + 1)
        positive = labels == 1
        auc = (ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / (positive.sum() * (~positive).sum())
        return SimpleNamespace(auc=float(auc), log_loss=float(np.logaddexp(0, -scores * (2 * labels - 1)).mean()))


@dataclass
class HashShards:
    """Row r of every table is in shard r mod n."""

    num_rows: dict
    num_shards: int

    def rows_of(self, table, shard):
        return torch.arange(self.num_rows[table])[shard :: self.num_shards]


class MostAccessed:
    """MFU in five lines."""

    def __init__(self, num_rows):
        self.counts = {table: torch.zeros(rows) for table, rows in num_rows.items()}

    def observe(self, table, ids):
        self.counts[table].index_add_(0, ids, torch.ones(ids.numel()))

    def select(self, table, num_rows):
        return self.counts[table].topk(min(num_rows, self.counts[table].numel())).indices

    def saved(self, table, rows):
        self.counts[table][rows] = 0

    def unsaved(self, table, rows):
        self.counts[table][rows] += self.counts[table].max() + 1


def make_tiny(config, dataset, seed):
    """Make a tiny learner as `make_trainer` makes a real one."""
    return TinyLearner(dict(dataset.num_rows), dataset.train.dense.shape[1], seed=seed)
