"""Slow, obvious simulations of a job that fails: nothing here is shared with the planner or the emulator."""

import numpy as np


def simulate_full(costs, interval, num_cycles, rng):
    """Wall time over useful time - 1 of full recovery, one stretch of training and saving after the other."""
    mean, wall = costs.mtbf_seconds, 0.0
    recovery = costs.load_seconds + costs.reschedule_seconds
    next_failure = rng.exponential(mean)
    for _ in range(num_cycles):
        while True:
            end = wall + interval + costs.stall_seconds
            if next_failure >= end:
                wall = end
                break
            wall, next_failure = recover(next_failure, recovery, mean, rng)
    return wall / (num_cycles * interval) - 1


def simulate_partial(costs, interval, num_cycles, rng):
    """Wall time over useful time - 1, and PLS, of partial recovery."""
    mean, wall, lost = costs.mtbf_seconds, 0.0, 0.0
    recovery = costs.shard_load_seconds + costs.reschedule_seconds
    next_failure = rng.exponential(mean)
    for _ in range(num_cycles):
        trained = 0.0
        while trained < interval:
            if next_failure >= wall + interval - trained:
                wall, trained = wall + interval - trained, interval
            else:
                trained += next_failure - wall
                lost += trained
                wall, next_failure = recover(next_failure, recovery, mean, rng)
        while next_failure < wall + costs.stall_seconds:
            lost += interval
            wall, next_failure = recover(next_failure, recovery, mean, rng)
        wall += costs.stall_seconds
    useful = num_cycles * interval
    return wall / useful - 1, lost / useful / costs.num_shards


def recover(failed_at, recovery, mean, rng):
    """Return when training goes on and when the next failure comes; failures during recovery begin it again."""
    while True:
        next_failure = failed_at + rng.exponential(mean)
        if next_failure >= failed_at + recovery:
            return failed_at + recovery, next_failure
        failed_at = next_failure


def simulate_priority(rates, fraction, num_savings, rng):
    """Lost accesses of priority saving over plain saving: count accesses, save the r N highest, round by round."""
    rows, save, lost = rates.size, max(1, round(fraction * rates.size)), []
    counts = np.zeros(rows)
    for saving in range(num_savings):
        new = rng.poisson(rates * 1e7 * fraction)
        if saving > num_savings // 2:
            lost.append((counts + new / 2).sum())
        counts += new
        counts[np.argsort(-counts, kind="stable")[:save]] = 0
    return float(np.mean(lost)) / (rates.sum() * 1e7 / 2)
