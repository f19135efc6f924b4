"""Estimating T_fail: the right fit, intervals that cover, honesty about few observations."""

import math

import numpy as np
import pytest
from scipy import special, stats

from recoup.core import ConfigError
from recoup.planner import FailureClock, estimate_failure_time, fit_gamma
from recoup.planner.gamma import chi_squared_quantile, digamma, lower_gamma, trigamma


@pytest.mark.parametrize("x", [1e-3, 0.1, 0.7, 1.0, 3.3, 40.0, 1e4])
def test_special_functions_equal_scipy(x):
    """Digamma, trigamma, incomplete gamma and the chi-squared quantile equal SciPy's."""
    assert digamma(x) == pytest.approx(special.digamma(x), rel=1e-9, abs=1e-9)
    assert trigamma(x) == pytest.approx(special.polygamma(1, x), rel=1e-9)
    for y in (0.3 * x, x, 2 * x + 1):
        assert lower_gamma(x, y) == pytest.approx(special.gammainc(x, y), rel=1e-7, abs=1e-10)
    if x >= 0.5:
        for p in (0.025, 0.5, 0.95):
            assert chi_squared_quantile(p, x) == pytest.approx(stats.chi2.ppf(p, x), rel=1e-7)


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.0])
def test_gamma_fit_equals_scipy(shape):
    """The maximum-likelihood gamma fit equals SciPy's."""
    times = np.random.default_rng(4).gamma(shape, 100 / shape, size=300)
    fit = fit_gamma(times.tolist())
    expected, _, scale = stats.gamma.fit(times, floc=0)
    assert fit.shape == pytest.approx(expected, rel=1e-4)
    assert fit.mean_seconds == pytest.approx(expected * scale, rel=1e-4)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_intervals_cover(count):
    """The 90 % interval of the MTBF holds the truth in about 90 % of 300 jobs, censored time included."""
    rng, hits, gamma_hits = np.random.default_rng(5), 0, 0
    for _ in range(300):
        times = rng.exponential(50.0, size=count)
        estimate = estimate_failure_time(times.tolist())
        hits += estimate.interval_seconds[0] <= 50 <= estimate.interval_seconds[1]
        if estimate.gamma:
            low, high = estimate.gamma.mean_interval_seconds
            gamma_hits += low <= 50 <= high
    assert hits / 300 >= 0.86
    assert count < 20 or gamma_hits / 300 >= 0.82


def test_few_observations_are_called_few():
    """Without a failure only a lower bound is known; with one the verdict says how little that is."""
    none = estimate_failure_time([], since_last_failure=36_000)
    assert none.mtbf_seconds == math.inf
    assert none.interval_seconds[0] == pytest.approx(36_000 / math.log(10))
    assert "no failure seen: only a lower bound" in none.verdict
    one = estimate_failure_time([3600.0])
    assert one.gamma is None
    assert "only 1 failure seen: the MTBF may lie anywhere between" in one.verdict
    assert one.interval_seconds[1] / one.interval_seconds[0] > 50


def test_clustered_failures_are_seen():
    """Times far from exponential are called clustered or regular."""
    rng = np.random.default_rng(6)
    assert "clustered" in estimate_failure_time(rng.gamma(0.4, 10, 200).tolist()).verdict
    assert "regular" in estimate_failure_time(rng.gamma(4, 10, 200).tolist()).verdict
    assert "not at odds" in estimate_failure_time(rng.exponential(10, 200).tolist()).verdict


def test_clock_estimates_online_and_survives_its_state():
    """The online clock equals the estimate on its intervals, before and after a restart."""
    clock = FailureClock(started_seconds=100.0)
    for at in (150.0, 150.0, 400.0):
        clock.failed(at)
    other = FailureClock(started_seconds=0.0)
    other.load_state_dict(clock.state_dict())
    assert clock.estimate(500.0) == other.estimate(500.0) == estimate_failure_time([50.0, 250.0], 100.0)


def test_impossible_times_are_refused():
    """Times of 0 or less, and nothing observed, are refused."""
    with pytest.raises(ConfigError, match="lie above 0"):
        estimate_failure_time([1.0, 0.0])
    with pytest.raises(ConfigError, match="nothing was observed"):
        estimate_failure_time([])
