"""Law 7: the ledger equals a brute-force count, whatever the order of training, saves and failures."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import StateError
from recoup.recovery import Ledger, RecoveryError, RowAccesses
from tests.recovery.oracles import BruteForce

SHARDS = 3
shards = st.lists(st.integers(0, SHARDS - 1), min_size=1, max_size=SHARDS)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 5)),
        st.tuples(st.just("save"), shards),
        st.tuples(st.just("lose"), shards),
    ),
    max_size=25,
)


@given(actions)
@settings(max_examples=150, deadline=None)
def test_ledger_equals_brute_force(script):
    """`pls` counts as the paper does, `distinct_pls` counts pairs; both equal counting one by one."""
    oracle = BruteForce(SHARDS)
    total = 1 + sum(amount for action, amount in script if action == "train")
    ledger = Ledger(SHARDS, total)
    for action, amount in script:
        if action == "train":
            oracle.train(amount)
        elif action == "save":
            oracle.save(amount)
            ledger.saved(oracle.now, amount)
        else:
            before = ledger.preview(amount, oracle.now)
            oracle.lose(amount)
            ledger.lost(amount, oracle.now)
            assert ledger.pls == pytest.approx(before)
    assert ledger.pls == pytest.approx(oracle.counted_again / (total * SHARDS))
    assert ledger.distinct_pls == pytest.approx(oracle.missing() / (total * SHARDS))
    assert sum(ledger.pls_by_event) == pytest.approx(ledger.pls)
    assert ledger.weighted_pls == pytest.approx(ledger.pls)
    assert ledger.distinct_pls <= ledger.pls + 1e-12


@given(actions)
@settings(max_examples=50, deadline=None)
def test_ledger_survives_its_state(script):
    """A ledger loaded from its state goes on as the first one does."""
    ledger, now = Ledger(SHARDS, 200, (0.5, 0.25, 0.25)), 0
    for action, amount in script:
        if action == "train":
            now += amount
        elif action == "save":
            ledger.saved(now, amount)
        else:
            ledger.lost(amount, now, accesses=dict.fromkeys(range(SHARDS), 0.01))
        other = Ledger(SHARDS, 200)
        other.load_state_dict(ledger.state_dict())
        assert other.state_dict() == ledger.state_dict()
        ledger = other


def test_weights_by_access():
    """A shard with most of the accesses weighs most; the plain PLS does not see it."""
    ledger = Ledger(2, 100, shares=(0.9, 0.1))
    ledger.lost([0], 50)
    assert (ledger.pls, ledger.weighted_pls) == (pytest.approx(0.25), pytest.approx(0.45))
    assert ledger.pls_by_shard == (pytest.approx(0.25), 0)


def test_full_recovery_takes_losses_back():
    """What is trained again is no longer lost; what was lost before the checkpoint stays lost."""
    ledger = Ledger(2, 100)
    ledger.lost([0], 20, accesses={0: 0.1})
    ledger.saved(40)
    ledger.lost([1], 60, accesses={1: 0.2})
    ledger.rewound(50)
    assert ledger.pls_by_event == (pytest.approx(0.1), pytest.approx(0.05))
    assert ledger.effective_pls == pytest.approx(0.2)
    ledger.rewound(40)
    assert ledger.pls == pytest.approx(0.1)
    assert ledger.last_saved(1) == 40


def test_effective_pls_is_unknown_without_counts():
    """A loss without a count of accesses makes the effective PLS unknown, not smaller."""
    ledger = Ledger(2, 100)
    assert ledger.effective_pls == 0
    ledger.lost([0], 10, accesses={0: 0.01})
    assert ledger.effective_pls == pytest.approx(0.01)
    ledger.lost([1], 10)
    assert ledger.effective_pls is None


def test_older_checkpoint_counts_from_its_position():
    """A shard restored from an older checkpoint lost more."""
    ledger = Ledger(2, 100)
    ledger.saved(40)
    assert ledger.preview([0], 50, since=10) == pytest.approx(0.2)
    (loss,) = ledger.lost([0, 0], 50, since=10)
    assert (loss.since, loss.until) == (10, 50)
    assert ledger.pls == pytest.approx(0.2)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ids"), st.lists(st.integers(0, 9), min_size=1, max_size=8)),
            st.tuples(st.just("saved"), st.lists(st.integers(0, 9), max_size=4)),
            st.tuples(st.just("lost"), st.integers(0, 1)),
        ),
        max_size=25,
    )
)
@settings(max_examples=100, deadline=None)
def test_row_accesses_equal_brute_force(script):
    """The effective PLS counts each access that was neither saved nor lost before, once."""
    accesses, unsaved, total, lost, expected = RowAccesses({"t": 10}), [0] * 10, 0, 0, 0
    rows_of = {0: [0, 2, 4, 6, 8], 1: [1, 3, 5, 7, 9]}
    for action, value in script:
        if action == "ids":
            accesses.observe("t", torch.tensor(value))
            total += len(value)
            for i in value:
                unsaved[i] += 1
        elif action == "saved":
            accesses.saved("t", torch.tensor(value, dtype=torch.int64))
            for i in value:
                unsaved[i] = 0
        else:
            lost += accesses.lost({"t": torch.tensor(rows_of[value])})
            for i in rows_of[value]:
                expected += unsaved[i]
                unsaved[i] = 0
    assert (accesses.total, lost) == (total, expected)
    assert accesses.unsaved("t").tolist() == unsaved


def test_impossible_records_are_refused():
    """What cannot have happened is refused with the values."""
    ledger = Ledger(2, 100)
    ledger.saved(50)
    with pytest.raises(RecoveryError, match="expected a shard from 0 to 1, got 2"):
        ledger.lost([2], 60)
    with pytest.raises(RecoveryError, match=r"got 50 after 40 \(shard 0\)"):
        ledger.lost([0], 40)
    with pytest.raises(RecoveryError, match="expected 2 shares of sum 1"):
        Ledger(2, 100, (0.5, 0.6))
    with pytest.raises(RecoveryError, match="needs shards and samples"):
        Ledger(0, 100)
    with pytest.raises(RecoveryError, match="expected a ledger of 2 shards and 100 samples"):
        ledger.load_state_dict(Ledger(3, 100).state_dict())
    with pytest.raises(StateError):
        ledger.load_state_dict({**ledger.state_dict(), "version": 2})
    with pytest.raises(RecoveryError, match="expected one of the tables"):
        RowAccesses({"t": 1}).observe("u", torch.tensor([0]))
