"""What one emulation compares: data, model, cluster, failures, strategies, budgets, seeds."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from recoup.core import ConfigError
from recoup.emulate.data import DataConfig
from recoup.emulate.strategy import STRATEGIES
from recoup.failures import ExponentialTrace, GammaTrace, RecordedTrace, Trace
from recoup.planner import ClusterCosts


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerConfig:
    """The DLRM that is trained."""

    embedding_dim: int = 16
    bottom: tuple[int, ...] = (64,)
    """Hidden layers on the dense features; a last one of `embedding_dim` follows."""
    top: tuple[int, ...] = (64,)
    """Hidden layers on the interactions."""
    init_range: float = 0.05
    """Rows start uniform in plus or minus this."""
    learning_rate: float = 0.05
    """Of the tables' row-wise Adagrad."""
    dense_learning_rate: float = 0.002
    """Of the dense optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """The cluster that is emulated. Defaults: the constants of the CPR comparison (README, benches)."""

    num_shards: int = 8
    sharding: Literal["hash", "range", "table"] = "hash"
    """Rows to shards by hash, by range, or whole tables."""
    training: timedelta = timedelta(hours=140)
    """Useful time of the run on the virtual clock: 10 MTBFs, so that PLS varies little between runs."""
    mtbf: timedelta = timedelta(hours=14)
    save: timedelta = timedelta(minutes=2.5)
    load: timedelta = timedelta(minutes=2.5)
    reschedule: timedelta = timedelta(minutes=3)
    save_stall_fraction: float = 1.0
    """For asynchronous strategies: the measured part of a save that stalls."""
    spare: timedelta | None = None
    """For strategies with a spare: measured time from a failure until the spare can load."""

    def costs(self) -> ClusterCosts:
        """Return the planner's constants."""
        return ClusterCosts(
            mtbf=self.mtbf,
            num_shards=self.num_shards,
            save=self.save,
            load=self.load,
            reschedule=self.reschedule,
            save_stall_fraction=self.save_stall_fraction,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureConfig:
    """How failures come; their mean time is the cluster's MTBF."""

    distribution: Literal["exponential", "gamma", "recorded"] = "exponential"
    shape: float = 1.0
    """Of the gamma distribution."""
    shards_at_once: int = 1
    recording: Path | None = None
    """CSV of a recorded trace, used by every seed alike."""

    def trace(self, mtbf: timedelta) -> Trace:
        """Return the failure trace."""
        if self.distribution == "recorded":
            if self.recording is None:
                raise ConfigError("a recorded trace needs failures.recording, got none")
            return RecordedTrace(path=self.recording)
        if self.distribution == "gamma":
            return GammaTrace(mtbf=mtbf, shape=self.shape, shards_at_once=self.shards_at_once)
        return ExponentialTrace(mtbf=mtbf, shards_at_once=self.shards_at_once)


QUALITY_STRATEGIES = ("full", "naive_partial", "cpr_vanilla", "cpr_scar", "cpr_mfu", "cpr_ssu", "adagrad_change")
"""Those compared unless asked otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulateConfig:
    """One emulation.

    Raises:
        ConfigError: an unknown strategy, a budget that is not above 0, no seed, or a spare without its measured time.
    """

    data: DataConfig
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    failures: FailureConfig = field(default_factory=FailureConfig)
    strategies: tuple[str, ...] = QUALITY_STRATEGIES
    pls: tuple[float, ...] = (0.02, 0.1, 0.3)
    """PLS budgets; strategies whose interval does not depend on one are run once."""
    num_seeds: int = 5
    batch_size: int = 256
    guard_pls: float | None = None
    """PLS at which the guard falls back to full recovery; None = no guard, so that the budget's effect is seen."""
    nodes: tuple[int, ...] = (4, 8, 16, 32, 64)
    """Numbers of shards for overhead against nodes; the MTBF falls as 1 / nodes."""
    mtbf_hours: tuple[float, ...] = (3.5, 7.0, 14.0, 28.0, 56.0)
    """MTBFs for overhead against MTBF."""

    def __post_init__(self) -> None:
        """Check the values."""
        unknown = sorted(set(self.strategies) - set(STRATEGIES))
        if unknown:
            raise ConfigError(f"expected strategies of {sorted(STRATEGIES)}, got {unknown[0]!r}")
        if any(STRATEGIES[name].spare for name in self.strategies) and self.cluster.spare is None:
            raise ConfigError("a strategy with a spare needs cluster.spare, the measured time, got none")
        if not self.pls or min(self.pls) <= 0 or self.num_seeds < 1 or self.batch_size < 1:
            raise ConfigError(f"expected budgets above 0, a seed and a batch, got {self.pls}, {self.num_seeds} seeds")
