"""How a job is launched, watched and recovered."""

from dataclasses import dataclass, field
from datetime import timedelta

from recoup.core import ConfigError
from recoup.recovery import GuardConfig

LAUNCH = "launch.toml"
"""File in the run's folder that tells the ranks how they were launched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    """Ranks, spares and limits.

    Raises:
        ConfigError: a count or limit is out of range.
    """

    nproc: int = 2
    """Ranks on this host."""
    nnodes: int = 1
    """Hosts; all with the same `nproc`."""
    node_rank: int = 0
    """This host, from 0; host 0's launcher holds the store."""
    store: str = ""
    """HOST:PORT of the store; "" = a free port on this host (one host only)."""
    spares: int = 0
    """Idle, imported processes on this host that take a dead rank's place."""
    beat: timedelta = timedelta(milliseconds=200)
    """A rank's heartbeats."""
    silence_limit: timedelta = timedelta(seconds=3)
    """A rank silent for so long is frozen: it is killed, which its peers notice at once."""
    stall_limit: timedelta = timedelta(minutes=5)
    """A rank that is this long in its reader or its own save is killed as too slow; exchanges time out a little later,
    and then a rank that does not leave one is. It bounds every wait of the job, also for a large shard to load."""
    max_restarts: int = 20
    """Deaths of ranks on this host before the job is given up."""
    back_off: timedelta = timedelta(milliseconds=500)
    """Wait before a rank that died within ten seconds of its start is started again; doubles each time, up to 30 s."""
    join_limit: timedelta = timedelta(seconds=60)
    """How long ranks wait for each other in a new generation."""
    verify_survivors: bool = False
    """Hash the rows of every survivor before and after a partial recovery, and end the job if one changed."""
    guard: GuardConfig = field(default_factory=GuardConfig)
    """When partial recovery is not allowed."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.nproc < 1 or self.nnodes < 1 or self.spares < 0 or self.max_restarts < 0:
            raise ConfigError(
                "expected nproc >= 1, nnodes >= 1, spares >= 0 and max_restarts >= 0, "
                f"got {self.nproc}, {self.nnodes}, {self.spares} and {self.max_restarts}"
            )
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigError(f"expected node_rank in [0, {self.nnodes}), got {self.node_rank}")
        if self.nnodes > 1 and not self.store:
            raise ConfigError("expected store = HOST:PORT for more than one host, got none")
        if self.stall_limit < self.silence_limit:
            raise ConfigError(f"expected stall_limit >= silence_limit ({self.silence_limit}), got {self.stall_limit}")
        if self.silence_limit < 4 * self.beat:
            raise ConfigError(f"expected silence_limit of at least 4 beats ({self.beat}), got {self.silence_limit}")

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.nproc * self.nnodes

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """Ranks of this host."""
        return tuple(range(self.node_rank * self.nproc, (self.node_rank + 1) * self.nproc))
