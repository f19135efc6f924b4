"""Failure traces: the stated distribution, the same seed the same trace, recordings read exactly or refused."""

from datetime import timedelta
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoup.core import ConfigError
from recoup.failures import (
    ExponentialTrace,
    Failure,
    FailureTraceError,
    GammaTrace,
    RecordedTrace,
    draw_failures,
    read_trace,
    write_trace,
)


def first(trace, count, num_shards=8, seed=0):
    return list(islice(draw_failures(trace, num_shards, seed), count))


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
def test_gaps_have_the_stated_distribution(shape):
    """Mean and variance of the gaps are those of the gamma distribution, and shards fail evenly."""
    trace = GammaTrace(mtbf=timedelta(seconds=100), shape=shape)
    failures = first(trace, 20_000)
    gaps = np.diff([0.0] + [f.seconds for f in failures])
    assert gaps.mean() == pytest.approx(100, rel=0.04)
    assert gaps.var() == pytest.approx(100**2 / shape, rel=0.1)
    assert np.bincount([f.shards[0] for f in failures]) / 20_000 == pytest.approx(1 / 8, abs=0.01)


def test_exponential_is_gamma_of_shape_one():
    """Both kinds draw the same failures from the same seed, another seed others."""
    mtbf = timedelta(hours=14)
    assert first(ExponentialTrace(mtbf=mtbf), 50) == first(GammaTrace(mtbf=mtbf, shape=1.0), 50)
    assert first(ExponentialTrace(mtbf=mtbf), 5) != first(ExponentialTrace(mtbf=mtbf), 5, seed=1)


def test_several_shards_at_once():
    """A failure takes as many distinct shards as stated, at most all."""
    trace = ExponentialTrace(mtbf=timedelta(hours=1), shards_at_once=3)
    assert all(len(set(f.shards)) == 3 for f in first(trace, 100))
    with pytest.raises(ConfigError, match="shards_at_once must be at most 2 shards, got 3"):
        first(trace, 1, num_shards=2)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.sets(st.integers(0, 7), min_size=1)), max_size=8))
def test_recording_survives_the_file(tmp_path_factory, rows):
    """read(write(trace)) equals the trace."""
    failures = [Failure(seconds=s, shards=tuple(sorted(k))) for s, k in sorted(rows, key=lambda row: row[0])]
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    write_trace(path, failures)
    assert list(draw_failures(RecordedTrace(path=path), 8, seed=0)) == failures


def test_recording_takes_durations_and_extra_columns(tmp_path):
    """Times may be written as people write them; other columns are ignored."""
    path = tmp_path / "trace.csv"
    path.write_text("cause,time,shards\noom,90,1\ndisk,1h30m,0;3\n")
    assert read_trace(path) == [Failure(seconds=90.0, shards=(1,)), Failure(seconds=5400.0, shards=(0, 3))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("when,shards\n1,0\n", "expected the columns time and shards"),
        ("time,shards\nsoon,0\n", "line 2: expected a time and shards"),
        ("time,shards\n5,\n", "line 2: expected a time and shards"),
        ("time,shards\n5\n", "line 2: expected a time and shards"),
        ("time,shards\n5,8\n", "line 2: expected shards 0 to 7, got"),
        ("time,shards\n-5,1\n", "line 2: expected a time of at least 0"),
        ("time,shards\n5,1\n4,1\n", "times must not decrease, got 5.0 then 4.0"),
    ],
)
def test_damaged_recording_is_refused(tmp_path, text, message):
    """A damaged recording is refused with file and line."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(FailureTraceError, match=message):
        first(RecordedTrace(path=path), 9)


def test_missing_recording_is_refused(tmp_path):
    """A recording that is not there is refused with its path."""
    with pytest.raises(FailureTraceError, match=r"expected a failure trace at .*none\.csv"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize("values", [{"mtbf": timedelta(0)}, {"shape": 0.0}, {"shards_at_once": 0}])
def test_impossible_trace_is_refused(values):
    """A distribution that cannot be is refused."""
    with pytest.raises(ConfigError):
        GammaTrace(**{"mtbf": timedelta(hours=1), "shape": 1.0, **values})
