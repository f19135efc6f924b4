"""Histories and means made from the log: an oracle, and the law that the future never shows."""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError
from recoup.schema import Schema, SchemaError, SparseFeature
from recoup.table import BuildConfig, HistoryFeature, HistoryMean, SessionRule, build_table, with_histories
from tests.table.oracles import DAY_MS, MemoryLog, batch_of, decode, history_of, sessions_of

SCHEMA = Schema(key="user", labels=("click", "like"), sparse=(SparseFeature(name="item"),))
RULE = SessionRule(gap=timedelta(minutes=30), max_samples_per_row=3)


@st.composite
def logs(draw):
    """Return samples of a few users over some days, times distinct within a user but for some ties."""
    rows, clock = [], {}
    for i in range(draw(st.integers(0, 25))):
        user = draw(st.integers(0, 2))
        clock[user] = clock.get(user, 1_699_999_000_000) + draw(
            st.sampled_from([0, 1, 60_000, 1_800_001, DAY_MS // 3, DAY_MS])
        )
        rows.append(
            {"user": user, "time": clock[user], "click": float(i % 2), "like": float(i % 3), "item": [i] * (i % 3)}
        )
    return rows


def histories_of(freeze):
    """Return two histories under one freeze: of everything, and of what was liked a lot."""
    return (
        HistoryFeature(name="seen", source="item", last=4, freeze=freeze),
        HistoryFeature(name="liked", source="item", last=2, freeze=freeze, label="like", at_least=2.0),
    )


def build(rows, freeze, path, chunk=7):
    """Build with both histories and a mean."""
    config = BuildConfig(
        sessions=RULE,
        num_buckets=2,
        histories=histories_of(freeze),
        means=(HistoryMean(name="ctr", label="click", prior=0.25, strength=2.0, freeze=freeze),),
    )
    build_table(MemoryLog(batch_of(rows, SCHEMA), SCHEMA, batch_samples=chunk), path, config)
    return decode(path, with_histories(SCHEMA, config.histories, config.means))


def mean_of(sample, session, of_key, freeze):
    """Return the smoothed mean of the clicks strictly before the cut-off."""
    cutoff = {
        "session": session[0]["time"],
        "day": sample["time"] - sample["time"] % DAY_MS,
        "rolling": sample["time"],
    }[freeze]
    clicks = [other["click"] for other in of_key if other["time"] < cutoff]
    return np.float32((sum(clicks) + 2.0 * 0.25) / (len(clicks) + 2.0))


@given(logs(), st.sampled_from(["session", "day", "rolling"]))
@settings(max_examples=40, deadline=None)
def test_histories_are_the_oracles(rows, freeze):
    """Each sample's history and mean are the last earlier items and the clicks before the cut-off, oldest first."""
    with TemporaryDirectory() as folder:
        found = {
            (s["user"], s["time"], tuple(s["item"])): s for *_, held in build(rows, freeze, Path(folder)) for s in held
        }
    for session in sessions_of(rows, SCHEMA, RULE):
        of_key = sorted((r for r in rows if r["user"] == session[0]["user"]), key=lambda r: r["time"])
        for sample in session:
            got = found[sample["user"], sample["time"], tuple(sample["item"])]
            for history in histories_of(freeze):
                assert got[history.name] == history_of(sample, session, of_key, history, SCHEMA)
            assert got["ctr"] == pytest.approx(mean_of(sample, session, of_key, freeze), rel=1e-6)


@given(logs(), st.sampled_from(["session", "day", "rolling"]), st.integers(0, 24))
@settings(max_examples=25, deadline=None)
def test_no_sample_sees_the_future(rows, freeze, cut):
    """No leak: changing every item and label from a moment on changes no history of a sample until that moment."""
    moment = rows[cut % len(rows)]["time"] if rows else 0
    changed = [
        {**row, "item": [-1 - i], "click": 1 - row["click"], "like": 2.0} if row["time"] >= moment else row
        for i, row in enumerate(rows)
    ]
    seen = []
    for version in (rows, changed):
        with TemporaryDirectory() as folder:
            samples = [s for *_, held in build(version, freeze, Path(folder)) for s in held if s["time"] <= moment]
            seen.append(sorted(repr((s["user"], s["time"], s["seen"], s["liked"], s["ctr"])) for s in samples))
    assert seen[0] == seen[1]


def test_frozen_histories_repeat_within_a_session(tmp_path):
    """A history frozen at session start is one version a row; a rolling one shares its buffer."""
    rows = [{"user": 1, "time": t, "click": 0.0, "like": 0.0, "item": [t]} for t in range(20)]
    config = {
        "sessions": SessionRule(),
        "histories": (HistoryFeature(name="h", source="item", last=5, freeze="rolling"),),
    }
    build_table(MemoryLog(batch_of(rows, SCHEMA), SCHEMA), tmp_path / "rolling", BuildConfig(**config))
    from recoup.table import open_table

    row = next(open_table(tmp_path / "rolling").iter_rows()).to_pylist()[0]
    assert row["h__values"] == list(range(19))
    assert row["h__length"] == [0, 1, 2, 3, 4] + [5] * 15


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"histories": (HistoryFeature(name="h", source="nope"),)}, "expected a sparse feature"),
        ({"histories": (HistoryFeature(name="h", source="item", label="buy"),)}, "expected a label of"),
        ({"histories": (HistoryFeature(name="item", source="item"),)}, "distinct name"),
        ({"means": (HistoryMean(name="m", label="buy"),)}, "expected a label of"),
    ],
)
def test_a_history_of_nothing_is_refused(tmp_path, made, message):
    """A source or label that the log has not, or a name that is taken: one error before the log is read."""
    with pytest.raises(SchemaError, match=message):
        build_table(MemoryLog(batch_of([], SCHEMA), SCHEMA), tmp_path / "table", BuildConfig(**made))


def test_a_history_has_a_length():
    """`last` and `strength` are positive."""
    with pytest.raises(ConfigError, match="expected last > 0, got 0"):
        HistoryFeature(name="h", source="item", last=0)
    with pytest.raises(ConfigError, match="expected strength > 0"):
        HistoryMean(name="m", label="click", strength=0.0)
