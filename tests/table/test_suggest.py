"""`table suggest`: planted groups are found, d and shifts measured as an oracle counts, predictions come true."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError
from recoup.log import SyntheticLog, open_log
from recoup.log.synthetic import SyntheticGroup
from recoup.schema import DedupGroup, Schema, SchemaError, SparseFeature
from recoup.table import BuildConfig, build_table, open_table, regrouped
from recoup.table.inspect import inspect_table
from recoup.table.suggest import SuggestConfig, sample_keys, suggest_groups
from tests.strategies import samples, schemas
from tests.table.oracles import MemoryLog, batch_of, sessions_of

PLANTED = (
    SyntheticGroup(name="a", prefix="a", num_features=3, repeat=0.95, mean_length=9, min_length=2, max_length=20),
    SyntheticGroup(name="b", prefix="b", num_features=2, repeat=0.7, mean_length=9, min_length=2, max_length=20),
    SyntheticGroup(
        name="c", prefix="c", num_features=2, repeat=0.5, shift=True, mean_length=9, min_length=5, max_length=20
    ),
)


def synthetic(num_samples=6000, **overrides):
    """Return a small log with three planted groups and two item features."""
    settings = {"groups": PLANTED, "num_item_features": 2, "num_dense": 1, "num_ids": 10_000}
    return open_log(SyntheticLog(num_samples=num_samples, **{**settings, **overrides}))


def flat(source):
    """Return the log with every declared group taken away: nothing tells which features belong together."""
    batches = list(source.batches())
    log = MemoryLog(batches[0], regrouped(source.schema, (DedupGroup(name="", features=source.schema.sparse_names),)))
    log.batches = lambda columns=None, **options: iter(batches)
    return log


def test_planted_groups_are_found_without_being_told():
    """The proposal is the planted groups: features that change together, and no item feature."""
    found = suggest_groups(flat(synthetic()), BuildConfig())
    assert [group.features for group in found.groups] == [("a_0", "a_1", "a_2"), ("b_0", "b_1"), ("c_0", "c_1")]
    assert [one.repeat for one in found.predictions] == pytest.approx([0.95, 0.7, 0.5], abs=0.03)
    assert all(share == 1.0 for share in found.co_change.values())
    shifting = {one.name: one.new_ids for one in found.features if one.group == found.groups[2].name}
    assert shifting == {"c_0": pytest.approx(1.0, abs=0.02), "c_1": pytest.approx(1.0, abs=0.02)}
    assert found.bytes_per_sample < found.plain_bytes_per_sample
    assert found.reader_factor > 2
    assert found.trainer_factor > 2


def test_what_was_foretold_comes_true(tmp_path):
    """Built with the proposal, the table's d, factors and bytes are as foretold, from half the keys."""
    log = flat(synthetic(20_000))
    whole = suggest_groups(log, BuildConfig())
    found = suggest_groups(log, BuildConfig(), SuggestConfig(sample_bytes=9_000_000))
    assert found.share < whole.share
    config = BuildConfig(groups=found.groups, predictions=found.predictions)
    build_table(log, tmp_path / "table", config)
    facts = inspect_table(open_table(tmp_path / "table"))
    assert facts.predictions == found.predictions
    for group, one in zip(facts.groups, found.predictions, strict=True):
        assert one.factor == pytest.approx(group.measured_factor, rel=0.1)
        assert one.window_factor == pytest.approx(group.window_factor, rel=0.1)
        size = sum(facts.bytes_by_feature.get(name, 0) for name in (group.name, *group.features)) / facts.samples
        assert one.bytes_per_sample == pytest.approx(size, rel=0.15)
    assert found.bytes_per_sample == pytest.approx(facts.bytes / facts.samples, rel=0.15)


def test_a_log_without_repeats_gets_no_group():
    """Nothing repeats, nothing is proposed, nothing is gained."""
    groups = (SyntheticGroup(name="a", prefix="a", num_features=2, repeat=0.0, mean_length=9),)
    found = suggest_groups(flat(synthetic(groups=groups)), BuildConfig())
    assert found.groups == ()
    assert found.reader_factor == found.trainer_factor == 1.0


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_repeat_and_factor_are_what_an_oracle_counts(data):
    """d, mean length and factor of every feature, counted sample by sample."""
    schema = data.draw(schemas(max_groups=2, weights=False, event_ids=False))
    batch = data.draw(samples(schema, min_rows=1))
    config = BuildConfig()
    found = suggest_groups(MemoryLog(batch, schema), config)
    sessions = sessions_of(batch.to_pylist(), schema, config.sessions)
    for one in found.features:
        runs = [[sample[one.name] for sample in session] for session in sessions]
        same = sum(a == b for lists in runs for a, b in pairwise(lists))
        chances = sum(len(lists) - 1 for lists in runs)
        assert one.repeat == pytest.approx(same / chances if chances else 0.0)
        assert one.factor == pytest.approx(batch.num_rows / (batch.num_rows - same))
        assert one.mean_length == pytest.approx(sum(len(ids) for lists in runs for ids in lists) / batch.num_rows)


def test_the_sample_is_whole_keys_and_bounded():
    """A key is in the sample with all its samples or not at all; the sample keeps to its size."""
    source = synthetic(6000)
    kept, share = sample_keys(source, 400_000, lambda *_: None)
    assert kept.nbytes <= 400_000
    assert share < 1
    everything = [key for batch in source.batches(["session_key"]) for key in batch.column(0).to_pylist()]
    keys = kept.column("session_key").to_pylist()
    assert keys
    assert all(everything.count(key) == keys.count(key) for key in set(keys[:50]))


def test_regrouping_refuses_what_is_not_there():
    """An unknown feature, and a feature in two groups."""
    schema = Schema(key="u", labels=("y",), sparse=(SparseFeature(name="f"), SparseFeature(name="g", group="x")))
    again = regrouped(schema, (DedupGroup(name="n", features=("f",)),))
    assert [feature.group for feature in again.sparse] == ["n", ""]
    with pytest.raises(SchemaError, match="expected a sparse feature"):
        regrouped(schema, (DedupGroup(name="n", features=("h",)),))
    with pytest.raises(SchemaError, match="expected each feature in one group, got 'f' in two"):
        regrouped(schema, (DedupGroup(name="n", features=("f",)), DedupGroup(name="m", features=("f",))))


def test_an_empty_log_has_nothing_to_measure():
    """No samples: one clear error."""
    schema = Schema(key="u", labels=("y",), sparse=(SparseFeature(name="f"),))
    with pytest.raises(ConfigError, match="expected samples to measure, got an empty log"):
        suggest_groups(MemoryLog(batch_of([], schema), schema), BuildConfig())
    with pytest.raises(ConfigError, match="least_factor >= 1"):
        SuggestConfig(least_factor=0.5)
