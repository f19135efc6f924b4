"""Inject failures by (rank, step) or by virtual time, and record that each one fired.

An injection is a plain record; what "fail" means (raise, kill, stop, drop rows) is the caller's. A test asserts with
`check_fired` that every planned failure happened: a test whose failure never fired proves nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recoup.core import ConfigError, EventLog, State, check_state
from recoup.failures.errors import FailureTraceError


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """One planned failure: of a rank (or shard), at a step or at a moment of the virtual clock."""

    rank: int
    step: int | None = None
    """Fires when this rank reaches this step; None = by time."""
    seconds: float | None = None
    """Fires at the first look at or after this moment; None = by step."""
    action: str = "kill"
    """What to do, in the caller's words: kill, stop, raise, a phase such as during_save."""

    def __post_init__(self) -> None:
        """Check that exactly one of step and seconds is given."""
        if (self.step is None) == (self.seconds is None):
            raise ConfigError(f"an injection is by step or by seconds, got step={self.step}, seconds={self.seconds}")


class Injector:
    """Tell which planned failures are due, each exactly once."""

    def __init__(self, injections: Sequence[Injection], events: EventLog | None = None) -> None:
        """Plan `injections`; each that fires is also written to `events` as `failure_injected`."""
        self._planned = list(injections)
        self._fired: list[int] = []
        self._events = events or EventLog()

    @property
    def fired(self) -> tuple[Injection, ...]:
        """Those that fired, in order of firing."""
        return tuple(self._planned[i] for i in self._fired)

    @property
    def pending(self) -> tuple[Injection, ...]:
        """Those that did not fire yet."""
        return tuple(planned for i, planned in enumerate(self._planned) if i not in self._fired)

    def due(self, *, rank: int | None = None, step: int | None = None, seconds: float | None = None) -> list[Injection]:
        """Return and record the failures due now.

        Args:
            rank: only those of this rank; None = of any rank.
            step: those planned for exactly this step.
            seconds: those planned for this moment or before.
        """
        found = []
        for i, planned in enumerate(self._planned):
            by_step = step is not None and planned.step == step
            by_time = seconds is not None and planned.seconds is not None and planned.seconds <= seconds
            if i not in self._fired and rank in (None, planned.rank) and (by_step or by_time):
                self._fired.append(i)
                self._events.emit("failure_injected", **asdict(planned))
                found.append(planned)
        return found

    def check_fired(self) -> None:
        """Refuse to end while a planned failure did not happen.

        Raises:
            FailureTraceError: with the first that did not fire.
        """
        if self.pending:
            raise FailureTraceError(
                f"{len(self.pending)} planned failures did not fire, the first is {self.pending[0]}"
            )

    def state_dict(self) -> State:
        """Return which have fired."""
        return {"version": 1, "fired": list(self._fired)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over which have fired, so that a restarted process does not fail again at the same step."""
        check_state(state, version=1, keys={"fired"}, owner="injector")
        self._fired = [int(i) for i in state["fired"]]
