"""Law 6 on the emulator: no failure = plain run; partial changes the failed shards only; full loses nothing."""

from datetime import timedelta
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import EventLog, read_events
from recoup.emulate import (
    CriteoLikeData,
    EmulatedTraining,
    JobTimes,
    Machine,
    RunPlan,
    Whole,
    load_dataset,
    plain_batches,
    prepare_course,
)
from recoup.failures import ExponentialTrace, Failure, draw_failures
from recoup.planner import ClusterCosts, expected_pls
from recoup.recovery import GuardConfig
from tests.emulate.tiny import HashShards, MostAccessed, TinyLearner

SHARDS = 4
DATA = load_dataset(CriteoLikeData(num_samples=1600, scale=1e-4))
BATCHES = plain_batches(DATA.train, 16)
TEST = plain_batches(DATA.test, 500)


def learner():
    return TinyLearner(dict(DATA.num_rows), 13)


COURSE = prepare_course(BATCHES, learner(), HashShards(dict(DATA.num_rows), SHARDS))


def state(trained):
    parts = [trained.dense, *(t.weight for t in trained.tables.values())]
    return torch.cat([p.reshape(-1) for p in [*parts, *(t.optimizer["momentum1"] for t in trained.tables.values())]])


def plain_run():
    trained = learner()
    for batch in BATCHES:
        trained.step(batch)
    return trained


def emulate(failures, *, recovery="partial", fraction=1.0, interval=10.0, guard=None, events=None):
    trained = learner()
    workload = EmulatedTraining(
        plan=RunPlan(step_seconds=1.0, recovery=recovery, fraction=fraction, guard=guard),
        course=COURSE,
        learner=trained,
        start=Whole.of(trained, 0),
        policy=None if fraction == 1 else MostAccessed(DATA.num_rows),
        events=events or EventLog(),
    )
    times = JobTimes(
        useful=float(COURSE.num_steps),
        save_interval=interval,
        stall=0.4,
        background=0.0,
        load=1.0,
        shard_load=0.25,
        reschedule=0.5,
        partial_reschedule=0.5,
    )
    account = Machine(times=times, failures=iter(failures), workload=workload).run()
    return trained, workload, account


def at(seconds, *shards):
    return Failure(seconds=seconds, shards=shards)


@pytest.mark.parametrize("fraction", [1.0, 0.125])
def test_run_without_failures_is_the_plain_run(fraction):
    """Saving changes nothing: without failures every row, optimizer row and dense value equals the plain run's."""
    trained, workload, account = emulate([], fraction=fraction, interval=5.0)
    assert torch.equal(state(trained), state(plain_run()))
    assert account.num_saves > 5
    assert workload.ledger.pls == 0


@given(st.lists(st.floats(4, 60), min_size=1, max_size=4))
@settings(max_examples=6, deadline=None)
def test_full_recovery_loses_nothing(gaps):
    """Whatever the failures, full recovery ends in the plain run's state, to the bit."""
    moments = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    trained, workload, account = emulate([at(m, 0) for m in moments], recovery="full")
    assert torch.equal(state(trained), state(plain_run()))
    assert workload.ledger.pls == 0
    assert account.num_full <= len(moments)


@given(st.sets(st.integers(0, SHARDS - 1), min_size=1), st.integers(3, 40), st.sampled_from([1.0, 0.125]))
@settings(max_examples=12, deadline=None)
def test_partial_recovery_changes_failed_shards_only(failed, step, fraction):
    """Rows of surviving shards and the dense part stay bit-equal; failed rows are those of their last save."""
    trained = learner()
    start = Whole.of(trained, 0)
    policy = None if fraction == 1 else MostAccessed(DATA.num_rows)
    workload = EmulatedTraining(
        plan=RunPlan(step_seconds=1.0, recovery="partial", fraction=fraction),
        course=COURSE,
        learner=trained,
        start=start,
        policy=policy,
    )
    workload.train_to(2.0)
    workload.begin_save(2.0)
    saved = {table: view.weight.clone() for table, view in trained.tables.items()}
    workload.complete_save()
    workload.train_to(float(step))
    before = Whole.of(trained, step)
    workload.recover_partial([tuple(sorted(failed))], float(step))
    assert torch.equal(trained.dense, before.dense["dense"])
    for table, view in trained.tables.items():
        lost = torch.isin(torch.arange(view.weight.shape[0]) % SHARDS, torch.tensor(sorted(failed)))
        assert torch.equal(view.weight[~lost], before.rows.rows[table]["weight"][~lost])
        assert torch.equal(view.optimizer["momentum1"][~lost], before.rows.rows[table]["optimizer.momentum1"][~lost])
        either = (view.weight == saved[table]) | (view.weight == start.rows.rows[table]["weight"])
        assert torch.equal(view.weight[lost], saved[table][lost]) if fraction == 1 else either[lost].all()
    expected = len(failed) * (step - 2 * (fraction == 1)) * 16 / (COURSE.positions[-1] * SHARDS)
    assert workload.ledger.pls == pytest.approx(expected)


def test_saved_rows_come_back_after_priority_saves():
    """A row that the policy saved comes back as saved; one never saved comes back as initialised."""
    trained = learner()
    start = Whole.of(trained, 0)
    policy = MostAccessed(DATA.num_rows)
    plan = RunPlan(step_seconds=1.0, recovery="partial", fraction=0.125)
    workload = EmulatedTraining(plan=plan, course=COURSE, learner=trained, start=start, policy=policy)
    workload.train_to(5.0)
    table = max(DATA.num_rows, key=DATA.num_rows.get)
    chosen = policy.select(table, round(0.125 * DATA.num_rows[table]))
    workload.begin_save(5.0)
    at_save = trained.tables[table].weight.clone()
    workload.complete_save()
    workload.train_to(30.0)
    workload.recover_partial([tuple(range(SHARDS))], 30.0)
    view, first = trained.tables[table].weight, start.rows.rows[table]["weight"]
    rest = torch.ones(view.shape[0], dtype=torch.bool)
    rest[chosen] = False
    assert torch.equal(view[chosen], at_save[chosen])
    assert torch.equal(view[rest], first[rest])
    assert workload.ledger.effective_pls < workload.ledger.pls


def test_dropped_save_is_forgotten():
    """A failure before a save is complete sets back to the save before it."""
    _trained, workload, account = emulate([at(10.2, 1)], interval=10.0)
    lost = workload.ledger.losses[0]
    assert (lost.since, lost.until) == (0, COURSE.positions[10])
    assert account.num_saves == 7


def test_guard_falls_back_to_full_recovery(tmp_path):
    """Beyond the PLS budget the guard recovers fully, logs why, and the run ends as the plain one."""
    events = EventLog(tmp_path / "events.jsonl")
    config = GuardConfig(pls_budget=1e-4, max_staleness=timedelta(hours=1))
    trained, _workload, account = emulate([at(37.0, 2), at(55.0, 0)], guard=config, events=events, recovery="partial")
    decisions = [event["recovery"] for event in read_events(tmp_path / "events.jsonl")]
    assert decisions == ["full", "full"]
    assert account.num_full == 2
    assert torch.equal(state(trained), state(plain_run()))


def test_emulated_pls_agrees_with_the_planner():
    """Over many failures the ledger's PLS is the planner's expectation within three standard errors."""
    mtbf, interval = 8.0, 16.0
    found = []
    for seed in range(12):
        trace = ExponentialTrace(mtbf=timedelta(seconds=mtbf))
        failures = list(islice(draw_failures(trace, SHARDS, seed), 60))
        found.append(emulate(failures, interval=interval)[1].ledger.pls)
    pls = torch.tensor(found)
    second = timedelta(seconds=1)
    costs = ClusterCosts(mtbf=mtbf * second, num_shards=SHARDS, save=second, load=second, reschedule=second)
    expected = expected_pls(costs, interval)
    assert abs(float(pls.mean()) - expected) < 3 * float(pls.std()) / 12**0.5 + 0.1 * expected
    assert float(pls.std()) > 0
