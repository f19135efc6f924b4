"""Kernels of saves: the most used rows, rows by shard; each against slow, obvious Python."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.checkpoint.grouping import rows_by_shard
from recoup.checkpoint.policies.kernels import most_used

COUNTS = st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1), st.sampled_from([0xFFFF, 0x10000, 0x10001, 2**31 - 1]))


@given(st.lists(COUNTS, max_size=40), st.integers(0, 45))
@settings(max_examples=200, deadline=None)
def test_most_used_rows_are_the_greatest_counts_first_of_equals(counts, room):
    """The rows chosen are the first `room` by count, then number, of those counted at all; ascending."""
    best = sorted((row for row, count in enumerate(counts) if count), key=lambda row: (-counts[row], row))[:room]
    assert most_used(np.array(counts, dtype=np.int32), room).tolist() == sorted(best)


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 4)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_rows_by_shard_keep_their_order(pairs):
    """Every shard gets its own rows, in the order given."""
    rows, owner = (torch.tensor([pair[i] for pair in pairs], dtype=torch.int64) for i in (0, 1))
    groups = [group.tolist() for group in rows_by_shard(rows, owner, 5)]
    assert groups == [[row for row, shard in pairs if shard == k] for k in range(5)]
