"""Law 7 of the planner: formulas, exact expectations and Monte Carlo agree; optima are optima."""

import dataclasses
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError
from recoup.planner import (
    ClusterCosts,
    access_shares,
    crossover_pls,
    expected_pls,
    expected_weighted_pls,
    full_overhead,
    full_overhead_exact,
    optimal_save_interval,
    optimal_save_interval_exact,
    partial_overhead,
    partial_overhead_exact,
    priority_loss_ratio,
    recommend,
    save_interval_for_pls,
    save_interval_for_share,
    zipf_rates,
)
from tests.planner.oracles import simulate_full, simulate_partial, simulate_priority


def minutes(value):
    return timedelta(minutes=value)


def costs(**overrides):
    """The constants of issue 4."""
    base = {"mtbf": minutes(840), "num_shards": 8, "save": minutes(2.5), "load": minutes(2.5), "reschedule": minutes(3)}
    return ClusterCosts(**{**base, **overrides})


some_costs = st.builds(
    ClusterCosts,
    mtbf=st.floats(100, 5000).map(minutes),
    num_shards=st.integers(1, 64),
    save=st.floats(0.1, 10).map(minutes),
    load=st.floats(0, 10).map(minutes),
    reschedule=st.floats(0, 10).map(minutes),
    save_stall_fraction=st.floats(0.05, 1),
)


def test_stated_constants():
    """At the stated constants full recovery costs 8.37 % to first order, 8.8 % exactly, and CPR 0.58 %."""
    best = optimal_save_interval(costs())
    assert full_overhead(costs(), best).total == pytest.approx(0.0837, abs=5e-5)
    assert full_overhead_exact(costs(), best) == pytest.approx(0.0884, abs=2e-4)
    assert partial_overhead(costs(), save_interval_for_pls(costs(), 0.1)).total == pytest.approx(0.0058, abs=5e-5)


def test_full_overhead_matches_monte_carlo():
    """The exact expectation of full recovery is within 3 % of a simulation of 40,000 cycles."""
    for interval in (20 * 60.0, 64.8 * 60, 300 * 60):
        simulated = simulate_full(costs(), interval, 40_000, np.random.default_rng(1))
        assert full_overhead_exact(costs(), interval) == pytest.approx(simulated, rel=0.03)


def test_partial_overhead_and_pls_match_monte_carlo():
    """Overhead (first-order and exact) and E[PLS] of partial recovery are within 3 % of a simulation."""
    for interval in (600 * 60.0, 1344 * 60):
        simulated, pls = simulate_partial(costs(), interval, 30_000, np.random.default_rng(2))
        assert partial_overhead_exact(costs(), interval) == pytest.approx(simulated, rel=0.03)
        assert partial_overhead(costs(), interval).total == pytest.approx(simulated, rel=0.03)
        assert expected_pls(costs(), interval) == pytest.approx(pls, rel=0.03)


@given(some_costs)
@settings(max_examples=40, deadline=None)
def test_optimum_is_the_numerical_minimum(job):
    """No interval on a fine grid beats the optimum, neither of the first-order nor of the exact overhead."""
    synchronous = dataclasses.replace(job, save_stall_fraction=1.0)
    for overhead, best in (
        (lambda t: full_overhead(job, t).total, optimal_save_interval(job)),
        (lambda t: full_overhead_exact(synchronous, t), optimal_save_interval_exact(synchronous)),
    ):
        least = min(overhead(best * factor) for factor in np.geomspace(0.2, 5, 401))
        assert overhead(best) <= least * (1 + 1e-9)


@given(some_costs, st.floats(1e-3, 0.5))
@settings(max_examples=60, deadline=None)
def test_interval_of_a_budget_keeps_the_budget(job, budget):
    """E[PLS] at the interval of a budget is the budget, or the budget is refused as impossible."""
    try:
        interval = save_interval_for_pls(job, budget)
    except ConfigError:
        assert expected_pls(job, 1e-9) >= budget * (1 - 1e-6)
    else:
        assert expected_pls(job, interval) == pytest.approx(budget)


@given(some_costs)
@settings(max_examples=60, deadline=None)
def test_fallback_is_exactly_at_the_crossover(job):
    """A budget just below the crossover gives full recovery, just above it partial, and the reason says so."""
    crossover = crossover_pls(job)
    if crossover == float("inf"):
        assert recommend(job, 0.9).recovery == "full"
        return
    below, above = recommend(job, crossover * (1 - 1e-6)), recommend(job, crossover * (1 + 1e-6))
    assert (below.recovery, above.recovery) == ("full", "partial")
    assert "full recovery" in below.reason
    assert below.expected_pls == 0
    assert above.overhead == above.partial
    assert below.overhead == below.full


def test_equal_costs_give_full_recovery():
    """Where partial recovery costs no less, full recovery is used, since it loses no update."""
    job = costs(load=minutes(0), save=minutes(8), mtbf=minutes(400), num_shards=1)
    budget = 80 * 60 / (2 * job.mtbf_seconds)  # T_save = 80 min = sqrt(2 * 8 * 400), but without lost computation:
    assert recommend(job, budget).recovery == "partial"
    half = recommend(job, budget / 2)  # 8/40 = 0.2 equals 8/80 + 40/400
    assert half.partial is not None
    assert half.partial.total == pytest.approx(half.full.total)
    assert crossover_pls(job) == pytest.approx(budget / 2)


def test_asynchronous_saves_stall_less_and_lose_more():
    """With a stall of a tenth the save overhead is a tenth, and E[PLS] grows by the background write."""
    job = costs(save_stall_fraction=0.1)
    assert partial_overhead(job, 1000.0).save == pytest.approx(0.1 * partial_overhead(costs(), 1000.0).save)
    extra = expected_pls(job, 1000.0) - expected_pls(costs(), 1000.0)
    assert extra == pytest.approx(0.9 * 150 / (8 * 840 * 60))
    with pytest.raises(ConfigError, match="synchronous saves"):
        full_overhead_exact(job, 1000.0)


def test_weighted_pls_equals_plain_when_shards_fail_alike():
    """Weights by access change single events, not the expectation, unless hot shards fail more often."""
    shares = access_shares([5, 1, 1, 1])
    job = costs(num_shards=4)
    assert expected_weighted_pls(job, 600.0, shares) == pytest.approx(expected_pls(job, 600.0))
    hot = expected_weighted_pls(job, 600.0, shares, failure_shares=(1, 0, 0, 0))
    assert hot == pytest.approx(expected_pls(job, 600.0) * 4 * 5 / 8)


@given(some_costs, st.floats(0.01, 2))
@settings(max_examples=30, deadline=None)
def test_saves_cost_the_share_asked_for(job, share):
    """At the interval for a share, saves cost that share of loading and rescheduling."""
    if job.shard_load_seconds + job.reschedule_seconds == 0:
        return
    overhead = partial_overhead(job, save_interval_for_share(job, share))
    assert overhead.save == pytest.approx(share * (overhead.load + overhead.reschedule))


def test_mtbf_falls_as_one_over_nodes():
    """Twice the nodes fail twice as often."""
    assert costs().with_num_shards(16).mtbf == minutes(420)


def test_priority_ratio_matches_simulation():
    """The fluid model of priority saving is within 2 % of a step-by-step simulation, and 1 for rows alike."""
    for rates in (zipf_rates(2000, 1.05), zipf_rates(2000, 0.5), np.r_[zipf_rates(500, 1.0), np.zeros(1500)]):
        simulated = simulate_priority(rates, 0.125, 400, np.random.default_rng(3))
        assert priority_loss_ratio(rates, 0.125) == pytest.approx(simulated, rel=0.02)
    assert priority_loss_ratio(np.ones(1000), 0.125) == pytest.approx(1.0)
    assert priority_loss_ratio([1.0, 0.0, 0.0, 0.0], 0.25) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"mtbf": minutes(0)}, "mtbf must be longer"),
        ({"num_shards": 0}, "num_shards must be at least 1"),
        ({"save": minutes(-1)}, "save must not be negative"),
        ({"save_stall_fraction": 1.5}, r"save_stall_fraction must lie in \[0, 1\], got 1.5"),
    ],
)
def test_impossible_costs_are_refused(overrides, message):
    """A constant that cannot be is refused with its name and value."""
    with pytest.raises(ConfigError, match=message):
        costs(**overrides)


def test_impossible_budget_is_refused():
    """A budget of nothing is refused; one that background writes alone exceed gives full recovery, with the reason."""
    with pytest.raises(ConfigError, match="a PLS budget lies above 0, got 0"):
        recommend(costs(), 0)
    slow = costs(save=minutes(500), save_stall_fraction=0.01)
    answer = recommend(slow, 0.001)
    assert answer.recovery == "full"
    assert "cannot be kept" in answer.reason
