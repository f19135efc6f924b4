"""A step is applied whole or not at all; a process of an older generation cannot come back."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from recoup.core import ConfigError
from recoup.runtime import LaunchConfig, keys
from recoup.runtime.deferred import DeferredUpdates
from recoup.runtime.rendezvous import Place, Rendezvous, SupersededError, leave_group
from tests.train import tiny


def rows_of(trainer):
    return {name: [part.clone() for part in view.parts().values()] for name, view in trainer.table_views().items()}


def equal(a, b):
    return all(torch.equal(x, y) for name in a for x, y in zip(a[name], b[name], strict=True))


def test_put_off_updates_are_the_plain_updates_to_the_bit():
    """Losses, rows and optimizer state of put-off updates equal those of plain training, bit for bit."""
    plain, other = tiny.trainer(), tiny.trainer()
    updates = DeferredUpdates(other.model)
    for batch in tiny.batches():
        loss = plain.step(batch).loss
        updates.discard()
        assert other.step(batch).loss == loss
        updates.apply()
    assert equal(rows_of(plain), rows_of(other))


def test_a_dropped_step_changes_no_row_and_a_finished_one_all_X01():
    """Between backward and apply no row has changed; dropping keeps them so; applying later gives the whole step."""
    plain, other = tiny.trainer(), tiny.trainer()
    updates = DeferredUpdates(other.model)
    first, second = tiny.batches()[:2]
    before = rows_of(other)
    dense = other.dense_state()
    other.step(first)
    assert equal(rows_of(other), before)
    updates.discard()
    updates.apply()  # nothing is left of the dropped step
    assert equal(rows_of(other), before)
    other.load_dense_state(dense)
    for batch in (first, second):
        plain.step(batch)
        other.step(batch)
        updates.apply()
    assert equal(rows_of(plain), rows_of(other))


def test_evaluation_leaves_nothing_to_apply():
    """Look-ups without gradients are not cut."""
    trainer = tiny.trainer()
    updates = DeferredUpdates(trainer.model)
    before = rows_of(trainer)
    trainer.evaluate(tiny.batches()[:1])
    updates.apply()
    assert equal(rows_of(trainer), before)


@pytest.fixture
def store():
    leave_group()
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield keys.connect("127.0.0.1", master.port, limit=timedelta(seconds=10))
    leave_group()


def place(store, incarnation, world_size=1):
    limit = timedelta(seconds=2)
    return Rendezvous(store, Place(0, world_size, incarnation), join_limit=limit, exchange_limit=limit)


def test_an_older_process_of_a_rank_can_never_rejoin(store):
    """Once a rank has another owner, its older process is refused, in this generation and in every later one."""
    store.set(keys.owner(0), "old")
    old = place(store, "old")
    assert old.meet().size() == 1
    leave_group()
    store.set(keys.owner(0), "new")
    for _ in range(2):
        store.add(keys.GENERATION, 1)
        with pytest.raises(SupersededError, match="rank 0 is owned by process new, this is old"):
            old.meet()
    assert place(store, "new").meet().size() == 1


def test_ranks_that_do_not_come_are_named_X01(store):
    """A rank that waits alone gives up within its limit and names those that did not come."""
    from recoup.runtime import JobError

    store.set(keys.owner(0), "me")
    with pytest.raises(JobError, match=r"rank 0 waited 2 s in generation 0 for ranks \[1, 2\]"):
        place(store, "me", world_size=3).meet()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"nproc": 0}, "nproc >= 1"),
        ({"node_rank": 1}, "node_rank"),
        ({"nnodes": 2}, "HOST:PORT"),
        ({"silence_limit": timedelta(milliseconds=300)}, "silence_limit"),
        ({"stall_limit": timedelta(seconds=1)}, "stall_limit"),
    ],
)
def test_impossible_launches_are_refused(values, match):
    """Each setting out of range is named with its value."""
    with pytest.raises(ConfigError, match=match):
        LaunchConfig(**values)
