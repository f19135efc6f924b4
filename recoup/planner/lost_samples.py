"""Portion of lost samples (PLS): what partial recovery costs in updates, in expectation.

At each failure of shard k the updates since the last save are lost there: PLS += w_k (S_now - S_last_save) / S_total,
with w_k = 1/N_emb for shards alike (the paper), or shard k's share of all accesses.
Source: CPR (arXiv 2011.02999), definition of PLS. Differs: weights by access; a save's background part.
"""

from collections.abc import Sequence

from recoup.core import ConfigError
from recoup.planner.costs import ClusterCosts


def expected_pls(costs: ClusterCosts, save_interval_seconds: float) -> float:
    """Return E[PLS] = (T_save/2 + background) / (T_fail N_emb), whatever the length of the run."""
    lost = save_interval_seconds / 2 + costs.background_seconds
    return lost / (costs.mtbf_seconds * costs.num_shards)


def save_interval_for_pls(costs: ClusterCosts, pls_budget: float) -> float:
    """Return the T_save in seconds at which E[PLS] = `pls_budget`: 2 PLS N_emb T_fail, less twice the background.

    Raises:
        ConfigError: the budget is not above 0, or saves in the background alone lose more than the budget.
    """
    if not pls_budget > 0:
        raise ConfigError(f"a PLS budget lies above 0, got {pls_budget}")
    interval = 2 * (pls_budget * costs.num_shards * costs.mtbf_seconds - costs.background_seconds)
    if interval <= 0:
        raise ConfigError(
            f"a PLS budget of {pls_budget} cannot be kept: background writes of {costs.background_seconds:g} s alone "
            f"lose {costs.background_seconds / (costs.mtbf_seconds * costs.num_shards):.3g}"
        )
    return interval


def access_shares(accesses: Sequence[float]) -> tuple[float, ...]:
    """Return each shard's share of all accesses; shards that were never accessed share nothing.

    Raises:
        ConfigError: a negative count, or no access at all.
    """
    total = float(sum(accesses))
    if total <= 0 or min(accesses) < 0:
        raise ConfigError(f"accesses by shard must be at least 0 and not all 0, got {list(accesses)}")
    return tuple(float(count) / total for count in accesses)


def expected_weighted_pls(
    costs: ClusterCosts, save_interval_seconds: float, shares: Sequence[float], failure_shares: Sequence[float] = ()
) -> float:
    """Return E[PLS] when shard k holds `shares[k]` of the accesses.

    Args:
        costs: the job's constants; `num_shards` must be the length of `shares`.
        save_interval_seconds: T_save.
        shares: share of accesses by shard, sum 1.
        failure_shares: chance that a failure is of shard k, sum 1; () = every shard alike. With shards alike in
            failing the weighted expectation equals the plain one: only single events differ.
    """
    if len(shares) != costs.num_shards or len(failure_shares) not in (0, len(shares)):
        raise ConfigError(f"expected {costs.num_shards} shares, got {len(shares)} and {len(failure_shares)}")
    chances = failure_shares or [1 / len(shares)] * len(shares)
    weight = sum(share * chance for share, chance in zip(shares, chances, strict=True))
    return expected_pls(costs, save_interval_seconds) * costs.num_shards * weight
