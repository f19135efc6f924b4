"""The injector: each planned failure fires exactly once, is recorded, and a missing one is noticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoup.core import ConfigError, EventLog, read_events
from recoup.failures import FailureTraceError, Injection, Injector


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=10))
def test_every_planned_failure_fires_once(planned):
    """Whatever the plan, walking all ranks through all steps fires each failure once, at its place."""
    injector = Injector([Injection(rank=rank, step=step) for rank, step in planned])
    seen = [(f.rank, f.step, r, s) for s in range(10) for r in range(4) for f in injector.due(rank=r, step=s)]
    assert all((rank, step) == (r, s) for rank, step, r, s in seen)
    assert sorted((rank, step) for rank, step, _, _ in seen) == sorted(planned)
    assert len(injector.fired) == len(planned)
    injector.check_fired()


def test_virtual_time_fires_at_the_first_look(tmp_path):
    """A failure by time fires at the first look at or after it, and is written as an event."""
    events = EventLog(tmp_path / "events.jsonl")
    injector = Injector([Injection(rank=2, seconds=5.0, action="stop")], events)
    assert injector.due(seconds=4.9) == []
    assert [f.rank for f in injector.due(seconds=7.0)] == [2]
    assert injector.due(seconds=8.0) == []
    (event,) = read_events(tmp_path / "events.jsonl")
    assert (event["event"], event["rank"], event["action"]) == ("failure_injected", 2, "stop")


def test_failure_that_did_not_fire_is_an_error():
    """A test whose failure never came cannot pass."""
    injector = Injector([Injection(rank=0, step=5)])
    injector.due(rank=1, step=5)
    with pytest.raises(FailureTraceError, match=r"1 planned failures did not fire, the first is .*step=5"):
        injector.check_fired()


def test_fired_failures_stay_fired_after_a_restart():
    """A restarted process does not fail at the same step again."""
    injector = Injector([Injection(rank=0, step=1), Injection(rank=0, step=2)])
    injector.due(rank=0, step=1)
    other = Injector(injector.fired + injector.pending)
    other.load_state_dict(injector.state_dict())
    assert other.due(rank=0, step=1) == []
    assert len(other.due(rank=0, step=2)) == 1


def test_injection_needs_one_moment():
    """By step or by time, not both, not neither."""
    with pytest.raises(ConfigError, match="by step or by seconds"):
        Injection(rank=0)
    with pytest.raises(ConfigError, match="by step or by seconds"):
        Injection(rank=0, step=1, seconds=1.0)
