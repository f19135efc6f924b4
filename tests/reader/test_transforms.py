"""Transforms act on unique rows and give every sample what the oracle gives it, deduplicated or plain, in any order."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError, apply_overrides, from_table, to_toml
from recoup.reader import ReaderConfig, ReaderError, SessionReader
from recoup.reader.transforms import dense_kernels, id_kernels
from recoup.schema import DenseFeature, Schema, SparseFeature
from tests.reader import oracles
from tests.reader.tables import plain_samples, random_sessions, samples_of, write_table

SCHEMA = Schema(
    key="user",
    labels=("click",),
    dense=(DenseFeature(name="d0"), DenseFeature(name="d1")),
    sparse=(
        SparseFeature(name="u0", group="user"),
        SparseFeature(name="u1", group="user"),
        SparseFeature(name="hist", group="history"),
        SparseFeature(name="item"),
    ),
)
WEIGHTED = Schema(
    key="user",
    labels=("click",),
    dense=SCHEMA.dense,
    sparse=(*SCHEMA.sparse, SparseFeature(name="liked", group="history", weighted=True)),
)


def config_of(transforms, **options):
    return from_table(ReaderConfig, {"batch_size": 9, "transforms": transforms, **options})


def transformed(table, transforms, schema=SCHEMA, **options):
    reader = SessionReader(table, config_of(transforms, **options))
    return [sample for batch in reader for sample in samples_of(batch, schema)]


def sparse_oracle(sample, transform):
    """Return the sample's lists after one sparse transform."""
    lists = dict(sample)
    rest = {k: v for k, v in transform.items() if k not in ("kind", "features", "feature", "first", "second", "output")}
    match transform["kind"]:
        case "ngram":
            lists[transform["output"]] = oracles.ngram(lists[transform["feature"]], **rest)
        case "cross":
            lists[transform["output"]] = oracles.cross(lists[transform["first"]], lists[transform["second"]], **rest)
        case "vocabulary":
            for f in transform["features"]:
                lists[f] = oracles.vocabulary(lists[f], transform["ids"], transform["unknown"])
        case kind:
            function = {"hash": oracles.hashed}.get(kind) or getattr(oracles, kind)
            for f in transform["features"]:
                lists[f] = function(lists[f], **rest)
    return lists


names = st.lists(st.sampled_from(["u0", "u1", "hist", "item"]), min_size=1, max_size=3, unique=True)
sizes = st.sampled_from([1, 2, 7, 64, 2**31 + 11, 2**40 + 1])
sparse_transforms = st.one_of(
    st.fixed_dictionaries({"kind": st.just("modulo"), "features": names, "size": sizes}),
    st.fixed_dictionaries(
        {"kind": st.just("hash"), "features": names, "size": sizes, "seed": st.sampled_from([0, 5, 2**40])}
    ),
    st.fixed_dictionaries(
        {"kind": st.just("vocabulary"), "features": names, "ids": st.just([3, -5, 40, 7]), "unknown": st.integers(0, 1)}
    ),
    st.fixed_dictionaries({"kind": st.just("truncate"), "features": names, "last": st.integers(1, 4)}),
    st.fixed_dictionaries({"kind": st.just("unique_ids"), "features": names}),
    st.fixed_dictionaries({"kind": st.just("fill"), "features": names, "value": st.integers(-2, 2)}),
    st.fixed_dictionaries(
        {"kind": st.just("clamp"), "features": names, "low": st.just(-3.0), "high": st.integers(0, 90).map(float)}
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("ngram"),
            "feature": st.sampled_from(["u0", "hist", "item"]),
            "n": st.integers(1, 3),
            "size": sizes,
        }
    ),
    st.fixed_dictionaries({"kind": st.just("cross"), "first": st.just("u1"), "second": st.just("u0"), "size": sizes}),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 20), st.lists(sparse_transforms, max_size=4), st.booleans())
def test_chains_of_sparse_transforms_equal_the_oracle(tmp_path_factory, seed, transforms, dedup):
    """Any chain, truncations pushed into the gather or not, equals the same chain done list by list."""
    for i, transform in enumerate(transforms):
        if transform["kind"] in ("ngram", "cross"):
            transform["output"] = f"out{i}"
    sessions = random_sessions(seed, 8, schema=SCHEMA)
    table = write_table(tmp_path_factory.mktemp("t") / "t", sessions, SCHEMA)
    found = transformed(table, transforms, dedup=dedup)
    for sample, plain in zip(found, plain_samples(sessions, SCHEMA), strict=True):
        lists = {name: list(ids) for name, ids in plain["sparse"].items()}
        for transform in transforms:
            lists = sparse_oracle(lists, transform)
        assert {name: list(ids) for name, ids in sample["sparse"].items()} == lists


@pytest.mark.parametrize("negative", ["zero", "symmetric"])
def test_dense_transforms_equal_the_oracle_M10(tmp_path, negative):
    """Clamp, log1p and bucketise give finite values for negative input, equal to the oracle; order counts."""
    sessions = random_sessions(1, 10, schema=SCHEMA)
    for session in sessions:
        session[0]["d0"], session[-1]["d1"] = -1.0, -3.0
    table = write_table(tmp_path / "t", sessions, SCHEMA)
    chain = [
        {"kind": "bucketise", "feature": "d0", "boundaries": [-1.0, 0.0, 2.5], "output": "raw"},
        {"kind": "clamp", "features": ["d0"], "low": -2.0, "high": 4.0},
        {"kind": "log1p", "features": ["d0", "d1"], "negative": negative},
        {"kind": "bucketise", "feature": "d0", "boundaries": [0.0, 1.0], "output": "logged"},
    ]
    for sample, plain in zip(transformed(table, chain), plain_samples(sessions, SCHEMA), strict=True):
        d0, d1 = plain["dense"]
        expected = tuple(oracles.log1p(x, negative) for x in (min(max(d0, -2.0), 4.0), d1))
        assert sample["dense"] == expected
        assert sample["sparse"]["raw"] == tuple(oracles.bucketise(d0, [-1.0, 0.0, 2.5]))
        assert sample["sparse"]["logged"] == tuple(oracles.bucketise(expected[0], [0.0, 1.0]))


def test_log1p_is_exact_to_the_last_place_M10():
    """Over the whole range of float32 the result is the rounded true value; never NaN or infinite for finite input."""
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [10.0 ** rng.uniform(-44, 38.5, 50_000), np.arange(3000), rng.uniform(0, 3, 20_000), [0, 1e-45, 3.4e38]]
    ).astype(np.float32)
    true = np.log1p(x.astype(np.float64))
    for values, symmetric, expected in ((x, False, true), (-x, True, -true), (-x, False, 0 * true)):
        found = values.copy()
        dense_kernels.log1p_in_place(found, symmetric)
        assert np.isfinite(found).all()
        assert (np.abs(found - expected) <= 0.51 * np.spacing(np.abs(expected).astype(np.float32))).all()


def test_ids_at_the_edges_of_int64():
    """Modulo and hash equal the oracle for the extremes of int64, for every kind of size."""
    ids = [0, 1, -1, 2**31, 2**51 - 1, 2**51, -(2**51), 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 1577134800018226901]
    for size in (1, 2, 3, 10**6 + 3, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**62 + 5):
        values = np.array(ids, dtype=np.int64)
        id_kernels.modulo_in_place(values, size)
        assert values.tolist() == oracles.modulo(ids, size)
        values = np.array(ids, dtype=np.int64)
        id_kernels.hash_in_place(values, size, 7)
        assert values.tolist() == oracles.hashed(ids, size, 7)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**63 - 1))
def test_modulo_is_exact(x, size):
    """The reciprocal with its correction is the exact remainder for any ID and size."""
    values = np.array([x], dtype=np.int64)
    id_kernels.modulo_in_place(values, size)
    assert values.tolist() == [x % size]


def test_hash_spreads_neighbours():
    """100,000 neighbouring IDs fill 1,000 buckets as evenly as chance does."""
    values = np.arange(100_000)
    id_kernels.hash_in_place(values, 1000, 0)
    counts = np.bincount(values, minlength=1000)
    assert counts.min() > 50
    assert counts.max() < 150


def test_windows_are_kept(tmp_path):
    """Per-ID transforms, truncation and fill keep a shifted history on one shared buffer."""
    sessions = random_sessions(3, 30, schema=SCHEMA)
    table = write_table(tmp_path / "t", sessions, SCHEMA)
    chain = [
        {"kind": "hash", "features": ["hist"], "size": 1000},
        {"kind": "truncate", "features": ["hist"], "last": 4},
        {"kind": "fill", "features": ["hist"], "value": 7},
    ]
    (plain,), (batch,) = (
        list(SessionReader(table, config_of(transforms, batch_size=10**6))) for transforms in ([], chain)
    )
    rows = batch.sparse.rows["hist"]
    assert rows.values.shape[0] <= plain.sparse.rows["hist"].values.shape[0] + 1
    assert rows.values.shape[0] < int(rows.length.sum()) * 0.8
    assert int(rows.length.min()) == 1


def test_weighted_lists_keep_their_weights(tmp_path):
    """Truncation and per-ID transforms carry weights along; transforms that would lose their meaning are refused."""
    sessions = random_sessions(4, 12, schema=WEIGHTED)
    table = write_table(tmp_path / "t", sessions, WEIGHTED)
    chain = [
        {"kind": "truncate", "features": ["liked"], "last": 2},
        {"kind": "modulo", "features": ["liked"], "size": 5},
    ]
    for sample, plain in zip(transformed(table, chain, WEIGHTED), plain_samples(sessions, WEIGHTED), strict=True):
        assert sample["weights"]["liked"] == plain["weights"]["liked"][-2:]
        assert sample["sparse"]["liked"] == tuple(x % 5 for x in plain["sparse"]["liked"][-2:])
    for kind, more in (("unique_ids", {}), ("fill", {"value": 1})):
        with pytest.raises(ReaderError, match=f"{kind}: expected a feature without weights, got 'liked'"):
            transformed(table, [{"kind": kind, "features": ["liked"], **more}], WEIGHTED)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            {"kind": "cross", "first": "u0", "second": "hist", "size": 9, "output": "x"},
            "one dedup group, got 'u0' of group 'user' and 'hist' of group 'history'",
        ),
        (
            {"kind": "cross", "first": "u0", "second": "u1", "size": 9, "output": "item"},
            "a new name as output, got 'item'",
        ),
        ({"kind": "hash", "features": ["d0"], "size": 9}, "hash: expected a sparse feature of .*, got 'd0'"),
        ({"kind": "log1p", "features": ["u0"]}, "log1p: expected a dense feature of .*, got 'u0'"),
        (
            {"kind": "bucketise", "feature": "u0", "boundaries": [1.0], "output": "x"},
            "bucketise: expected a dense feature",
        ),
        ({"kind": "clamp", "features": ["u0"], "low": 0.5, "high": 2.0}, "whole numbers for sparse feature 'u0'"),
        ({"kind": "vocabulary", "features": ["u0"], "ids": [4, 5, 4]}, r"every ID once, got 4 again \(entry 3\)"),
        ({"kind": "vocabulary", "features": ["u0"], "path": "/nowhere"}, "one int64 ID a line in /nowhere"),
    ],
)
def test_transforms_that_do_not_fit_are_refused(tmp_path, transform, message):
    """Before anything is read: an unknown feature, a taken output, a cross of two groups, a bad vocabulary."""
    table = write_table(tmp_path / "t", random_sessions(5, 2, schema=SCHEMA), SCHEMA)
    with pytest.raises(ReaderError, match=message):
        SessionReader(table, config_of([transform]))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ({"kind": "modulo", "features": ["a"], "size": 0}, "modulo: expected size >= 1, got 0"),
        ({"kind": "truncate", "features": ["a"], "last": 0}, "truncate: expected last >= 1, got 0"),
        ({"kind": "clamp", "features": ["a"], "low": 2.0, "high": 1.0}, "expected low <= high, got 2.0 and 1.0"),
        ({"kind": "bucketise", "feature": "a", "boundaries": [1.0, 1.0], "output": "b"}, "expected rising boundaries"),
        ({"kind": "vocabulary", "features": ["a"]}, "either ids or path"),
        ({"kind": "nothing"}, "expected kind one of"),
    ],
)
def test_wrong_settings_are_refused(transform, message):
    """A setting out of range is an error that shows what came."""
    with pytest.raises(ConfigError, match=message):
        config_of([transform])


def test_vocabulary_from_a_file(tmp_path):
    """One ID a line; the first has number 1, unknown ones the configured number."""
    path = tmp_path / "ids.txt"
    path.write_text("40\n-5\n7\n")
    sessions = random_sessions(6, 6, schema=SCHEMA)
    table = write_table(tmp_path / "t", sessions, SCHEMA)
    found = transformed(table, [{"kind": "vocabulary", "features": ["u0"], "path": str(path), "unknown": 9}])
    expected = [tuple(oracles.vocabulary(s["sparse"]["u0"], [40, -5, 7], 9)) for s in plain_samples(sessions, SCHEMA)]
    assert [s["sparse"]["u0"] for s in found] == expected


def test_transforms_are_declared_in_toml():
    """A list of tables with `kind`; TOML out and in again gives the same configuration."""
    import tomllib

    text = """
    batch_size = 4
    [[transforms]]
    kind = "truncate"
    features = ["hist"]
    last = 50
    [[transforms]]
    kind = "log1p"
    features = ["d0"]
    """
    config = from_table(ReaderConfig, apply_overrides(tomllib.loads(text), ["shuffle=window"]))
    assert [t.kind for t in config.transforms] == ["truncate", "log1p"]
    assert from_table(ReaderConfig, tomllib.loads(to_toml(config))) == config


def test_cost_follows_unique_rows(tmp_path):
    """A per-ID transform touches each stored ID once, however many samples share it."""
    session = [
        {**s, "time": i, "sparse": {**s["sparse"], "u0": (1, 2, 3)}}
        for i, s in enumerate(random_sessions(7, 1, mean_length=2, schema=SCHEMA)[0][:1] * 50)
    ]
    table = write_table(tmp_path / "t", [session], SCHEMA)
    (batch,) = SessionReader(table, config_of([{"kind": "hash", "features": ["u0"], "size": 10}], batch_size=100))
    assert Counter(batch.sparse.inverse["user"].tolist()) == {0: 50}
    assert batch.sparse.rows["u0"].values.shape[0] == 3
