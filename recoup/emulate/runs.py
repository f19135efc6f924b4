"""The runs of one seed: a failure-free one, then every strategy and budget on the same start, order and failures.

Data in: the configuration, a data set, a seed, which runs are wanted. Data out: one plain record a run. Every run
begins from the same copy of the learner's state, so records of one seed may be subtracted from each other.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recoup.checkpoint import ShardPlan
from recoup.core import EventLog, generator
from recoup.emulate.config import EmulateConfig
from recoup.emulate.course import Course, prepare_course
from recoup.emulate.learner import Learner, Whole
from recoup.emulate.machine import Machine
from recoup.emulate.policies import make_policy
from recoup.emulate.samples import Dataset, plain_batches, shuffled
from recoup.emulate.strategy import STRATEGIES, Strategy, costs_of, job_times, save_interval
from recoup.emulate.training import EmulatedTraining, RunPlan, small_share
from recoup.failures import draw_failures
from recoup.jagged import Batch
from recoup.planner import expected_pls, full_overhead, partial_overhead
from recoup.recovery import GuardConfig

NO_FAILURES = "no_failures"
"""Name of the plain run that the others are compared with."""


@dataclass(frozen=True, order=True, slots=True)
class RunKey:
    """Which run."""

    seed: int
    strategy: str
    pls_budget: float
    """0 for strategies whose interval does not depend on a budget."""


def wanted_runs(config: EmulateConfig) -> list[RunKey]:
    """Return every run of the configuration, those of a seed together, the failure-free one first."""
    keys: list[RunKey] = []
    for seed in range(config.num_seeds):
        keys.append(RunKey(seed, NO_FAILURES, 0.0))
        for name in config.strategies:
            budgets = (0.0,) if STRATEGIES[name].interval == "optimal" else config.pls
            keys += [RunKey(seed, name, budget) for budget in budgets]
    return keys


@dataclass(slots=True)
class Bench:
    """A learner and a course, prepared for one seed."""

    config: EmulateConfig
    course: Course
    learner: Learner
    start: Whole
    test: Sequence[Batch]


def prepare(
    config: EmulateConfig, dataset: Dataset, seed: int, make_learner: Callable[[EmulateConfig, Dataset, int], Learner]
) -> Bench:
    """Shuffle the training samples and initialise the learner, both by `seed`."""
    samples = shuffled(dataset.train, generator(seed, "emulate", "order"))
    learner = make_learner(config, dataset, seed)
    sizes = {table: view.weight.shape[0] for table, view in learner.table_views().items()}
    course = prepare_course(plain_batches(samples, config.batch_size), learner, shard_plan(config, sizes))
    return Bench(config, course, learner, Whole.of(learner, 0), plain_batches(dataset.test, 4096))


def shard_plan(config: EmulateConfig, sizes: dict[str, int]) -> ShardPlan:
    """Return who holds which rows."""
    build = {"hash": ShardPlan.by_hash, "range": ShardPlan.by_range, "table": ShardPlan.by_table}
    return build[config.cluster.sharding](sizes, config.cluster.num_shards)


def run_one(bench: Bench, key: RunKey, events: EventLog | None = None) -> dict[str, Any]:
    """Run one key from the start; return its plain record."""
    began = time.perf_counter()
    bench.start.revert(bench.learner)
    if key.strategy == NO_FAILURES:
        for batch in bench.course.batches:
            bench.learner.step(batch)
        record: dict[str, Any] = {}
    else:
        record = _emulate(bench, key, STRATEGIES[key.strategy], events or EventLog())
    quality = bench.learner.evaluate(bench.test)
    record |= {"auc": quality.auc, "log_loss": quality.log_loss, "seconds": time.perf_counter() - began}
    return {"kind": "run", **asdict(key), **record}


def run_seed(bench: Bench, keys: Sequence[RunKey]) -> Iterator[dict[str, Any]]:
    """Yield the record of each key."""
    for key in keys:
        yield run_one(bench, key)


def _emulate(bench: Bench, key: RunKey, chosen: Strategy, events: EventLog) -> dict[str, Any]:
    config, cluster, course = bench.config, bench.config.cluster, bench.course
    costs = costs_of(chosen, cluster.costs())
    useful = cluster.training.total_seconds()
    guard = None if config.guard_pls is None else GuardConfig(pls_budget=config.guard_pls)
    workload = EmulatedTraining(
        plan=RunPlan(
            step_seconds=useful / course.num_steps,
            recovery=chosen.recovery,
            fraction=chosen.fraction,
            guard=guard,
        ),
        course=course,
        learner=bench.learner,
        start=bench.start,
        policy=make_policy(chosen.policy, bench.learner.table_views(), chosen.fraction, key.seed),
        events=events,
    )
    times = job_times(
        chosen,
        costs,
        useful_seconds=useful,
        pls_budget=key.pls_budget,
        small_share=small_share(course.num_rows),
        spare_seconds=None if cluster.spare is None else cluster.spare.total_seconds(),
    )
    failures = draw_failures(config.failures.trace(cluster.mtbf), cluster.num_shards, key.seed)
    account = Machine(times=times, failures=failures, workload=workload).run()
    interval = save_interval(chosen, costs, key.pls_budget)
    formula = partial_overhead if chosen.recovery == "partial" else full_overhead
    ledger = workload.ledger
    return {
        "overhead": asdict(account.overhead) | {"total": account.overhead.total},
        "overhead_formula": formula(costs, interval).total,
        "pls": ledger.pls,
        "pls_formula": expected_pls(costs, interval) if chosen.recovery == "partial" else 0.0,
        "distinct_pls": ledger.distinct_pls,
        "weighted_pls": ledger.weighted_pls,
        "effective_pls": ledger.effective_pls,
        "num_failures": account.num_failures,
        "num_saves": account.num_saves,
        "num_full": account.num_full,
        "num_partial": account.num_partial,
        "rows_saved": workload.rows_saved,
        "save_interval_seconds": interval,
    }
