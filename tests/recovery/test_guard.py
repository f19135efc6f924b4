"""The guard: partial only if every condition holds; each reason is given and logged."""

import re
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError, EventLog, read_events
from recoup.recovery import FailureFacts, GuardConfig, RecoveryError, decide


def facts(**overrides):
    base = {
        "failed_shards": (1,),
        "pls_before": 0.01,
        "pls_after": 0.02,
        "staleness_seconds": 60.0,
        "num_dense_replicas": 2,
    }
    return FailureFacts(**{**base, **overrides})


@given(
    st.builds(
        FailureFacts,
        failed_shards=st.just((0,)),
        pls_before=st.just(0.0),
        pls_after=st.floats(0, 0.2),
        staleness_seconds=st.floats(0, 7200),
        num_dense_replicas=st.integers(0, 1),
        shards_without_checkpoint=st.sampled_from([(), (0,)]),
        planned=st.sampled_from(["partial", "full"]),
    )
)
@settings(max_examples=150, deadline=None)
def test_partial_needs_every_condition(found):
    """Partial exactly if plan, replica, checkpoint, staleness and budget all allow it."""
    config = GuardConfig(pls_budget=0.1, max_staleness=timedelta(hours=1))
    allowed = (
        found.planned == "partial"
        and found.num_dense_replicas > 0
        and not found.shards_without_checkpoint
        and found.staleness_seconds <= 3600
        and found.pls_after <= 0.1
    )
    assert decide(found, config).recovery == ("partial" if allowed else "full")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({}, r"PLS 0\.02 stays within the budget of 0\.1"),
        ({"planned": "full"}, "the planner recommends full recovery"),
        ({"num_dense_replicas": 0}, "no survivor holds the dense parameters"),
        ({"shards_without_checkpoint": (1,)}, r"no complete checkpoint of shards \[1\]"),
        ({"staleness_seconds": 1e6}, "checkpoint is 1000000 s old, limit 86400 s"),
        ({"pls_after": 0.3}, r"PLS would rise from 0\.01 to 0\.3, budget 0\.1"),
    ],
)
def test_reason_is_given_and_logged(tmp_path, overrides, reason):
    """The reason stands in the decision and in the event, with the facts."""
    decision = decide(facts(**overrides), GuardConfig(), EventLog(tmp_path / "events.jsonl"))
    (event,) = read_events(tmp_path / "events.jsonl")
    assert re.search(reason, decision.reason)
    assert event["event"] == "recovery_decided"
    assert (event["reason"], event["recovery"]) == (decision.reason, decision.recovery)
    assert event["pls_after"] == decision.facts.pls_after


def test_no_way_to_recover_is_an_error():
    """Without any complete checkpoint nothing is silently begun from scratch."""
    with pytest.raises(RecoveryError, match=r"no way to recover shards \[1\]: no survivor .*; and no full checkpoint"):
        decide(facts(num_dense_replicas=0, full_checkpoint=False), GuardConfig())
    assert decide(facts(full_checkpoint=False), GuardConfig()).recovery == "partial"


def test_impossible_limits_are_refused():
    """Negative limits are refused."""
    with pytest.raises(ConfigError, match="pls_budget"):
        GuardConfig(pls_budget=-0.1)
    with pytest.raises(ConfigError, match="max_staleness"):
        GuardConfig(max_staleness=timedelta(seconds=-1))
