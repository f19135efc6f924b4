"""Law 7 on the event machine: every second is accounted for, and its overheads and PLS are the planner's."""

from datetime import timedelta
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError
from recoup.emulate import STRATEGIES, ClockOnly, JobTimes, Machine, job_times, run_clock_only, strategy
from recoup.failures import ExponentialTrace, Failure, draw_failures
from recoup.planner import (
    ClusterCosts,
    expected_pls,
    full_overhead,
    full_overhead_exact,
    optimal_save_interval,
    partial_overhead,
    partial_overhead_exact,
    save_interval_for_pls,
)

COSTS = ClusterCosts(
    mtbf=timedelta(minutes=840),
    num_shards=8,
    save=timedelta(minutes=2.5),
    load=timedelta(minutes=2.5),
    reschedule=timedelta(minutes=3),
)


def times(**overrides):
    base = {
        "useful": 100.0,
        "save_interval": 30.0,
        "stall": 2.0,
        "background": 0.0,
        "load": 4.0,
        "shard_load": 1.0,
        "reschedule": 3.0,
        "partial_reschedule": 3.0,
    }
    return JobTimes(**{**base, **overrides})


class Recorder(ClockOnly):
    """Also writes down what the machine asked for."""

    def __init__(self, recovery="partial"):
        super().__init__(num_shards=8, recovery=recovery)
        self.calls = []

    def train_to(self, progress):
        self.calls.append(("train", progress))

    def begin_save(self, progress):
        super().begin_save(progress)
        self.calls.append(("begin", progress))

    def complete_save(self):
        self.calls.append(("complete",))
        return super().complete_save()

    def drop_save(self):
        self.calls.append(("drop",))

    def recover_partial(self, events, progress):
        self.calls.append(("partial", tuple(events), progress))

    def recover_full(self, progress):
        self.calls.append(("full", progress))


def run(failures, recovery="partial", **overrides):
    workload = Recorder(recovery)
    account = Machine(times=times(**overrides), failures=iter(failures), workload=workload).run()
    return account, [call for call in workload.calls if call[0] != "train"]


def at(seconds, *shards):
    return Failure(seconds=float(seconds), shards=shards or (0,))


def test_without_failures_only_saves_cost():
    """Three saves of 2 s in 100 s of training, none at the very end."""
    account, calls = run([])
    assert (account.wall, account.save, account.num_saves) == (106.0, 6.0, 3)
    assert calls == [("begin", 30.0), ("complete",), ("begin", 60.0), ("complete",), ("begin", 90.0), ("complete",)]
    assert run([], save_interval=50.0)[0].num_saves == 1


def test_partial_recovery_loses_no_time_but_its_own():
    """A failure costs waiting and loading one shard; training goes on where it was."""
    account, calls = run([at(40, 3)])
    assert (account.wall, account.lost, account.reschedule, account.load) == (110.0, 0.0, 3.0, 1.0)
    assert ("partial", ((3,),), 38.0) in calls


def test_full_recovery_goes_back_to_the_last_save():
    """A failure 8 s of training after a save costs these 8 s again, and loading everything."""
    account, calls = run([at(40)], recovery="full")
    assert (account.lost, account.load, account.reschedule) == (8.0, 4.0, 3.0)
    assert account.wall == 106.0 + 8 + 4 + 3
    assert ("full", 30.0) in calls


def test_failure_during_a_save_drops_it_and_it_begins_again():
    """The interrupted save's time is lost, and it is due at once after recovery."""
    account, calls = run([at(31)])
    assert calls[:4] == [("begin", 30.0), ("drop",), ("partial", ((0,),), 30.0), ("begin", 30.0)]
    assert account.save == 7.0
    account, calls = run([at(31)], recovery="full")
    assert account.lost == 30.0
    assert ("full", 0.0) in calls


def test_failure_during_recovery_begins_it_again():
    """The second failure's shards are recovered too, and the time spent is kept in the account."""
    account, calls = run([at(40, 1), at(43.5, 2)])
    assert ("partial", ((1,), (2,)), 38.0) in calls
    assert (account.reschedule, account.load) == (6.0, 0.5 + 2.0)
    assert (account.num_failures, account.num_partial) == (2, 1)


def test_background_save_is_complete_only_at_its_end():
    """A failure while the save is still being written drops it; the next save waits for one under way."""
    account, calls = run([at(35)], background=10.0)
    assert calls[:3] == [("begin", 30.0), ("drop",), ("partial", ((0,),), 33.0)]
    account, calls = run([], background=50.0)
    assert [call for call in calls if call[0] == "begin"] == [("begin", 30.0), ("begin", 80.0)]
    assert account.wall == 104.0


@given(
    st.lists(st.floats(0.5, 200), max_size=12),
    st.sampled_from(["partial", "full"]),
    st.builds(
        times,
        save_interval=st.sampled_from([7.0, 30.0, float("inf")]),
        stall=st.sampled_from([0.0, 2.0]),
        background=st.sampled_from([0.0, 3.0, 20.0]),
        partial_reschedule=st.sampled_from([0.0, 3.0]),
    ),
)
@settings(max_examples=200, deadline=None)
def test_every_second_is_accounted_for(gaps, recovery, job):
    """Wall time = useful + save + load + lost + reschedule, and all training is done exactly once at the end."""
    moments = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    workload = Recorder(recovery)
    account = Machine(times=job, failures=iter([at(m, 1) for m in moments]), workload=workload).run()
    parts = account.useful + account.save + account.load + account.lost + account.reschedule
    assert account.wall == pytest.approx(parts)
    assert max(call[1] for call in workload.calls if call[0] == "train") == job.useful
    begun = sum(call[0] == "begin" for call in workload.calls)
    dropped = sum(call[0] == "drop" for call in workload.calls)
    assert 0 <= begun - dropped - account.num_saves <= 1


def clock_only(name, costs=COSTS, runs=250, useful_mtbfs=40, **arguments):
    chosen = strategy(name)
    job = job_times(chosen, costs, useful_seconds=useful_mtbfs * costs.mtbf_seconds, pls_budget=0.1, **arguments)
    cycle = round(1 / chosen.fraction)
    workloads = (ClockOnly(num_shards=8, recovery=chosen.recovery, savings_per_cycle=cycle) for _ in count())
    traces = (draw_failures(ExponentialTrace(mtbf=costs.mtbf), 8, seed) for seed in count())
    return run_clock_only(job, workloads, traces, runs)


def test_full_recovery_agrees_with_the_planner():
    """The emulated overhead is within 3 % of the exact expectation and 8 % of the first-order formula."""
    result = clock_only("full")
    best = optimal_save_interval(COSTS)
    assert result.overhead_error < 0.01 * result.overhead
    assert result.overhead == pytest.approx(full_overhead_exact(COSTS, best), rel=0.03)
    assert result.overhead == pytest.approx(full_overhead(COSTS, best).total, rel=0.08)


def test_partial_recovery_agrees_with_the_planner():
    """Overhead and PLS of CPR are within 3 % of the planner's, first-order and exact."""
    result = clock_only("cpr_vanilla")
    interval = save_interval_for_pls(COSTS, 0.1)
    assert result.overhead == pytest.approx(partial_overhead_exact(COSTS, interval), rel=0.03)
    assert result.overhead == pytest.approx(partial_overhead(COSTS, interval).total, rel=0.03)
    assert result.pls == pytest.approx(expected_pls(COSTS, interval), rel=0.03)


def test_every_strategy_runs_on_the_clock():
    """Priority saving costs what plain saving costs; asynchronous saves and a spare cost less each."""
    found = {name: clock_only(name, runs=40, spare_seconds=1.0).overhead for name in STRATEGIES}
    assert found["cpr_mfu"] == pytest.approx(found["cpr_vanilla"], rel=0.05)
    assert found["full"] > found["naive_partial"] > found["cpr_vanilla"]
    quiet = ClusterCosts(**{**{f: getattr(COSTS, f) for f in COSTS.__slots__}, "save_stall_fraction": 0.1})
    recoup = clock_only("recoup", quiet, runs=40).overhead
    spare = clock_only("recoup_spare", quiet, runs=40, spare_seconds=1.0).overhead
    assert found["cpr_mfu"] > recoup > spare > 0


def test_unknown_strategy_and_missing_spare_are_refused():
    """A name that is none, and a spare whose time is not measured, are refused."""
    with pytest.raises(ConfigError, match=r"expected a strategy of .*got 'cpr'"):
        strategy("cpr")
    with pytest.raises(ConfigError, match="needs the measured time of a spare"):
        job_times(strategy("recoup_spare"), COSTS, useful_seconds=1.0, pls_budget=0.1)
