"""The schema: distinct names, groups in order, one Arrow form."""

import tomllib

import pyarrow as pa
import pytest

from recoup.core import from_table, to_toml
from recoup.schema import DedupGroup, DenseFeature, Schema, SchemaError, SparseFeature, sample_schema


def make_schema(**overrides):
    values = {
        "key": "user",
        "event_id": "event",
        "labels": ("click",),
        "dense": (DenseFeature(name="age"),),
        "sparse": (
            SparseFeature(name="item"),
            SparseFeature(name="history", group="g", weighted=True),
            SparseFeature(name="liked", group="g"),
        ),
    }
    return Schema(**{**values, **overrides})


def test_groups_keep_order_and_the_plain_group_is_last():
    """Groups come in order of first appearance, features without one last."""
    assert make_schema().groups == (
        DedupGroup(name="g", features=("history", "liked")),
        DedupGroup(name="", features=("item",)),
    )


def test_arrow_form_has_the_canonical_order_and_types():
    """Key, time, event id, labels, dense, sparse, weights."""
    schema = sample_schema(make_schema())
    assert schema.names == ["user", "time", "event", "click", "age", "item", "history", "liked", "history_weights"]
    assert schema.field("history").type.value_type == pa.int64()
    assert schema.field("history_weights").type.value_type == pa.float32()
    assert not any(field.nullable for field in schema)


def test_schema_survives_toml():
    """A schema is configuration."""
    assert from_table(Schema, tomllib.loads(to_toml(make_schema()))) == make_schema()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"labels": ()}, "at least one label"),
        ({"labels": ("user",)}, "distinct name, got 'user' 2 times"),
        ({"labels": ("",)}, "distinct name, got ''"),
        ({"labels": ("history_weights",)}, "distinct name, got 'history_weights'"),
    ],
)
def test_contradictions_are_refused(overrides, message):
    """Two columns of one name, an empty name, or no label are refused."""
    with pytest.raises(SchemaError, match=message):
        make_schema(**overrides)


def test_unknown_feature_names_the_known_ones():
    """Asking for a feature that is not there says which are."""
    with pytest.raises(SchemaError, match=r"expected a sparse feature of \['item', 'history', 'liked'\], got 'items'"):
        make_schema().sparse_feature("items")
