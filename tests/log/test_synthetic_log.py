"""The synthetic log is what it declares: repeats, session lengths, interleaving, popularity, learnable clicks."""

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from recoup.core import ConfigError, from_table, to_table
from recoup.log import SyntheticGroup, SyntheticLog, open_log
from recoup.log.random_kernel import new_random, new_zipf, zipf_id
from recoup.schema import sample_schema


@pytest.fixture(scope="module")
def recd_like():
    """120,000 samples of the standard log."""
    return pa.Table.from_batches(open_log(SyntheticLog(num_samples=120_000, seed=5)).batches())


def by_session(table):
    return table.sort_by([("session_key", "ascending"), ("time", "ascending")])


def unchanged(table, feature):
    """Share of neighbours within a session whose list is equal."""
    column = table[feature].combine_chunks()
    rows = column.slice(0, 8_000).to_pylist()
    keys = table["session_key"].to_numpy()[:8_000]
    pairs = np.flatnonzero(keys[1:] == keys[:-1])
    return float(np.mean([rows[i] == rows[i + 1] for i in pairs]))


def test_columns_are_the_canonical_ones(recd_like):
    """A batch has exactly the schema's Arrow form, and times never go back."""
    source = open_log(SyntheticLog(num_samples=10))
    assert recd_like.schema == sample_schema(source.schema)
    assert np.all(np.diff(recd_like["time"].to_numpy()) >= 0)
    assert [(group.name, len(group.features)) for group in source.schema.groups] == [
        ("stable", 4),
        ("medium", 2),
        ("history", 2),
        ("", 12),
    ]


def test_sessions_have_the_stated_mean_and_interleave(recd_like):
    """16.5 samples a session in all, and few of a session within 4,096 neighbours."""
    keys = recd_like["session_key"].to_numpy()
    assert len(keys) / len(np.unique(keys)) == pytest.approx(16.5, rel=0.03)
    windows = keys[: len(keys) // 4096 * 4096].reshape(-1, 4096)
    means = [4096 / len(np.unique(window)) for window in windows]
    # A log of 120,000 samples is too short for 1.15 with sessions of 16.5: the length limits how far they spread.
    assert max(means) < 1.6


def test_a_long_log_reaches_the_stated_window_mean():
    """1.15 samples a session in a window of 4,096, from the first window to the last."""
    config = SyntheticLog(num_samples=800_000, groups=(), num_item_features=1, num_dense=0)
    keys = np.concatenate([batch["session_key"].to_numpy() for batch in open_log(config).batches(["session_key"])])
    assert len(keys) / len(np.unique(keys)) == pytest.approx(16.5, rel=0.03)
    means = [4096 / len(np.unique(keys[i : i + 4096])) for i in range(0, 790_000, 4096)]
    assert np.mean(means) == pytest.approx(1.15, abs=0.01)
    assert np.mean(means[:10]) == pytest.approx(np.mean(means[-10:]), abs=0.02)


def test_groups_repeat_as_stated(recd_like):
    """Neighbours in a session are equal with chance d; about 79 % of all ID values are exact repeats."""
    table = by_session(recd_like)
    odds = {"u_stable_0": 0.98, "u_stable_3": 0.98, "u_medium_1": 0.90, "hist_0": 0.75, "hist_1": 0.75, "item_0": 0.0}
    for feature, repeat in odds.items():
        assert unchanged(table, feature) == pytest.approx(repeat, abs=0.02), feature
    repeated = total = 0
    keys = table["session_key"].to_numpy()
    same = np.concatenate([[False], keys[1:] == keys[:-1]])
    for feature in open_log(SyntheticLog(num_samples=1)).schema.sparse_names:
        rows = table[feature].combine_chunks().slice(0, 8_000).to_pylist()
        sizes = np.array([len(row) for row in rows])
        equal = np.array([i > 0 and bool(same[i]) and rows[i] == rows[i - 1] for i in range(len(rows))])
        repeated += int(sizes[equal].sum())
        total += int(sizes.sum())
    assert repeated / total == pytest.approx(0.79, abs=0.015)


def test_histories_shift_by_one_together(recd_like):
    """When a history changes, it drops its oldest ID and gains a newest, and both histories change at once."""
    table = by_session(recd_like).slice(0, 5_000)
    first, second = table["hist_0"].to_pylist(), table["hist_1"].to_pylist()
    keys = table["session_key"].to_pylist()
    changes = 0
    for i in range(1, len(keys)):
        if keys[i] == keys[i - 1] and first[i] != first[i - 1]:
            assert first[i][:-1] == first[i - 1][1:]
            assert second[i][:-1] == second[i - 1][1:]
            changes += 1
    assert changes > 500


def test_lists_have_the_stated_lengths(recd_like):
    """User-side lists: mean 40, within 5 and 100; item-side lists: mean 2."""
    lengths = np.diff(recd_like["u_medium_0"].combine_chunks().offsets.to_numpy())
    assert (lengths.min(), lengths.max()) == (5, 100)
    assert lengths.mean() == pytest.approx(40, rel=0.05)
    assert np.diff(recd_like["item_3"].combine_chunks().offsets.to_numpy()).mean() == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize(("exponent", "num_ids"), [(1.05, 10_000_000), (0.0, 50_000), (1.0, 100_000), (2.0, 300)])
def test_ids_follow_zipf(exponent, num_ids):
    """The drawn IDs have the chances of Zipf's law, its head and its tail, spread over all IDs without collision."""
    zipf = new_zipf(exponent, num_ids)
    state = new_random(1)
    drawn = np.array([zipf_id(state, *zipf[:4], zipf.stride) for _ in range(60_000)])
    rank_of = np.zeros(num_ids, dtype=np.int64) - 1
    rank_of[np.arange(num_ids) * zipf.stride % num_ids] = np.arange(num_ids)
    assert rank_of.min() == 0
    ranks = rank_of[drawn]
    chances = np.arange(1, num_ids + 1, dtype=np.float64) ** -exponent
    chances /= chances.sum()
    for rank in (0, 1, 5):
        assert np.mean(ranks == rank) == pytest.approx(chances[rank], abs=0.006)
    for bound in (10, 200, 17_000, 60_000, 5_000_000):
        assert np.mean(ranks < bound) == pytest.approx(chances[:bound].sum(), abs=0.009)


@pytest.mark.parametrize("batch_samples", [1, 7, 1000, 5000])
def test_the_cut_into_batches_changes_nothing(batch_samples):
    """The same configuration gives the same samples whatever the batch size; another seed gives others."""
    source = open_log(SyntheticLog(num_samples=1500, seed=9))
    whole = pa.Table.from_batches(source.batches())
    assert pa.Table.from_batches(source.batches(batch_samples=batch_samples)).combine_chunks() == whole
    assert pa.Table.from_batches(open_log(SyntheticLog(num_samples=1500, seed=10)).batches()) != whole


def test_clicks_have_the_stated_rate_and_can_be_ranked():
    """The label's mean is the click rate; the true odds rank it with an AUC of about 0.8."""
    drawn = list(open_log(SyntheticLog(num_samples=60_000, seed=2)).draw())
    click = np.concatenate([part.click for part in drawn])
    odds = np.concatenate([part.odds for part in drawn])
    assert click.mean() == pytest.approx(0.2, abs=0.02)
    order = np.argsort(odds)
    ranks = np.empty(len(odds))
    ranks[order] = np.arange(1, len(odds) + 1)
    positives = click.sum()
    auc = (ranks[click == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(click) - positives))
    assert 0.76 < auc < 0.86


def test_memory_does_not_grow_with_the_log():
    """Drawing a log ten times as long needs no more memory."""
    config = {
        "groups": (SyntheticGroup(name="g", prefix="f", num_features=3, repeat=0.5, mean_length=5, max_length=9),)
    }
    peaks = []
    for num_samples in (20_000, 200_000):
        source = open_log(
            SyntheticLog(num_samples=num_samples, num_item_features=0, num_dense=0, num_ids=100, **config)
        )
        tracemalloc.start()
        for batch in source.batches(batch_samples=1024):
            assert batch.num_rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 8 * 2**20


def test_settings_are_checked_and_survive_toml():
    """A setting out of range is refused; a configuration reads back equal."""
    config = SyntheticLog(num_samples=10, samples_per_session=4.0)
    assert from_table(SyntheticLog, to_table(config)) == config
    for settings, message in (
        ({"num_samples": -1}, "num_samples must be at least 0, got -1"),
        ({"groups": (SyntheticGroup(name="g", prefix="f", num_features=1, repeat=1.5),)}, r"repeat .* got 1.5"),
        ({"click_rate": 0.0}, "click_rate in"),
    ):
        with pytest.raises(ConfigError, match=message):
            SyntheticLog(**{"num_samples": 1, **settings})


def test_an_empty_log_has_no_batches():
    """Zero samples are zero batches."""
    assert list(open_log(SyntheticLog(num_samples=0)).batches()) == []
