"""Durations as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoup.core import ConfigError, format_duration, parse_duration


@given(st.integers(1, 10**12))
def test_duration_survives_text(milliseconds):
    """parse(format(d)) equals d, to the millisecond."""
    duration = timedelta(milliseconds=milliseconds)
    assert abs(parse_duration(format_duration(duration)) - duration) < timedelta(microseconds=1000)


def test_sums_and_units():
    """Parts add up."""
    assert parse_duration("1h30m") == timedelta(minutes=90)
    assert parse_duration("2.5 m") == timedelta(seconds=150)
    assert parse_duration("250ms") == timedelta(milliseconds=250)


@pytest.mark.parametrize("text", ["", "5", "5x", "m", "-3m", "1h-3m"])
def test_malformed_duration_is_refused(text):
    """Anything else is refused with the text."""
    with pytest.raises(ConfigError, match="a duration is a number and a unit"):
        parse_duration(text)
