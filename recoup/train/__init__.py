"""Training: the trainer, metrics, runs."""

from recoup.train.config import TrainConfig
from recoup.train.errors import TrainError
from recoup.train.metrics import BinaryMetrics, Metrics, ScoreTable
from recoup.train.ranks import Ranks
from recoup.train.trainer import StepResult, Trainer

__all__ = ["BinaryMetrics", "Metrics", "Ranks", "ScoreTable", "StepResult", "TrainConfig", "TrainError", "Trainer"]
