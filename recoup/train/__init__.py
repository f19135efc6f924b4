"""Training: the trainer, metrics, and whole runs that can be resumed."""

from recoup.train.config import TrainConfig
from recoup.train.draw import draw_rows
from recoup.train.empty import empty_batch
from recoup.train.errors import TrainError
from recoup.train.metrics import BinaryMetrics, Metrics, ScoreTable
from recoup.train.ranks import Ranks
from recoup.train.run import Run, RunResult, evaluate, train
from recoup.train.run_config import (
    CheckpointConfig,
    EvaluationConfig,
    RunConfig,
    batch_schema,
    evaluation_reader,
    training_reader,
)
from recoup.train.run_folder import read_losses
from recoup.train.saves import RunSaves, shard_plan
from recoup.train.sharding import shard, sharding_plan, table_ranks
from recoup.train.trainer import StepResult, Trainer

__all__ = [
    "BinaryMetrics",
    "CheckpointConfig",
    "EvaluationConfig",
    "Metrics",
    "Ranks",
    "Run",
    "RunConfig",
    "RunResult",
    "RunSaves",
    "ScoreTable",
    "StepResult",
    "TrainConfig",
    "TrainError",
    "Trainer",
    "batch_schema",
    "draw_rows",
    "empty_batch",
    "evaluate",
    "evaluation_reader",
    "read_losses",
    "shard",
    "shard_plan",
    "sharding_plan",
    "table_ranks",
    "train",
    "training_reader",
]
