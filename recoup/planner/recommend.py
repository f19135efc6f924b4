"""The planner's answer: which recovery, how often to save, what it costs, and why, in words."""

from dataclasses import dataclass
from typing import Literal

from recoup.core import ConfigError
from recoup.planner.costs import ClusterCosts
from recoup.planner.lost_samples import expected_pls, save_interval_for_pls
from recoup.planner.overhead import Overhead, full_overhead, optimal_save_interval, partial_overhead


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """One way of recovering, with the numbers that led to it."""

    recovery: Literal["full", "partial"]
    save_interval_seconds: float
    """T_save of the way chosen."""
    overhead: Overhead
    """First-order overhead of the way chosen."""
    expected_pls: float
    """0 for full recovery: it loses no update."""
    full: Overhead
    """Full recovery at its optimal interval."""
    full_save_interval_seconds: float
    partial: Overhead | None
    """Partial recovery at the interval of the PLS budget; None if the budget cannot be kept at all."""
    partial_save_interval_seconds: float | None
    crossover_pls: float
    """Budget below which full recovery is the cheaper one; infinity if it always is."""
    reason: str


def recommend(costs: ClusterCosts, pls_budget: float) -> Recommendation:
    """Choose between full recovery at its optimum and partial recovery at the interval that `pls_budget` allows.

    Partial is chosen only if it costs strictly less: where both cost the same, full recovery loses no update.

    Raises:
        ConfigError: the budget is not above 0, or a save's stall is 0 (then there is no optimum to compare with).
    """
    if costs.stall_seconds <= 0:
        raise ConfigError("a save that never stalls has no optimal interval: save as often as the storage allows")
    if not pls_budget > 0:
        raise ConfigError(f"a PLS budget lies above 0, got {pls_budget}")
    full_interval = optimal_save_interval(costs)
    full = full_overhead(costs, full_interval)
    try:
        interval = save_interval_for_pls(costs, pls_budget)
        partial = partial_overhead(costs, interval)
    except ConfigError as err:
        interval, partial, reason = None, None, str(err)
    else:
        reason = _reason(partial, full, pls_budget)
    use_partial = partial is not None and partial.total < full.total
    chosen = partial if use_partial and partial is not None else full
    chosen_interval = interval if use_partial and interval is not None else full_interval
    return Recommendation(
        recovery="partial" if use_partial else "full",
        save_interval_seconds=chosen_interval,
        overhead=chosen,
        expected_pls=expected_pls(costs, chosen_interval) if use_partial else 0.0,
        full=full,
        full_save_interval_seconds=full_interval,
        partial=partial,
        partial_save_interval_seconds=interval,
        crossover_pls=crossover_pls(costs),
        reason=reason,
    )


def crossover_pls(costs: ClusterCosts) -> float:
    """Return the PLS budget at which partial and full recovery (at its optimum) cost the same, to first order."""
    full = full_overhead(costs, optimal_save_interval(costs)).total
    per_failure = (costs.shard_load_seconds + costs.reschedule_seconds) / costs.mtbf_seconds
    if full <= per_failure:
        return float("inf")
    return expected_pls(costs, costs.stall_seconds / (full - per_failure))


def _reason(partial: Overhead, full: Overhead, pls_budget: float) -> str:
    ours, theirs = f"{100 * partial.total:.3g} %", f"{100 * full.total:.3g} %"
    if partial.total < full.total:
        return f"partial recovery within a PLS budget of {pls_budget:g} costs {ours}, full recovery at best {theirs}"
    return (
        f"partial recovery within a PLS budget of {pls_budget:g} must save so often that it costs {ours}, "
        f"no less than the {theirs} of full recovery, which loses no update"
    )
