"""The guard: after a failure, partial or full recovery, and the reason, which is logged as an event.

Partial only if all hold: the plan asks for partial; another rank still holds the dense parameters; every failed shard
has a complete checkpoint; the lost state is not older than the limit; PLS stays within its budget. Otherwise full.
Pure: the facts come in, a decision goes out; the caller acts.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Literal

from recoup.core import ConfigError, EventLog
from recoup.recovery.errors import RecoveryError


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    """What partial recovery may cost."""

    pls_budget: float = 0.1
    """Largest PLS of the whole run after this recovery; CPR finds the AUC drop small there."""
    max_staleness: timedelta = timedelta(days=1)
    """Oldest checkpoint of a failed shard that survivors' newer rows and dense parameters may be joined with."""

    def __post_init__(self) -> None:
        """Check both limits."""
        if self.pls_budget < 0:
            raise ConfigError(f"pls_budget must not be negative, got {self.pls_budget}")
        if self.max_staleness < timedelta(0):
            raise ConfigError(f"max_staleness must not be negative, got {self.max_staleness}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureFacts:
    """What is known when a failure is noticed."""

    failed_shards: tuple[int, ...]
    pls_before: float
    pls_after: float
    """PLS if these shards are recovered partially (`Ledger.preview`)."""
    staleness_seconds: float
    """Age of the oldest checkpoint among the failed shards."""
    num_dense_replicas: int
    """Survivors that hold the dense parameters and their optimizer."""
    shards_without_checkpoint: tuple[int, ...] = ()
    """Failed shards of which no complete checkpoint can be read."""
    full_checkpoint: bool = True
    """Whether a complete checkpoint of everything exists, so that full recovery is possible at all."""
    planned: Literal["partial", "full"] = "partial"
    """What the planner recommends for this job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Partial or full, and why."""

    recovery: Literal["partial", "full"]
    reason: str
    facts: FailureFacts


def decide(facts: FailureFacts, config: GuardConfig, events: EventLog | None = None) -> Decision:
    """Return how to recover, and write it to `events` as `recovery_decided`.

    Raises:
        RecoveryError: partial recovery is ruled out and there is no checkpoint for a full one.
    """
    against = _against_partial(facts, config)
    if against and not facts.full_checkpoint:
        raise RecoveryError(f"no way to recover shards {list(facts.failed_shards)}: {against}; and no full checkpoint")
    decision = Decision(
        recovery="full" if against else "partial",
        reason=against or f"PLS {facts.pls_after:.4g} stays within the budget of {config.pls_budget:g}",
        facts=facts,
    )
    if events is not None:
        events.emit("recovery_decided", recovery=decision.recovery, reason=decision.reason, **asdict(facts))
    return decision


def _against_partial(facts: FailureFacts, config: GuardConfig) -> str:
    """Return the first reason against partial recovery, "" if there is none."""
    if facts.planned == "full":
        return "the planner recommends full recovery: partial recovery costs no less"
    if facts.num_dense_replicas < 1:
        return "no survivor holds the dense parameters"
    if facts.shards_without_checkpoint:
        return f"no complete checkpoint of shards {list(facts.shards_without_checkpoint)}"
    if facts.staleness_seconds > config.max_staleness.total_seconds():
        limit = config.max_staleness.total_seconds()
        return f"the lost shards' checkpoint is {facts.staleness_seconds:.0f} s old, limit {limit:.0f} s"
    if facts.pls_after > config.pls_budget:
        return f"PLS would rise from {facts.pls_before:.4g} to {facts.pls_after:.4g}, budget {config.pls_budget:g}"
    return ""
