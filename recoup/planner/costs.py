"""What a job's failures and saves cost: the constants every formula of the planner takes."""

from dataclasses import dataclass, replace
from datetime import timedelta

from recoup.core import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterCosts:
    """Constants of one job on one cluster.

    Raises:
        ConfigError: a time that is negative (or zero, for the MTBF), no shard, a fraction outside [0, 1].
    """

    mtbf: timedelta
    """T_fail: mean time between failures of the whole job, whichever shard fails."""
    num_shards: int
    """N_emb: shards of the embedding tables; one failure takes one."""
    save: timedelta
    """O_save: one full save of all shards."""
    load: timedelta
    """O_load: loading all shards; a lone shard costs `shard_load_fraction` of it."""
    reschedule: timedelta
    """O_res: from the failure until a replacement is ready to load."""
    save_stall_fraction: float = 1.0
    """Part of a save during which training stands still; 1 = synchronous. The rest is written in the background."""
    shard_load_fraction: float | None = None
    """Cost of loading one shard over that of loading all; None = 1 / num_shards (shards load from one source)."""

    def __post_init__(self) -> None:
        """Check every field."""
        if self.mtbf <= timedelta(0):
            raise ConfigError(f"mtbf must be longer than 0, got {self.mtbf}")
        if self.num_shards < 1:
            raise ConfigError(f"num_shards must be at least 1, got {self.num_shards}")
        for name in ("save", "load", "reschedule"):
            if getattr(self, name) < timedelta(0):
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("save_stall_fraction", "shard_load_fraction"):
            fraction = getattr(self, name)
            if fraction is not None and not 0.0 <= fraction <= 1.0:
                raise ConfigError(f"{name} must lie in [0, 1], got {fraction}")

    @property
    def mtbf_seconds(self) -> float:
        """T_fail."""
        return self.mtbf.total_seconds()

    @property
    def stall_seconds(self) -> float:
        """Part of a full save that stops training."""
        return self.save.total_seconds() * self.save_stall_fraction

    @property
    def background_seconds(self) -> float:
        """Part of a full save written while training goes on: the state is older by this much once it is durable."""
        return self.save.total_seconds() - self.stall_seconds

    @property
    def load_seconds(self) -> float:
        """O_load of all shards."""
        return self.load.total_seconds()

    @property
    def shard_load_seconds(self) -> float:
        """O_load of one shard."""
        fraction = 1.0 / self.num_shards if self.shard_load_fraction is None else self.shard_load_fraction
        return self.load_seconds * fraction

    @property
    def reschedule_seconds(self) -> float:
        """O_res."""
        return self.reschedule.total_seconds()

    def with_num_shards(self, num_shards: int) -> "ClusterCosts":
        """Return the costs of the same job on `num_shards` nodes.

        The MTBF falls as 1 / nodes (each node fails on its own); the times of saving and loading all shards are kept.
        Source: CPR (arXiv 2011.02999), failure analysis.
        """
        return replace(self, num_shards=num_shards, mtbf=self.mtbf * self.num_shards / num_shards)
