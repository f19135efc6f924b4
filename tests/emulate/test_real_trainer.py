"""Law 6 with the real trainer: no failure = plain run; full loses nothing; partial touches failed rows only."""

from itertools import islice

import pytest
import torch

from recoup.emulate import (
    CriteoLikeData,
    EmulateConfig,
    EmulatedTraining,
    JobTimes,
    LearnerConfig,
    Machine,
    RunPlan,
    Whole,
    load_dataset,
    make_policy,
    make_trainer,
    prepare,
)
from recoup.failures import Failure

CONFIG = EmulateConfig(
    data=CriteoLikeData(num_samples=1500, scale=1e-4),
    learner=LearnerConfig(embedding_dim=4, bottom=(8,), top=(8,)),
    batch_size=64,
    num_seeds=1,
)


@pytest.fixture(scope="module")
def bench():
    return prepare(CONFIG, load_dataset(CONFIG.data), 0, make_trainer)


def bits(learner):
    rows = [part for view in learner.table_views().values() for part in (view.weight, *view.optimizer.values())]
    return torch.cat([part.reshape(-1) for part in (*rows, *learner.dense_state().values())]).clone()


def run(bench, failures, policy="none", recovery="partial"):
    bench.start.revert(bench.learner)
    fraction = 1.0 if policy == "none" else 0.125
    workload = EmulatedTraining(
        plan=RunPlan(step_seconds=1.0, recovery=recovery, fraction=fraction),
        course=bench.course,
        learner=bench.learner,
        start=bench.start,
        policy=make_policy(policy, bench.learner.table_views(), fraction, seed=0),
    )
    times = JobTimes(
        useful=float(bench.course.num_steps),
        save_interval=4.0,
        stall=0.1,
        background=0.0,
        load=1.0,
        shard_load=0.2,
        reschedule=0.3,
        partial_reschedule=0.3,
    )
    return workload, Machine(times=times, failures=iter(failures), workload=workload).run()


@pytest.fixture(scope="module")
def plain(bench):
    bench.start.revert(bench.learner)
    for batch in bench.course.batches:
        bench.learner.step(batch)
    return bits(bench.learner)


@pytest.mark.parametrize("policy", ["none", "scar", "mfu", "ssu", "adagrad_change", "stale_use"])
def test_no_failure_is_the_plain_run(bench, plain, policy):
    """Under every policy a run without failures has the plain run's rows, optimizer rows and dense part, to the bit."""
    _, account = run(bench, [], policy)
    assert account.num_saves > 2
    assert torch.equal(bits(bench.learner), plain)


def test_full_recovery_ends_in_the_plain_run(bench, plain):
    """Two failures, one during recovery: everything is trained again, to the bit."""
    failures = [Failure(seconds=s, shards=(1,)) for s in (7.5, 8.0, 14.0)]
    _, account = run(bench, failures, recovery="full")
    assert (account.num_failures, account.num_full) == (3, 2)
    assert torch.equal(bits(bench.learner), plain)


@pytest.mark.parametrize("policy", ["none", "mfu"])
def test_partial_recovery_leaves_survivors_alone(bench, policy):
    """At the moment of failure only rows of the failed shards change; then training goes on to other bits."""
    seen = []
    workload, _ = run(bench, [], policy)
    bench.start.revert(bench.learner)
    fraction = workload.plan.fraction
    workload = EmulatedTraining(
        plan=workload.plan,
        course=bench.course,
        learner=bench.learner,
        start=bench.start,
        policy=make_policy(policy, bench.learner.table_views(), fraction, seed=0),
    )
    workload.train_to(6.0)
    before = Whole.of(bench.learner, 6)
    workload.recover_partial([(2, 5)], 6.0)
    dense = bench.learner.dense_state()
    assert all(torch.equal(dense[name], value) for name, value in before.dense.items())
    for table, view in bench.learner.table_views().items():
        lost = torch.cat([bench.course.rows_of_shard[k][table] for k in (2, 5)])
        kept = torch.ones(view.weight.shape[0], dtype=torch.bool)
        kept[lost] = False
        assert torch.equal(view.weight[kept], before.rows.rows[table]["weight"][kept])
        assert torch.equal(view.weight[lost], bench.start.rows.rows[table]["weight"][lost])
        seen.append(bool((view.weight[lost] != before.rows.rows[table]["weight"][lost]).any()))
    assert any(islice(seen, 26))
