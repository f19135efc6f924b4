"""Codes are the IDs: any int64, whatever the hot ones; and the hot ones are those most used."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoup.coding import MAX_HOT, HotCodes, hot_ids, ids_of
from tests.strategies import IDS

LARGEST = 2**63 - 1


def numbers(ids):
    return np.array(ids, dtype=np.int64)


def code_of(number, hot):
    """Return the code of an ID, or None: what docs/format.md says."""
    if number in hot:
        return hot.index(number)
    if number < 0:
        return number
    return number + len(hot) if number + len(hot) <= LARGEST else None


@given(st.lists(IDS, max_size=40), st.lists(IDS, max_size=8, unique=True))
def test_codes_are_what_the_format_says_and_come_back_law_1(ids, hot):
    """Every ID's code is the oracle's; decoding gives the IDs; an ID without a code is refused."""
    expected = [code_of(number, hot) for number in ids]
    assert HotCodes(numbers(hot)).holds(numbers(ids)) == (None not in expected)
    if None in expected:
        return
    codes = HotCodes(numbers(hot)).encode(numbers(ids))
    assert codes.tolist() == expected
    ids_of(codes, numbers(hot))
    assert codes.tolist() == ids


@given(st.lists(st.one_of(IDS, st.integers(-(2**63), LARGEST)), max_size=60))
def test_hot_ids_are_those_that_repeat_most_first(ids):
    """Hot are the IDs used twice or more, by powers of two of their uses, then ascending; and those IDs have codes."""
    hot = hot_ids(numbers(ids)).tolist()
    uses = Counter(ids)
    repeated = sorted((n for n in uses if uses[n] > 1), key=lambda n: (-uses[n].bit_length(), n))
    rest = [n for n in uses if uses[n] == 1]
    assert hot == ([] if max(rest, default=0) > LARGEST - len(repeated) else repeated)
    assert HotCodes(numbers(hot)).holds(numbers(ids))
    codes = HotCodes(numbers(hot)).encode(numbers(ids))
    ids_of(codes, numbers(hot))
    assert codes.tolist() == ids


@pytest.mark.parametrize("spread", [1, 7919, 2**40 + 1])
def test_a_list_is_bounded_and_large_lists_encode(spread):
    """More candidates than places: the most used stay; consecutive and spread IDs come back alike."""
    often = np.arange(1000) * spread
    ids = np.concatenate([np.arange(MAX_HOT + 500) * spread] * 2 + [often] * 3)
    hot = hot_ids(ids)
    assert len(hot) == MAX_HOT
    assert set(often.tolist()) == set(hot[:1000].tolist())
    codes = HotCodes(hot).encode(ids)
    assert np.count_nonzero(codes < MAX_HOT) == 2 * MAX_HOT + 3000
    ids_of(codes, hot)
    assert np.array_equal(codes, ids)


@given(st.lists(st.integers(-(2**63), LARGEST), max_size=30), st.lists(IDS, max_size=8, unique=True))
def test_any_code_has_an_id(codes, hot):
    """Damaged codes are decoded as the format says, never by a read outside the list."""
    found = numbers(codes)
    ids_of(found, numbers(hot))
    expected = [c if c < 0 else hot[c] if c < len(hot) else c - len(hot) for c in codes]
    assert found.tolist() == expected
