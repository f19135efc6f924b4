"""How a model is trained: seed, optimizers, epochs."""

from dataclasses import dataclass
from typing import Literal

from recoup.core import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Optimizers and length of a training run; row-wise Adagrad for tables, one optimizer for everything dense."""

    seed: int = 0
    """Of tables' rows and dense parameters; the same rows whatever the number of ranks."""
    num_epochs: int = 1
    max_steps: int | None = None
    """Stop after so many steps in all; left out: no limit."""
    table_lr: float = 0.05
    """Learning rate of row-wise Adagrad."""
    table_eps: float = 1e-8
    """Added to the root of the row's mean squared gradient."""
    dense_optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    dense_lr: float = 0.001
    num_threads: int | None = None
    """Threads of one operation on CPU, of torch and of our kernels, for the whole process; left out: as it has them."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("table_lr", "dense_lr", "table_eps"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"expected {name} >= 0, got {getattr(self, name)}")
        if self.num_epochs < 1:
            raise ConfigError(f"expected num_epochs >= 1, got {self.num_epochs}")
        for name in ("max_steps", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"expected {name} >= 1, got {value}")
