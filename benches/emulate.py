"""What failures cost, in time and in quality, under every way to save and recover.

    python -m benches.emulate [--quick]

Overheads: emulated runs on the virtual clock (the event machine of `recoup.emulate`, no training), long enough that the
standard error is below a tenth of each figure, beside the planner's formula. Quality: real training, AUC drop against
the failure-free run of the same seed and order. Laws first: no failure = plain run to the bit, overheads = planner.
Recoup's own setting takes its stall fraction and its spare's restart time from measured results, never from a guess:
see `measured_stall` and `measured_restart`; `sources` in the JSON says where each came from.
"""

import argparse
import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from rich.console import Console

from benches.measured import measured_restart, measured_stall
from benches.quality import configurations, gains_over_vanilla, run_all, verdict
from recoup.emulate import STRATEGIES, Comparison, clock_run, compare, job_times, save_interval
from recoup.failures import ExponentialTrace
from recoup.planner import ClusterCosts, full_overhead, full_overhead_exact, partial_overhead, partial_overhead_exact
from recoup.report import Cell, Summary, summary_table

MINUTE = timedelta(minutes=1)
COSTS = ClusterCosts(mtbf=840 * MINUTE, num_shards=8, save=2.5 * MINUTE, load=2.5 * MINUTE, reschedule=3 * MINUTE)
"""The constants of the comparison: one lone shard loads in an eighth of `load`."""
PLS_BUDGET = 0.1
SMALL_SHARE = 0.0042  # rows in Criteo Kaggle's 19 small tables, saved whole with every priority save
KEYS = {
    "full": "overhead_full",
    "naive_partial": "overhead_naive_partial",
    "cpr_vanilla": "overhead_cpr_vanilla",
    "cpr_mfu": "overhead_cpr_mfu",
    "cpr_ssu": "overhead_cpr_ssu",
    "recoup": "overhead_recoup",
    "recoup_spare": "overhead_recoup_spare",
}


def overheads(num_runs: int, stall: float, restart: float | None) -> tuple[dict[str, Any], list[list[Cell]]]:
    """Emulate every strategy on the clock; check the laws; return JSON keys and table rows."""
    found: dict[str, Any] = {}
    rows: list[list[Cell]] = []
    for name, key in KEYS.items():
        chosen = STRATEGIES[name]
        if chosen.spare and restart is None:
            found[key] = None
            continue
        costs = replace(COSTS, save_stall_fraction=stall) if chosen.asynchronous else COSTS
        small = SMALL_SHARE if chosen.policy != "none" else 0.0
        times = job_times(
            chosen,
            costs,
            useful_seconds=40 * costs.mtbf_seconds,
            pls_budget=PLS_BUDGET,
            small_share=small,
            spare_seconds=restart,
        )
        result = clock_run(chosen, costs, ExponentialTrace(mtbf=costs.mtbf), times, num_runs=num_runs)
        formula, exact = formulas(name, costs, restart)
        assert result.overhead_error < 0.1 * result.overhead, (name, result)
        if name == "full":
            assert abs(result.overhead / formula - 1) < 0.08, (result, formula)
            assert exact is not None, name
            assert abs(result.overhead / exact - 1) < 0.03, (result, exact)
        found[key] = result.overhead
        found[f"{key}_error"] = result.overhead_error
        found[f"{key}_formula"] = formula
        parts = result.account.overhead
        rows.append(
            [name, *[100 * v for v in (result.overhead, result.overhead_error, formula)]]
            + [None if exact is None else 100 * exact]
            + [100 * v for v in (parts.save, parts.load, parts.lost, parts.reschedule)]
            + [result.pls]
        )
    return found, rows


def formulas(name: str, costs: ClusterCosts, restart: float | None) -> tuple[float, float | None]:
    """Return the planner's first-order overhead and, for synchronous saves, the exact expectation."""
    chosen = STRATEGIES[name]
    interval = save_interval(chosen, costs, PLS_BUDGET)
    if chosen.spare and restart is not None:
        costs = replace(costs, reschedule=timedelta(seconds=restart))
    if chosen.recovery == "full":
        return full_overhead(costs, interval).total, full_overhead_exact(costs, interval)
    exact = None if chosen.asynchronous else partial_overhead_exact(costs, interval)
    return partial_overhead(costs, interval).total, exact


def overhead_table(rows: list[list[Cell]], stall: str, restart: str) -> Summary:
    """Return the table of overheads."""
    columns = ["strategy", "emulated %", "± error", "formula %", "exact %", "save", "load", "lost", "resched.", "PLS"]
    note = (
        "% of useful time; MTBF 840 min, 8 shards, save 2.5 min, load 2.5 min for all shards, reschedule 3 min, "
        f"PLS budget {PLS_BUDGET}\nrecoup's stall fraction: {stall}\nspare: {restart}"
    )
    return summary_table("Overhead of failures, on the virtual clock", columns, rows, note=note)


def quality_keys(name: str, found: list[Comparison]) -> dict[str, Any]:
    """Return `auc_drop_<strategy>` -> data set -> budget -> mean and standard error."""
    keys: dict[str, Any] = {}
    for c in found:
        facts = {
            "mean": c.auc_drop,
            "error": None if c.num_seeds < 2 else c.auc_drop_error,
            "seeds": c.num_seeds,
            "pls": c.pls,
            "effective_pls": c.effective_pls,
        }
        keys.setdefault(f"auc_drop_{c.strategy}", {}).setdefault(name, {})[str(c.pls_budget or "optimal")] = facts
    return keys


def quality_table(name: str, found: list[Comparison], gains: dict[tuple[str, float], tuple[float, float]]) -> Summary:
    """Return the table of AUC drops."""
    rows: list[list[Cell]] = []
    for c in found:
        gain = gains.get((c.strategy, c.pls_budget))
        rows.append(
            [c.strategy, c.pls_budget or None, c.num_seeds]
            + [f"{c.auc_drop:+.5f} ± {c.auc_drop_error:.5f}", f"{c.pls:.4f}", f"{c.effective_pls:.4f}"]
            + ([None, None] if gain is None else [f"{gain[0]:+.5f} ± {gain[1]:.5f}", verdict(*gain, c.num_seeds)])
        )
    columns = ["strategy", "budget", "seeds", "AUC drop", "PLS", "effective", "AUC above vanilla", "which is"]
    synthetic = " (synthetic data)" if name == "criteo_like" else ""
    note = "AUC drop against the failure-free run of the same seed and order; full recovery is asserted to drop nothing"
    return summary_table(f"Quality under failures: {name}{synthetic}", columns, rows, note=note)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer seeds and samples, one budget: under 50 s")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    began = time.perf_counter()
    stall, restart = measured_stall(500_000 if arguments.quick else 1_000_000), measured_restart()
    found, rows = overheads(400, stall.value, None if restart is None else restart.value)
    console = Console(width=140)
    restart_words = (
        "not measured yet: run benches.recovery and keep its output"
        if restart is None
        else (f"{restart.value:.3g} s from kill to next step, {restart.source}")
    )
    console.print(overhead_table(rows, f"{stall.value:.3g}, {stall.source}", restart_words).rich())
    found["sources"] = {
        "stall_fraction": stall.source,
        "restart_seconds": None if restart is None else restart.source,
    }
    found["stall_fraction"] = stall.value
    found["restart_seconds"] = None if restart is None else restart.value
    configs = configurations(
        quick=arguments.quick, stall=stall.value, restart=None if restart is None else restart.value
    )
    if "kuairand" not in configs:
        console.print("KuaiRand is left out: ../shared/data/kuairand is absent")
    gains_json: dict[str, Any] = {}
    for name, records in run_all(configs, arguments.workers).items():
        compared, gains = compare(records), gains_over_vanilla(records)
        console.print(quality_table(name, compared, gains).rich())
        for key, value in quality_keys(name, compared).items():
            found.setdefault(key, {}).update(value)
        seeds = configs[name].num_seeds
        gains_json[name] = {
            f"{s}@{b:g}": {"mean": g, "error": e, "verdict": verdict(g, e, seeds)} for (s, b), (g, e) in gains.items()
        }
        for c in compared:
            if c.strategy.startswith("recoup") and c.pls_budget == PLS_BUDGET:
                found.setdefault(f"{c.strategy}_within_one_error_of_zero", {})[name] = c.within_one_error
    found["auc_above_vanilla"] = gains_json
    found["seconds"] = time.perf_counter() - began
    print(json.dumps(found))


if __name__ == "__main__":
    main()
