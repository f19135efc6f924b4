"""Overhead of full and partial recovery to first order, as fractions of the useful training time.

Exact expectations under exponential failures are in `renewal`; both agree as costs become small against the MTBF.
Source: CPR (arXiv 2011.02999), overhead model. Differs: a save may be split in stall and background.
"""

import math
from dataclasses import dataclass

from recoup.planner.costs import ClusterCosts


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """Time spent beside training, each part as a fraction of the useful training time."""

    save: float
    """Training stands still for saves."""
    load: float
    """Rows are loaded after failures."""
    lost: float
    """Work is done again because it was lost."""
    reschedule: float
    """A replacement is awaited."""

    @property
    def total(self) -> float:
        """Sum of the four."""
        return self.save + self.load + self.lost + self.reschedule


def full_overhead(costs: ClusterCosts, save_interval_seconds: float) -> Overhead:
    """Return the first-order overhead of full recovery: every failure loads all shards and repeats lost work.

    O_save/T_save + (O_load + T_save/2 + O_res)/T_fail; a background write adds its length to the lost work.

    Args:
        costs: the job's constants.
        save_interval_seconds: T_save > 0, training time between the starts of saves.
    """
    lost = save_interval_seconds / 2 + costs.background_seconds
    return Overhead(
        save=costs.stall_seconds / save_interval_seconds,
        load=costs.load_seconds / costs.mtbf_seconds,
        lost=lost / costs.mtbf_seconds,
        reschedule=costs.reschedule_seconds / costs.mtbf_seconds,
    )


def partial_overhead(costs: ClusterCosts, save_interval_seconds: float) -> Overhead:
    """Return the first-order overhead of partial recovery: one shard is loaded, nothing is computed again.

    O_save/T_save + (O_load of one shard + O_res)/T_fail.
    """
    return Overhead(
        save=costs.stall_seconds / save_interval_seconds,
        load=costs.shard_load_seconds / costs.mtbf_seconds,
        lost=0.0,
        reschedule=costs.reschedule_seconds / costs.mtbf_seconds,
    )


def optimal_save_interval(costs: ClusterCosts) -> float:
    """Return the T_save in seconds that makes `full_overhead` least: sqrt(2 O_save T_fail), stall part only."""
    return math.sqrt(2 * costs.stall_seconds * costs.mtbf_seconds)


def save_interval_for_share(costs: ClusterCosts, share: float) -> float:
    """Return the T_save in seconds at which saves cost `share` of what partial recovery costs at failures.

    Where saves hardly stall, a PLS budget alone would save too seldom: quality is to be had for almost nothing.

    Args:
        costs: the job's constants.
        share: cost of saves over that of loading and rescheduling, > 0.
    """
    per_failure = costs.shard_load_seconds + costs.reschedule_seconds
    return costs.stall_seconds * costs.mtbf_seconds / (share * per_failure)
