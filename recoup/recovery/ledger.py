"""The ledger: how many updates were lost, by event and by shard, while shards were recovered partially.

Words: position = samples trained so far; a loss of shard k covers the samples of the half-open interval
[since, until) = [position of the checkpoint restored, position of the failure).

Three counts, one law each (tests/recovery):
- `pls`, the paper's: every loss counts its whole interval, even where an earlier failure had lost a part of it before.
  Budgets are kept in this one; it is never too low.
- `distinct_pls`: the share of (sample, shard) pairs whose update is missing; a pair lost twice counts once.
- `effective_pls`: the share of row accesses lost, which credits rows saved since the last whole save (priority saves).

Each of the first two also exists weighted by the shards' shares of accesses. A full recovery trains lost samples again:
`rewound` takes back what lies after the position restored.
Source: CPR (arXiv 2011.02999), definition of PLS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from recoup.core import State, check_state
from recoup.recovery.errors import RecoveryError


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The updates that one failure cost one shard."""

    event: int
    """Number of the failure, from 0; the shards of one failure share it."""
    shard: int
    since: int
    """Position of the checkpoint restored."""
    until: int
    """Position of the failure."""
    accesses: float | None = None
    """Lost row accesses as a fraction of all accesses of the run; None = not counted."""


class Ledger:
    """Count lost updates of `num_shards` shards over a run of `total_samples` samples."""

    def __init__(self, num_shards: int, total_samples: int, shares: Sequence[float] = ()) -> None:
        """Begin with nothing lost and everything saved at position 0.

        Args:
            num_shards: N_emb.
            total_samples: S_total, samples of the whole run.
            shares: share of accesses by shard, sum 1; () = 1 / num_shards each.
        Raises:
            RecoveryError: no shard, no sample, or shares that do not fit.
        """
        if num_shards < 1 or total_samples < 1:
            raise RecoveryError(f"a ledger needs shards and samples, got {num_shards} and {total_samples}")
        if shares and (len(shares) != num_shards or abs(sum(shares) - 1) > 1e-6):
            raise RecoveryError(f"expected {num_shards} shares of sum 1, got {list(shares)}")
        self.num_shards = num_shards
        self.total_samples = total_samples
        self.shares = tuple(shares) or (1 / num_shards,) * num_shards
        self._saved = [0] * num_shards
        self._losses: list[Loss] = []
        self._num_events = 0

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Every loss, in order of the failures."""
        return tuple(self._losses)

    def saved(self, num_samples: int, shards: Sequence[int] | None = None) -> None:
        """Record that a save of `shards` (None = all) is complete and holds the state at position `num_samples`."""
        for shard in range(self.num_shards) if shards is None else shards:
            self._saved[self._check_shard(shard)] = num_samples

    def last_saved(self, shard: int) -> int:
        """Return the position of the shard's last complete save."""
        return self._saved[self._check_shard(shard)]

    def preview(self, shards: Sequence[int], num_samples: int, since: int | None = None) -> float:
        """Return what `pls` would be after a partial recovery of `shards` at position `num_samples`."""
        spans = sum(num_samples - (self._saved[k] if since is None else since) for k in set(shards))
        return self.pls + spans / (self.total_samples * self.num_shards)

    def lost(
        self,
        shards: Sequence[int],
        num_samples: int,
        *,
        since: int | None = None,
        accesses: Mapping[int, float] | None = None,
    ) -> tuple[Loss, ...]:
        """Record one failure of `shards` at position `num_samples`, recovered partially.

        Args:
            shards: those that failed; one named twice counts once.
            num_samples: position of the failure.
            since: position of the checkpoint restored, if it is not the shards' last save.
            accesses: lost row accesses by shard as fractions of all accesses of the run.
        Raises:
            RecoveryError: an unknown shard, or a checkpoint from after the failure.
        """
        found = []
        for shard in sorted({self._check_shard(k) for k in shards}):
            start = self._saved[shard] if since is None else since
            if not 0 <= start <= num_samples:
                raise RecoveryError(
                    f"a checkpoint is older than the failure, got {start} after {num_samples} (shard {shard})"
                )
            lost = None if accesses is None else accesses[shard]
            found.append(Loss(event=self._num_events, shard=shard, since=start, until=num_samples, accesses=lost))
        self._num_events += 1
        self._losses += found
        return tuple(found)

    def rewound(self, num_samples: int) -> None:
        """Record a full recovery to position `num_samples`: what was lost after it is trained again.

        Lost accesses of an interval cut short are reduced in proportion.
        """
        kept = []
        for loss in self._losses:
            until = min(loss.until, num_samples)
            if until <= loss.since:
                continue
            part = (until - loss.since) / (loss.until - loss.since)
            accesses = None if loss.accesses is None else loss.accesses * part
            kept.append(replace(loss, until=until, accesses=accesses))
        self._losses = kept
        self._saved = [min(saved, num_samples) for saved in self._saved]

    @property
    def pls(self) -> float:
        """The paper's portion of lost samples."""
        return sum(self.pls_by_shard)

    @property
    def pls_by_shard(self) -> tuple[float, ...]:
        """The paper's PLS by shard; their sum is `pls`."""
        return self._by_shard(self._spans(), (1 / self.num_shards,) * self.num_shards)

    @property
    def pls_by_event(self) -> tuple[float, ...]:
        """The paper's PLS by failure; 0 for one whose losses were all trained again."""
        totals = [0.0] * self._num_events
        for loss in self._losses:
            totals[loss.event] += (loss.until - loss.since) / (self.total_samples * self.num_shards)
        return tuple(totals)

    @property
    def weighted_pls(self) -> float:
        """The paper's PLS with each shard weighted by its share of accesses."""
        return sum(self._by_shard(self._spans(), self.shares))

    @property
    def distinct_pls(self) -> float:
        """Share of (sample, shard) pairs whose update is missing."""
        return sum(self._by_shard(self._union(), (1 / self.num_shards,) * self.num_shards))

    @property
    def weighted_distinct_pls(self) -> float:
        """Share of missing updates with each shard weighted by its share of accesses."""
        return sum(self._by_shard(self._union(), self.shares))

    @property
    def effective_pls(self) -> float | None:
        """Share of row accesses lost, rows saved since credited; None if some loss came without a count."""
        counts = [loss.accesses for loss in self._losses]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def state_dict(self) -> State:
        """Return the ledger as plain state."""
        return {
            "version": 1,
            "num_shards": self.num_shards,
            "total_samples": self.total_samples,
            "shares": list(self.shares),
            "saved": list(self._saved),
            "num_events": self._num_events,
            "losses": [asdict(loss) for loss in self._losses],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved ledger.

        Raises:
            StateError: another version or other keys.
            RecoveryError: it is of another job (shards or samples differ).
        """
        keys = {"num_shards", "total_samples", "shares", "saved", "num_events", "losses"}
        check_state(state, version=1, keys=keys, owner="ledger")
        theirs, ours = (state["num_shards"], state["total_samples"]), (self.num_shards, self.total_samples)
        if theirs != ours:
            raise RecoveryError(f"expected a ledger of {ours[0]} shards and {ours[1]} samples, got {theirs}")
        self.shares = tuple(state["shares"])
        self._saved = list(state["saved"])
        self._num_events = state["num_events"]
        self._losses = [Loss(**loss) for loss in state["losses"]]

    def _spans(self) -> list[int]:
        spans = [0] * self.num_shards
        for loss in self._losses:
            spans[loss.shard] += loss.until - loss.since
        return spans

    def _union(self) -> list[int]:
        spans = [0] * self.num_shards
        for shard, losses in groupby(sorted(self._losses, key=lambda x: (x.shard, x.since)), key=lambda x: x.shard):
            end = 0
            for loss in losses:
                spans[shard] += max(loss.until - max(loss.since, end), 0)
                end = max(end, loss.until)
        return spans

    def _by_shard(self, spans: Sequence[int], shares: Sequence[float]) -> tuple[float, ...]:
        return tuple(span / self.total_samples * share for span, share in zip(spans, shares, strict=True))

    def _check_shard(self, shard: int) -> int:
        if not 0 <= shard < self.num_shards:
            raise RecoveryError(f"expected a shard from 0 to {self.num_shards - 1}, got {shard}")
        return shard
