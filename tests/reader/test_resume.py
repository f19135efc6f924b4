"""Law 4: resume at every batch, with any number of workers and ranks, leaves the same remaining samples."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import StateError
from recoup.reader import ReaderConfig, ReaderError, SampleRange, SessionReader
from tests.reader.tables import by_time, plain_samples, random_sessions, samples_of, write_table

ORDERS = [
    {},
    {"shuffle": "window", "window_sessions": 6},
    {"shuffle": "full", "window_sessions": 6, "seed": 5},
    {"max_samples_per_session_per_batch": 2, "window_sessions": 12},
]


def reader_of(table, *, rank=0, world_size=1, **options):
    return SessionReader(table, ReaderConfig(**{"batch_size": 5, **options}), rank=rank, world_size=world_size)


def samples(batches):
    return [sample for batch in batches for sample in samples_of(batch)]


def through_json(state):
    """A state is plain: it survives JSON unchanged."""
    assert json.loads(json.dumps(state)) == state
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("order", ORDERS)
def test_resume_at_every_batch_gives_the_same_tail(tmp_path, order):
    """A fresh reader with the state after batch i yields exactly the batches after it, of this epoch and the next."""
    table = write_table(tmp_path / "t", random_sessions(1, 14))
    reader = reader_of(table, **order)
    batches, states = [], [through_json(reader.state_dict())]
    for _ in range(2):
        for batch in reader:
            batches.append(samples_of(batch))
            reader.commit()
            states.append(through_json(reader.state_dict()))
    assert len({json.dumps(sorted(state)) for state in states}) == 1
    assert max(len(json.dumps(state)) for state in states) < 600
    for i, state in enumerate(states):
        fresh = reader_of(table, **order)
        fresh.load_state_dict(state)
        tail = []
        while fresh.epoch < 2:
            tail += [samples_of(batch) for batch in fresh]
        assert tail == batches[i:]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ORDERS[1:3])
def test_workers_do_not_shape_position_or_batches_R07(tmp_path, num_workers, order):
    """Leaving with full prefetch queues after 3 trained batches: nothing lost, nothing twice; the state is the same."""
    sessions = random_sessions(2, 20)
    table = write_table(tmp_path / "t", sessions)
    plain = reader_of(table, **order)
    expected = [samples_of(batch) for batch in plain]
    reader = reader_of(table, num_workers=num_workers, prefetch=4, **order)
    for i, batch in enumerate(reader):
        assert samples_of(batch) == expected[i]
        if i == 3:  # fetched, not trained
            break
    state = through_json(reader.state_dict())
    reader.close()
    counted = reader_of(table, **order)
    for i, _ in enumerate(counted):
        if i == 3:
            break
    assert state == counted.state_dict()
    assert state["num_steps"] == 3
    other = reader_of(table, num_workers=2 - num_workers, **order)
    other.load_state_dict(state)
    assert [samples_of(batch) for batch in other] == expected[3:]
    other.close()


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 6),
    st.sampled_from(ORDERS),
    st.sampled_from([5, 4]),
)
def test_resume_with_another_world_size_R08(tmp_path_factory, seed, before, after, steps, order, new_batch_size):
    """Save with n ranks after any step, resume with m ranks (and another batch size): every sample once in all."""
    sessions = random_sessions(seed, 12)
    table = write_table(tmp_path_factory.mktemp("t") / "t", sessions)
    trained, states = [], []
    for rank in range(before):
        reader = reader_of(table, rank=rank, world_size=before, **order)
        if steps:
            for i, batch in enumerate(reader):
                trained += samples_of(batch)
                reader.commit()
                if i + 1 == steps:
                    break
        states.append(reader.state_dict())
    assert all(state == states[0] for state in states)
    rest = []
    if states[0]["epoch"] == 0:
        guarded = "max_samples_per_session_per_batch" in order
        options = {**order, "batch_size": 5 if guarded else new_batch_size}
        for rank in range(after):
            reader = reader_of(table, rank=rank, world_size=after, **options)
            reader.load_state_dict(states[0])
            rest += samples(reader)
    assert by_time(trained + rest) == plain_samples(sessions)


def test_resume_over_several_world_sizes_R08(tmp_path):
    """2 ranks, then 3, then 1, each for some steps: every sample once."""
    sessions = random_sessions(3, 30)
    table = write_table(tmp_path / "t", sessions)
    seen, state = [], None
    for world_size in (2, 3, 1):
        states = []
        for rank in range(world_size):
            reader = reader_of(table, rank=rank, world_size=world_size, batch_size=4)
            if state is not None:
                reader.load_state_dict(state)
            for i, batch in enumerate(reader):
                seen += samples_of(batch)
                reader.commit()
                if i == 3 and world_size > 1:
                    break
            states.append(reader.state_dict())
        assert all(s == states[0] for s in states)
        state = states[0]
    assert by_time(seen) == plain_samples(sessions)


@pytest.mark.parametrize("num_samples", range(1, 10))
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_make_the_same_number_of_steps_R10(tmp_path, num_samples, world_size):
    """1 to 9 rows on 2 and 3 ranks: all stop at the same step, each row once, empty batches included."""
    sessions = [session[:1] for session in random_sessions(4, num_samples)]
    table = write_table(tmp_path / "t", sessions, rows_per_group=2)
    ranks = [list(reader_of(table, rank=r, world_size=world_size, batch_size=2)) for r in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    assert by_time(samples([batch for batches in ranks for batch in batches])) == plain_samples(sessions)
    dropped = [
        [b.num_samples for b in reader_of(table, rank=r, world_size=world_size, batch_size=2, drop_last=True)]
        for r in range(world_size)
    ]
    assert all(counts == [2] * (num_samples // world_size // 2) for counts in dropped)


@pytest.mark.parametrize("num_batches", [0, 1, 2, 3])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_loops_that_fetch_ahead_train_every_batch_R11(tmp_path, num_batches, depth):
    """With `depth` batches in flight and explicit commits every batch is trained once, and a second epoch works."""
    sessions = [session[:1] for session in random_sessions(5, num_batches)]
    table = write_table(tmp_path / "t", sessions, rows_per_group=2)
    reader = reader_of(table, batch_size=1, commit="explicit")
    for epoch in (1, 2):
        trained, flight = [], []
        for batch in reader:
            flight.append(batch)
            if len(flight) > depth:
                trained += samples_of(flight.pop(0))
                reader.commit(1)
        assert reader.steps_left == len(flight) or reader.epoch == epoch
        for batch in flight:
            trained += samples_of(batch)
            reader.commit(1)
        assert trained == plain_samples(sessions)
        assert reader.epoch == epoch
    with pytest.raises(ReaderError, match="at most the 0 batches yielded and not trained, got 1"):
        reader.commit(1)


def test_uncommitted_batches_come_again(tmp_path):
    """Under explicit commits a crash in mid-flight repeats what was fetched and not trained, and only that."""
    table = write_table(tmp_path / "t", random_sessions(6, 10))
    expected = [samples_of(batch) for batch in reader_of(table)]
    reader = reader_of(table, commit="explicit")
    for i, _ in enumerate(reader):
        if i == 4:
            break
    reader.commit(2)
    fresh = reader_of(table)
    fresh.load_state_dict(reader.state_dict())
    assert [samples_of(batch) for batch in fresh] == expected[2:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shuffle": "full"}, "resume with shuffle = 'chronological', as saved, got 'full'"),
        ({"shuffle": "chronological", "seed": 1}, "resume with seed = 0, as saved, got 1"),
        ({"samples": SampleRange(to_fraction=0.5)}, "resume with to_fraction = 1.0"),
        (
            {"samples": SampleRange(from_time=datetime(1970, 1, 1, tzinfo=UTC))},
            "resume with from_time = None, as saved",
        ),
        ({"max_samples_per_session_per_batch": 3}, "max_samples_per_session_per_batch = 0"),
    ],
)
def test_another_order_is_refused_R14(tmp_path, change, message):
    """A position means nothing in another order of samples: refused with both sides, the reader stays as it was."""
    table = write_table(tmp_path / "t", random_sessions(7, 6))
    reader = reader_of(table, **change)
    before = reader.state_dict()
    with pytest.raises(ReaderError, match=message):
        reader.load_state_dict(reader_of(table).state_dict())
    assert reader.state_dict() == before


def test_another_table_or_state_is_refused_R14(tmp_path):
    """A position of another table, of another version, or with a key missing is refused."""
    state = reader_of(write_table(tmp_path / "a", random_sessions(8, 20))).state_dict()
    reader = reader_of(write_table(tmp_path / "b", random_sessions(9, 6)))
    with pytest.raises(ReaderError, match="expected the table that the position was saved for"):
        reader.load_state_dict(state)
    with pytest.raises(StateError, match="version 1, got 7"):
        reader.load_state_dict({**state, "version": 7})
    with pytest.raises(StateError, match="expected key 'epoch'"):
        reader.load_state_dict({name: value for name, value in state.items() if name != "epoch"})


@pytest.mark.parametrize("world_size", [1, 2])
def test_added_parts_wait_for_the_next_epoch_F11(tmp_path, world_size):
    """Parts added to the table between save and resume do not reshuffle this epoch; the next one reads them."""
    sessions = random_sessions(10, 40)
    old, new = (
        write_table(tmp_path / name, sessions[:count], groups_per_part=2) for name, count in (("old", 24), ("new", 40))
    )
    options = {"shuffle": "full", "window_sessions": 6, "world_size": world_size}
    first, rest, second = [], [], []
    for rank in range(world_size):
        reader = reader_of(old, rank=rank, **options)
        for i, batch in enumerate(reader):
            first += samples_of(batch)
            reader.commit()
            if i == 2:
                break
        fresh = reader_of(new, rank=rank, **options)
        fresh.load_state_dict(reader.state_dict())
        rest += samples(fresh)
        second += samples(fresh)
    assert by_time(first + rest) == plain_samples(sessions[:24])
    assert by_time(second) == plain_samples(sessions)
