"""Exact expected overhead when failures are a Poisson process that strikes at any moment.

The machine: train T_save, then stand still for the save (stall part), then train on. A failure during training or
saving under full recovery goes back to the last save; under partial recovery only an interrupted save begins again.
A failure during recovery begins the recovery again. A stretch of length L that a failure at rate f sends back to its
start takes (exp(f L) - 1) / f in expectation, and each failure's recovery of length R multiplies times by exp(f R).
Synchronous saves only: a save in the background overlaps cycles, and `overhead` bounds its effect.
"""

import math

from recoup.core import ConfigError
from recoup.planner.costs import ClusterCosts


def full_overhead_exact(costs: ClusterCosts, save_interval_seconds: float) -> float:
    """Return the expected overhead of full recovery over useful time.

    Raises:
        ConfigError: saves have a background part.
    """
    _refuse_background(costs)
    rate = 1 / costs.mtbf_seconds
    cycle = save_interval_seconds + costs.stall_seconds
    recovery = costs.load_seconds + costs.reschedule_seconds
    return math.exp(rate * recovery) * math.expm1(rate * cycle) / (rate * save_interval_seconds) - 1


def partial_overhead_exact(costs: ClusterCosts, save_interval_seconds: float) -> float:
    """Return the expected overhead of partial recovery over useful time.

    Raises:
        ConfigError: saves have a background part.
    """
    _refuse_background(costs)
    rate = 1 / costs.mtbf_seconds
    recovery = costs.shard_load_seconds + costs.reschedule_seconds
    save = math.expm1(rate * costs.stall_seconds) / rate
    return math.exp(rate * recovery) * (1 + save / save_interval_seconds) - 1


def optimal_save_interval_exact(costs: ClusterCosts) -> float:
    """Return the T_save in seconds that makes `full_overhead_exact` least.

    With x = T_save / T_fail and s = O_save / T_fail the optimum solves exp(-x - s) = 1 - x (Newton, from sqrt(2 s)).

    Raises:
        ConfigError: saves have a background part.
    """
    _refuse_background(costs)
    save = costs.stall_seconds / costs.mtbf_seconds
    x = min(math.sqrt(2 * save), 1 - 1e-9)
    for _ in range(60):
        slope = 1 - math.exp(-x - save)
        if slope <= 0:
            break
        x = min(max(x - (x - 1 + math.exp(-x - save)) / slope, 1e-300), 1 - 1e-12)
    return x * costs.mtbf_seconds


def _refuse_background(costs: ClusterCosts) -> None:
    if costs.background_seconds > 0:
        raise ConfigError(
            "the exact expectation holds for synchronous saves, got save_stall_fraction = "
            f"{costs.save_stall_fraction}: use the first-order overhead or the emulator"
        )
