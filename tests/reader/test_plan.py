"""The plan: a pure function from row groups and trained stages to every rank's samples."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.reader.plan import RowGroupSlice, Stage, deal, drop_head, num_steps, plan_sequences, plan_stripes


def slices(samples):
    return [
        RowGroupSlice(ordinal=i, part=0, row_group=i, first_row=0, num_rows=2, num_samples=n)
        for i, n in enumerate(samples)
    ]


def stripes_of(samples, **overrides):
    options = {"shuffle": "chronological", "window_sessions": 1, "seed": 0, "epoch": 0, **overrides}
    return plan_stripes(slices(samples), **options)


def places(sequences):
    """Return how often each (stripe, sample) occurs."""
    return Counter((s.stripe, i) for sequence in sequences for s in sequence for i in range(s.first, s.end))


sizes = st.lists(st.integers(0, 9), max_size=8)


@given(sizes, st.integers(1, 5))
def test_every_sample_goes_to_one_rank(samples, world_size):
    """Each sample once over all ranks; ranks' counts differ by at most one."""
    sequences = plan_sequences(stripes_of(samples), [], world_size)
    counts = [sum(span.num_samples for span in sequence) for sequence in sequences]
    assert sum(counts) == sum(samples)
    assert max(counts) - min(counts) <= 1
    assert set(places(sequences).values()) <= {1}
    assert len(places(sequences)) == sum(samples)


@settings(max_examples=60)
@given(
    sizes, st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3)), max_size=3), st.integers(1, 4)
)
def test_stages_leave_what_they_did_not_train_R08(samples, stages, world_size):
    """After any stages by any number of ranks, trained and remaining samples together are every sample once."""
    stripes = stripes_of(samples)
    done = Counter()
    history = []
    for ranks, batch_size, steps in stages:
        sequences = plan_sequences(stripes, history, ranks)
        left = [drop_head(sequence, steps * batch_size) for sequence in sequences]
        done += places(sequences) - places(left)
        history.append(Stage(world_size=ranks, batch_size=batch_size, num_steps=steps))
    everything = done + places(plan_sequences(stripes, history, world_size))
    assert set(everything.values()) <= {1}
    assert len(everything) == sum(samples)


def test_one_rank_reads_in_order():
    """With one rank the sequence is the stripes in order."""
    (sequence,) = plan_sequences(stripes_of([3, 0, 2]), [], 1)
    assert [(s.stripe, s.first, s.end) for s in sequence] == [(0, 0, 3), (1, 0, 2)]


def test_ranks_cut_few_stripes():
    """At most world_size - 1 stripes are read by two ranks, so decoding is not repeated."""
    sequences = plan_sequences(stripes_of([100] * 40), [], 4)
    readers = Counter(stripe for sequence in sequences for stripe in {span.stripe for span in sequence})
    assert sum(count > 1 for count in readers.values()) <= 3


def test_steps_are_equal_R10():
    """5 samples, batch 2, 2 ranks: both make 2 steps; with drop_last both make 1."""
    sequences = plan_sequences(stripes_of([5]), [], 2)
    assert [sum(s.num_samples for s in sequence) for sequence in sequences] == [3, 2]
    assert num_steps(sequences, 2, drop_last=False) == 2
    assert num_steps(sequences, 2, drop_last=True) == 1


def test_full_shuffle_depends_on_seed_and_epoch_only():
    """The same seed and epoch give the same order; another epoch or seed another; each row group stays once."""

    def order(**overrides):
        return [s.slices[0].row_group for s in stripes_of([1] * 30, shuffle="full", **overrides)]

    assert order() == order()
    assert order() != order(epoch=1)
    assert order() != order(seed=1)
    assert sorted(order()) == list(range(30))


def test_windows_take_whole_row_groups():
    """A stripe takes row groups until it has the wanted session rows; groups without samples are left out."""
    stripes = stripes_of([1, 0, 1, 1], shuffle="window", window_sessions=3)
    assert [[s.row_group for s in stripe.slices] for stripe in stripes] == [[0, 2], [3]]


def test_dealing_nothing_is_nothing():
    """No spans, no samples, for any number of ranks."""
    assert deal([], 3) == ((), (), ())
    assert num_steps(deal([], 3), 4, drop_last=False) == 0
