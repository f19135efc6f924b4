"""T_fail from observed failures: an exponential and a gamma fit with intervals, honest about few observations.

Data in: the times between failures, and the time since the last one (which counts as exposure without a failure).
With no failure only a lower bound is given; with fewer than `FEW` the answer says so. Nothing here assumes a prior.
Source: the chi-squared interval of a Poisson rate; maximum likelihood for the gamma, normal theory on log scale.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from recoup.core import ConfigError, State, check_state
from recoup.planner.gamma import chi_squared_quantile, digamma, trigamma

FEW = 10
"""Below this many failures the answer warns: the 90 % interval of the mean is then wider than a factor of 2.9."""
FEWEST_FOR_GAMMA = 5
"""A two-parameter fit to fewer intervals is worthless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GammaFit:
    """Maximum-likelihood gamma distribution of the times between failures (finished ones only)."""

    shape: float
    """1 = exponential; below 1 failures come in clusters, above 1 regularly."""
    mean_seconds: float
    mean_interval_seconds: tuple[float, float]
    shape_interval: tuple[float, float]
    """Holds 1 if the data do not contradict the exponential, at the level asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureTime:
    """What the observed failures say of T_fail."""

    num_failures: int
    exposure_seconds: float
    """All time observed, with the time since the last failure."""
    mtbf_seconds: float
    """exposure / failures; infinity without a failure."""
    interval_seconds: tuple[float, float]
    """Interval of the MTBF at `level` under exponential failures; upper end infinity without a failure."""
    level: float
    gamma: GammaFit | None
    """None with fewer than `FEWEST_FOR_GAMMA` failures, or if all times are equal."""
    verdict: str
    """What this is worth, in words."""


def estimate_failure_time(
    between_failures: Sequence[float], since_last_failure: float = 0.0, level: float = 0.9
) -> FailureTime:
    """Estimate T_fail.

    Args:
        between_failures: seconds between consecutive failures, the first from the job's start; each > 0.
        since_last_failure: seconds since the last failure (or the start), >= 0.
        level: coverage of the intervals, in (0, 1).
    Raises:
        ConfigError: a time that is not above 0, nothing observed, or a level outside (0, 1).
    """
    times = [float(t) for t in between_failures]
    if any(not t > 0 for t in times) or since_last_failure < 0 or not 0 < level < 1:
        raise ConfigError(
            f"times between failures lie above 0 and the level in (0, 1), got {times}, {since_last_failure}, {level}"
        )
    exposure = math.fsum(times) + since_last_failure
    if exposure <= 0:
        raise ConfigError("nothing was observed: neither a failure nor time without one")
    count = len(times)
    interval = _exponential_interval(count, exposure, level)
    gamma = fit_gamma(times, level)
    return FailureTime(
        num_failures=count,
        exposure_seconds=exposure,
        mtbf_seconds=exposure / count if count else math.inf,
        interval_seconds=interval,
        level=level,
        gamma=gamma,
        verdict=_verdict(count, interval, level, gamma),
    )


def fit_gamma(times: Sequence[float], level: float = 0.9) -> GammaFit | None:
    """Return the maximum-likelihood gamma fit, or None for too few or equal times."""
    count = len(times)
    if count < FEWEST_FOR_GAMMA:
        return None
    mean = math.fsum(times) / count
    spread = math.log(mean) - math.fsum(math.log(t) for t in times) / count
    if spread <= 1e-12:
        return None
    shape = (3 - spread + math.sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)  # Minka's start
    for _ in range(50):
        shape /= 1 + (math.log(shape) - digamma(shape) - spread) / (1 - shape * trigamma(shape))
    z = NormalDist().inv_cdf((1 + level) / 2)
    mean_factor = math.exp(z / math.sqrt(count * shape))
    shape_factor = math.exp(z / math.sqrt(count * (trigamma(shape) - 1 / shape)) / shape)
    return GammaFit(
        shape=shape,
        mean_seconds=mean,
        mean_interval_seconds=(mean / mean_factor, mean * mean_factor),
        shape_interval=(shape / shape_factor, shape * shape_factor),
    )


def _exponential_interval(count: int, exposure: float, level: float) -> tuple[float, float]:
    if count == 0:
        return 2 * exposure / chi_squared_quantile(level, 2), math.inf
    tail = (1 - level) / 2
    lower = 2 * exposure / chi_squared_quantile(1 - tail, 2 * count + 2)
    return lower, 2 * exposure / chi_squared_quantile(tail, 2 * count)


def _verdict(count: int, interval: tuple[float, float], level: float, gamma: GammaFit | None) -> str:
    if count == 0:
        return f"no failure seen: only a lower bound of {_hours(interval[0])} at {100 * level:g} % is known"
    if count < FEW:
        few = f"only {count} failure{'s' if count > 1 else ''} seen: the MTBF may lie anywhere between "
        return f"{few}{_hours(interval[0])} and {_hours(interval[1])} ({100 * level:g} %)"
    if gamma is None or gamma.shape_interval[0] <= 1 <= gamma.shape_interval[1]:
        return f"{count} failures, not at odds with exponential times between them"
    kind = "clustered" if gamma.shape < 1 else "regular"
    return f"{count} failures, more {kind} than exponential (gamma shape {gamma.shape:.2g}): the formulas assume none"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h"


class FailureClock:
    """Observe a running job's failures and estimate T_fail at any moment; the clock is the caller's."""

    def __init__(self, started_seconds: float) -> None:
        """Begin observing at `started_seconds` of the caller's clock."""
        self._last = started_seconds
        self._between: list[float] = []

    def failed(self, at_seconds: float) -> None:
        """Record a failure; one at the same moment as the last is the same failure."""
        if at_seconds > self._last:
            self._between.append(at_seconds - self._last)
            self._last = at_seconds

    def estimate(self, now_seconds: float, level: float = 0.9) -> FailureTime:
        """Return what is known at `now_seconds`."""
        return estimate_failure_time(self._between, max(now_seconds - self._last, 0.0), level)

    def state_dict(self) -> State:
        """Return the observations as plain state."""
        return {"version": 1, "last": self._last, "between": list(self._between)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over saved observations."""
        check_state(state, version=1, keys={"last", "between"}, owner="failure clock")
        self._last = float(state["last"])
        self._between = [float(t) for t in state["between"]]
