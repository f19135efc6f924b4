"""The strategies compared: how each recovers, what it saves and when, and what that costs on the virtual clock."""

from dataclasses import dataclass, replace
from typing import Literal

from recoup.checkpoint.policies import PolicyName
from recoup.core import ConfigError
from recoup.emulate.machine import JobTimes
from recoup.planner import ClusterCosts, optimal_save_interval, save_interval_for_pls, save_interval_for_share

PRIORITY_FRACTION = 0.125
"""r: the part of the large tables' rows saved each r T_save. Source: CPR (arXiv 2011.02999)."""
LARGE_TABLES = 7
"""Tables saved by priority, the largest; the others are saved whole each time. Source: CPR, 7 of Criteo's 26."""
RECOUP_FRACTION = 1 / 32
"""r of Recoup's own setting: the same volume of saves in smaller and more frequent parts loses less (our choice)."""
SAVE_SHARE = 0.115
"""Recoup saves so often that saves cost this share of what loading and rescheduling cost at failures (our choice)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One way to save and to recover."""

    name: str
    recovery: Literal["full", "partial"]
    interval: Literal["optimal", "pls", "affordable"]
    """T_save: the optimum of full recovery; the one that keeps the PLS budget; or, if that is shorter, the one at which
    saves cost `save_share` of what failures cost anyway."""
    policy: PolicyName = "none"
    """Which rows are saved first; none = whole tables every T_save."""
    asynchronous: bool = False
    """Whether saves are written in the background; how much still stalls is `ClusterCosts.save_stall_fraction`."""
    spare: bool = False
    """Whether a hot spare stands ready; how long it takes is an argument of `job_times`."""
    priority_fraction: float = PRIORITY_FRACTION
    """r; with the same volume of saves a smaller r saves the hottest rows more often."""
    save_share: float = SAVE_SHARE
    """For the interval "affordable": saves over loading and rescheduling without a spare."""

    @property
    def fraction(self) -> float:
        """Part of the large tables' rows in one save."""
        return 1.0 if self.policy == "none" else self.priority_fraction


STRATEGIES: dict[str, Strategy] = {
    s.name: s
    for s in (
        Strategy(name="full", recovery="full", interval="optimal"),
        Strategy(name="naive_partial", recovery="partial", interval="optimal"),
        Strategy(name="cpr_vanilla", recovery="partial", interval="pls"),
        Strategy(name="cpr_scar", recovery="partial", interval="pls", policy="scar"),
        Strategy(name="cpr_mfu", recovery="partial", interval="pls", policy="mfu"),
        Strategy(name="cpr_ssu", recovery="partial", interval="pls", policy="ssu"),
        Strategy(name="adagrad_change", recovery="partial", interval="pls", policy="adagrad_change"),
        Strategy(name="stale_use", recovery="partial", interval="pls", policy="stale_use"),
        Strategy(
            name="recoup",
            recovery="partial",
            interval="affordable",
            policy="stale_use",
            asynchronous=True,
            priority_fraction=RECOUP_FRACTION,
        ),
        Strategy(
            name="recoup_spare",
            recovery="partial",
            interval="affordable",
            policy="stale_use",
            asynchronous=True,
            priority_fraction=RECOUP_FRACTION,
            spare=True,
            save_share=0.18,  # what a spare saves at failures buys more frequent saves: below 0.12 % overhead in all
        ),
    )
}
"""By name. `recoup` is this project's own setting: small asynchronous saves, as often as they are nearly free."""


def strategy(name: str) -> Strategy:
    """Return the strategy called `name`.

    Raises:
        ConfigError: there is none.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"expected a strategy of {sorted(STRATEGIES)}, got {name!r}")
    return STRATEGIES[name]


def costs_of(chosen: Strategy, costs: ClusterCosts) -> ClusterCosts:
    """Return the constants as this strategy meets them: a synchronous one pays the whole save as stall."""
    return costs if chosen.asynchronous else replace(costs, save_stall_fraction=1.0)


def save_interval(chosen: Strategy, costs: ClusterCosts, pls_budget: float) -> float:
    """Return T_save in seconds: the time in which the volume of all rows is saved once."""
    costs = costs_of(chosen, costs)
    if chosen.interval == "optimal":
        return optimal_save_interval(costs)
    budgeted = save_interval_for_pls(costs, pls_budget)
    return budgeted if chosen.interval == "pls" else min(budgeted, save_interval_for_share(costs, chosen.save_share))


def job_times(
    chosen: Strategy,
    costs: ClusterCosts,
    *,
    useful_seconds: float,
    pls_budget: float,
    small_share: float = 0.0,
    spare_seconds: float | None = None,
) -> JobTimes:
    """Return what a job under this strategy takes on the virtual clock.

    Args:
        chosen: the strategy.
        costs: the cluster's constants.
        useful_seconds: training time without failures and saves.
        pls_budget: for strategies whose interval follows from it.
        small_share: share of all bytes in tables that are saved whole with every priority save.
        spare_seconds: measured time from a failure until a hot spare can load, for strategies with a spare.
    Raises:
        ConfigError: a spare's time is needed and not given.
    """
    if chosen.spare and spare_seconds is None:
        raise ConfigError(f"strategy {chosen.name!r} needs the measured time of a spare, got none")
    costs = costs_of(chosen, costs)
    volume = chosen.fraction * (1 - small_share) + small_share
    save = costs.save.total_seconds() * volume
    stall = save * costs.save_stall_fraction
    spare = spare_seconds if chosen.spare and spare_seconds is not None else costs.reschedule_seconds
    return JobTimes(
        useful=useful_seconds,
        save_interval=save_interval(chosen, costs, pls_budget) * chosen.fraction,
        stall=stall,
        background=save - stall,
        load=costs.load_seconds,
        shard_load=costs.shard_load_seconds,
        reschedule=costs.reschedule_seconds,
        partial_reschedule=spare,
    )
