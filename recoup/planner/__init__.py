"""Arithmetic of recovery: overheads, save intervals, portion of lost samples, and when to fall back. No torch."""

from recoup.planner.costs import ClusterCosts
from recoup.planner.failure_time import FailureClock, FailureTime, GammaFit, estimate_failure_time, fit_gamma
from recoup.planner.lost_samples import access_shares, expected_pls, expected_weighted_pls, save_interval_for_pls
from recoup.planner.overhead import (
    Overhead,
    full_overhead,
    optimal_save_interval,
    partial_overhead,
    save_interval_for_share,
)
from recoup.planner.priority import priority_loss_ratio, zipf_rates
from recoup.planner.recommend import Recommendation, crossover_pls, recommend
from recoup.planner.renewal import full_overhead_exact, optimal_save_interval_exact, partial_overhead_exact

__all__ = [
    "ClusterCosts",
    "FailureClock",
    "FailureTime",
    "GammaFit",
    "Overhead",
    "Recommendation",
    "access_shares",
    "crossover_pls",
    "estimate_failure_time",
    "expected_pls",
    "expected_weighted_pls",
    "fit_gamma",
    "full_overhead",
    "full_overhead_exact",
    "optimal_save_interval",
    "optimal_save_interval_exact",
    "partial_overhead",
    "partial_overhead_exact",
    "priority_loss_ratio",
    "recommend",
    "save_interval_for_pls",
    "save_interval_for_share",
    "zipf_rates",
]
