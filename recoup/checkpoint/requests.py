"""What goes into a save and what comes out of a restore: plain records."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from recoup.checkpoint.manifest import Manifest, TableFacts
from recoup.checkpoint.snapshot import RowsCopy
from recoup.checkpoint.views import TableView
from recoup.core import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """How checkpoints are kept.

    Raises:
        ConfigError: a count is out of its range.
    """

    keep: int = 2
    """Complete checkpoints that retention leaves; the newest is never removed, nor is the newest one that shares no
    file with it, so that no single lost file takes everything."""
    max_chain: int = 24
    """Deltas on a base; the next save merges the chain into a new base (24 = three whole turns at r = 1/8)."""
    quantise_bits: Literal[0, 4, 8] = 0
    """Bits of the weights in deltas; 0 = exact. A save of all rows is exact always."""
    max_snapshot_bytes: int = 0
    """Largest copy kept in memory; a larger save is written shard by shard while training waits. 0 = no limit."""
    max_restore_bytes: int = 1 << 30
    """Verified files kept in memory between check and use; beyond it files are read twice."""

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.keep < 1 or self.max_chain < 0:
            raise ConfigError(f"expected keep >= 1 and max_chain >= 0, got {self.keep} and {self.max_chain}")
        if self.quantise_bits not in (0, 4, 8):
            raise ConfigError(f"expected quantise_bits of 0, 4 or 8, got {self.quantise_bits}")
        if self.max_snapshot_bytes < 0 or self.max_restore_bytes < 0:
            raise ConfigError(
                f"expected byte limits >= 0, got {self.max_snapshot_bytes} and {self.max_restore_bytes}: 0 = none"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveRequest:
    """What to save now."""

    step: int
    views: Mapping[str, TableView]
    rows: Mapping[str, Tensor] | None = None
    """Row numbers by table to save as deltas; None = every row, as bases. A table not named keeps its saved rows."""
    dense: Mapping[str, Tensor] = field(default_factory=dict)
    """Dense tensors by name; copied."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Plain state, JSON types only."""
    exact: bool = False
    """Write this delta exactly even if the store quantises deltas (the last save of a run)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A save that no longer needs the live tables."""

    step: int
    full: bool
    exact: bool
    shards: dict[int, dict[str, RowsCopy]]
    """Each is dropped as soon as it is written."""
    tables: Mapping[str, TableFacts]
    dense: Mapping[str, Tensor]
    extra: str
    stall_seconds: float
    """Time the copy took: what an asynchronous save costs training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What came back beside the rows."""

    manifest: Manifest
    dense: dict[str, Tensor]
    extra: dict[str, Any]
    shards: tuple[int, ...] = ()
    """Shards read: those asked for that may hold rows of the live tables."""


class PendingSave:
    """A save being written in the background."""

    def __init__(self, future: "Future[Manifest]", stall_seconds: float) -> None:
        """Keep the future."""
        self._future = future
        self.stall_seconds = stall_seconds
        self.seen = False
        """Whether the outcome has been asked for: an unseen failure is raised by the next save."""

    @property
    def done(self) -> bool:
        """Whether it is committed or failed."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Manifest:
        """Wait for the commit and return its manifest.

        Raises:
            CheckpointError: the save failed; older checkpoints are intact.
        """
        outcome = self._future.exception(timeout)
        self.seen = True
        if outcome is not None:
            raise outcome
        return self._future.result()
