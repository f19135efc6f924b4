"""A tiny log with every kind of feature, its table, and configurations that train on it in milliseconds a step."""

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

from recoup.log import SyntheticLog, open_log
from recoup.log.synthetic import SyntheticGroup
from recoup.model import AttentionEncoder, DLRMConfig, EmbeddingTable
from recoup.reader import Log1p, ReaderConfig, SampleRange, SessionReader
from recoup.table import BuildConfig, open_table
from recoup.table import build_table as build
from recoup.train import CheckpointConfig, EvaluationConfig, RunConfig, TrainConfig, Trainer

NUM_IDS = 200
GROUPS = (
    SyntheticGroup(name="user", prefix="user", num_features=2, repeat=0.9, mean_length=4, min_length=1, max_length=8),
    SyntheticGroup(
        name="history", prefix="hist", num_features=2, repeat=0.6, shift=True, mean_length=5, min_length=1, max_length=9
    ),
)


def synthetic_log(**overrides):
    """Return a small log's configuration."""
    settings = {
        "num_samples": 600,
        "groups": GROUPS,
        "num_item_features": 2,
        "num_dense": 2,
        "num_ids": NUM_IDS,
        "samples_per_session": 6.0,
        "seed": 3,
    }
    return SyntheticLog(**{**settings, **overrides})


@functools.cache
def table(num_samples=600):
    """Return the tiny table, built once a process."""
    folder = Path(tempfile.mkdtemp(prefix="recoup-tiny-"))
    build(open_log(synthetic_log(num_samples=num_samples)), folder / "table", BuildConfig())
    return open_table(folder / "table")


def model(**overrides):
    """Return a model that shares a table between a history (encoded), and items; and pools the other history."""
    tables = (
        EmbeddingTable(name="users", num_embeddings=NUM_IDS, embedding_dim=8, features=("user_0", "user_1")),
        EmbeddingTable(
            name="items", num_embeddings=NUM_IDS, embedding_dim=8, features=("item_0", "hist_0"), pooling="mean"
        ),
        EmbeddingTable(name="other", num_embeddings=NUM_IDS, embedding_dim=8, features=("item_1",)),
        EmbeddingTable(name="seen", num_embeddings=NUM_IDS, embedding_dim=8, features=("hist_1",)),
    )
    settings = {
        "tables": tables,
        "bottom_mlp": (8,),
        "top_mlp": (16,),
        "sequences": (AttentionEncoder(feature="hist_0"),),
    }
    return DLRMConfig(**{**settings, **overrides})


def reader_config(**overrides):
    """Return a reader of batches of 64."""
    return ReaderConfig(
        **{"batch_size": 64, "shuffle": "full", "transforms": (Log1p(features=("dense_0", "dense_1")),), **overrides}
    )


def batches(*, num_samples=600, **overrides):
    """Return one epoch's batches."""
    return list(SessionReader(table(num_samples), reader_config(**overrides)))


def trainer(model_config=None, **overrides):
    """Return a trainer of the tiny model."""
    return Trainer(model_config or model(), TrainConfig(**{"dense_lr": 0.01, **overrides}), table().schema)


def run_config(**overrides):
    """Return a run of two epochs, saved every third step."""
    settings = {
        "table": str(table().path),
        "reader": reader_config(samples=SampleRange(to_fraction=0.8)),
        "model": model(),
        "train": TrainConfig(num_epochs=2, dense_lr=0.01),
        "evaluation": EvaluationConfig(batch_size=50),
        "checkpoint": CheckpointConfig(every_steps=3),
    }
    return replace(RunConfig(**settings), **overrides)
