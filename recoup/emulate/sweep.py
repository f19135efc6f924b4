"""Overhead of every strategy against the number of nodes and against the MTBF, from clock-only emulated runs."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import count
from typing import Any

from recoup.core import derive_seed
from recoup.emulate.clock_only import ClockOnly, ClockResult, run_clock_only
from recoup.emulate.config import EmulateConfig
from recoup.emulate.machine import JobTimes
from recoup.emulate.strategy import STRATEGIES, Strategy, costs_of, job_times, save_interval
from recoup.failures import Trace, draw_failures
from recoup.planner import ClusterCosts, full_overhead, partial_overhead

NUM_RUNS = 40
MTBFS_A_RUN = 40


def clock_run(
    chosen: Strategy, costs: ClusterCosts, trace: Trace, times: JobTimes, *, num_runs: int = NUM_RUNS, seed: int = 0
) -> ClockResult:
    """Emulate `num_runs` jobs of `times` without training.

    Args:
        chosen: the strategy.
        costs: the cluster's constants.
        trace: failures; every job draws its own from `seed`.
        times: of one job (`job_times`).
        num_runs: at least 2; the standard error falls as its root.
        seed: of the traces.
    """
    cycle = round(1 / chosen.fraction)
    workloads = (
        ClockOnly(num_shards=costs.num_shards, recovery=chosen.recovery, savings_per_cycle=cycle) for _ in count()
    )
    traces = (draw_failures(trace, costs.num_shards, derive_seed(seed, "clock", i)) for i in count())
    return run_clock_only(times, workloads, traces, num_runs)


def clock_records(config: EmulateConfig) -> Iterator[dict[str, Any]]:
    """Yield one record for every strategy at every number of nodes and every MTBF of the configuration."""
    if config.failures.distribution == "recorded":
        return  # a recording fits one cluster only
    budget = sorted(config.pls)[len(config.pls) // 2]
    base = config.cluster.costs()
    points = [("nodes", float(nodes), base.with_num_shards(nodes)) for nodes in config.nodes]
    points += [("mtbf_hours", hours, replace(base, mtbf=timedelta(hours=hours))) for hours in config.mtbf_hours]
    spare = None if config.cluster.spare is None else config.cluster.spare.total_seconds()
    for axis, value, costs in points:
        for name in config.strategies:
            chosen = STRATEGIES[name]
            trace = config.failures.trace(costs.mtbf)
            useful = MTBFS_A_RUN * costs.mtbf_seconds
            times = job_times(chosen, costs, useful_seconds=useful, pls_budget=budget, spare_seconds=spare)
            result = clock_run(chosen, costs, trace, times)
            interval = save_interval(chosen, costs, budget)
            formula = partial_overhead if chosen.recovery == "partial" else full_overhead
            yield {
                "kind": "clock",
                "axis": axis,
                "value": value,
                "strategy": name,
                "pls_budget": budget,
                "overhead": asdict(result.account.overhead) | {"total": result.overhead},
                "overhead_error": result.overhead_error,
                "overhead_formula": formula(costs_of(chosen, costs), interval).total,
                "pls": result.pls,
            }
