"""The border check: exactly the schema's Arrow form comes out, or one error with file, row and column."""

import numpy as np
import pyarrow as pa
import pytest

from recoup.log import LogError, conform
from recoup.schema import DenseFeature, Schema, SparseFeature, sample_schema

BIG = 1577134800018226901


def make_schema(**overrides):
    values = {
        "key": "user",
        "labels": ("click",),
        "dense": (DenseFeature(name="age"),),
        "sparse": (SparseFeature(name="items"),),
    }
    return Schema(**{**values, **overrides})


def make_batch(rows=3, **overrides):
    columns = {
        "user": pa.array(range(rows)),
        "time": pa.array(range(rows)),
        "click": pa.array([1.0] * rows),
        "age": pa.array([0.5] * rows),
        "items": pa.array([[1, 2]] * rows),
        **overrides,
    }
    columns = {name: column for name, column in columns.items() if column is not None}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_lists_keep_four_meanings_apart_F01():
    """Empty and null lists are empty; a null inside is refused with its row, or dropped by rule; never ID 0."""
    lists = pa.array([[1, 2], [], None, [None], [3]], pa.list_(pa.int64()))
    batch = make_batch(5, items=lists)
    with pytest.raises(LogError, match=r"got a null inside the list \(file 'f', row 13, column 'items'\)"):
        conform(batch, make_schema(), "f", first_row=10)
    dropping = make_schema(sparse=(SparseFeature(name="items", null_ids="drop"),))
    assert conform(batch, dropping, "f")["items"].to_pylist() == [[1, 2], [], [], [], [3]]


def test_dropped_nulls_take_their_weights_along_F01():
    """Weights stay parallel to IDs when nulls are dropped; another number of weights is refused."""
    schema = make_schema(sparse=(SparseFeature(name="items", null_ids="drop", weighted=True),))
    batch = make_batch(2, items=pa.array([[1, None, 2], [None]]), items_weights=pa.array([[0.1, 0.2, 0.3], [0.4]]))
    out = conform(batch, schema, "f")
    assert out["items"].to_pylist() == [[1, 2], []]
    assert out["items_weights"].to_pylist() == pa.array([[0.1, 0.3], []], pa.list_(pa.float32())).to_pylist()
    assert conform(batch, schema, "f", columns=["items_weights"]).schema.names == ["items_weights"]
    with pytest.raises(LogError, match=r"expected 3 weights, got 1 \(file 'f', row 0, column 'items_weights'\)"):
        conform(make_batch(1, items=pa.array([[1, 2, 3]]), items_weights=pa.array([[0.5]])), schema, "f")


@pytest.mark.parametrize(
    "items",
    [
        pa.array([[1, 2], None, []], pa.large_list(pa.int32())),
        pa.array([[1, 2], None, []], pa.list_view(pa.int16())),
        pa.array([[1, 2], None, []], pa.list_(pa.uint64())),
        pa.array([["1", "2"], None, []]),
        pa.array([[9], [1, 2], None, []]).slice(1),
        pa.array([[1, 2], None, []], pa.list_(pa.dictionary(pa.int8(), pa.int64()))),
    ],
    ids=["large", "view", "uint64", "text", "sliced", "dictionary"],
)
def test_every_list_type_is_read(items):
    """Any Arrow list of integers, or of text that spells them, becomes list<int64>."""
    assert conform(make_batch(items=items), make_schema(), "f")["items"].to_pylist() == [[1, 2], [], []]


def test_scalars_are_lists_of_one():
    """A scalar ID is a list of one, a null scalar an empty list, a column of type null all empty."""
    out = conform(make_batch(items=pa.array([7, None, -1])), make_schema(), "f")
    assert out["items"].to_pylist() == [[7], [], [-1]]
    assert conform(make_batch(items=pa.nulls(3)), make_schema(), "f")["items"].to_pylist() == [[], [], []]
    fixed = pa.array([[1, 2], [3, 4], None], pa.list_(pa.int64(), 2))
    assert conform(make_batch(items=fixed), make_schema(), "f")["items"].to_pylist() == [[1, 2], [3, 4], []]


def test_unsigned_ids_never_wrap_J23():
    """An ID at or above 2**63 is refused with its value and row, as list, scalar, key or text."""
    ids = [0, 2**63, 2**64 - 1]
    for name, column in (
        ("items", pa.array([[i] for i in ids], pa.list_(pa.uint64()))),
        ("items", pa.array(ids, pa.uint64())),
        ("items", pa.array([str(i) for i in ids])),
        ("user", pa.array(ids, pa.uint64())),
    ):
        with pytest.raises(LogError, match=rf"got '?9223372036854775808'? \(file 'f', row 1, column '{name}'\)"):
            conform(make_batch(**{name: column}), make_schema(), "f")


def test_unsigned_event_ids_keep_their_digits_J23():
    """Event IDs are text: two different unsigned IDs never collapse."""
    ids = [0, 2**63, 2**64 - 1]
    out = conform(make_batch(event=pa.array(ids, pa.uint64())), make_schema(event_id="event"), "f")
    assert out["event"].to_pylist() == [str(i) for i in ids]


def test_nulls_do_not_cost_digits_J24():
    """19-digit IDs beside a null stay equal; an ID column that went through floats is refused."""
    out = conform(make_batch(2, items=pa.array([BIG, None])), make_schema(), "f")
    assert out["items"].to_pylist() == [[BIG], []]
    floats = pa.array([float(BIG), float("nan")])
    with pytest.raises(LogError, match=r"expected integer IDs, got double .*: floats lose IDs above 2\*\*53"):
        conform(make_batch(2, items=floats), make_schema(), "f")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e39])
@pytest.mark.parametrize("column", ["age", "click"])
def test_non_finite_values_are_refused_M10(column, value):
    """NaN and infinities, and what overflows float32, are refused with row and column, in features and labels."""
    batch = make_batch(**{column: pa.array([0.0, value, 1.0])})
    with pytest.raises(LogError, match=rf"expected a finite float32, got .* \(file 'f', row 1, column '{column}'\)"):
        conform(batch, make_schema(), "f")


def test_negative_and_zero_counts_pass_M10():
    """-3, -1 and 0 are numbers like others here; what to do with them is a reader transform."""
    out = conform(make_batch(age=pa.array([-3, -1, 0])), make_schema(), "f")
    assert out["age"].to_pylist() == [-3.0, -1.0, 0.0]


def test_weights_are_checked_too_M10():
    """A NaN weight is refused with the row of its list."""
    schema = make_schema(sparse=(SparseFeature(name="items", weighted=True),))
    weights = pa.array([[0.5, 0.5], [0.5, 0.5], [0.5, float("nan")]])
    with pytest.raises(LogError, match=r"got nan \(file 'f', row 2, column 'items_weights'\)"):
        conform(make_batch(items_weights=weights), schema, "f")


def test_absent_columns_follow_the_declared_policy_J13():
    """An absent feature is refused by name, or empty under missing = "empty"; a null number likewise."""
    with pytest.raises(LogError, match=r"expected this column, got .* \(file 'f', column 'items'\)"):
        conform(make_batch(items=None), make_schema(), "f")
    with pytest.raises(LogError, match=r"expected a number, got null \(file 'f', row 1, column 'age'\)"):
        conform(make_batch(age=pa.array([1.0, None, 2.0])), make_schema(), "f")
    lenient = make_schema(
        dense=(DenseFeature(name="age", missing="empty"),),
        sparse=(SparseFeature(name="items", missing="empty", weighted=True),),
    )
    out = conform(make_batch(items=None, age=None), lenient, "f")
    assert out.select(["age", "items"]).to_pydict() == {"age": [0.0] * 3, "items": [[]] * 3}
    assert out["items_weights"].to_pylist() == [[]] * 3
    nulls = conform(make_batch(age=pa.array([1, None, 2]), items=None), lenient, "f")
    assert nulls["age"].to_pylist() == [1.0, 0.0, 2.0]


@pytest.mark.parametrize("column", ["user", "time", "click"])
def test_nulls_in_key_time_and_label_are_refused(column):
    """A sample without key, time or label is no sample."""
    with pytest.raises(LogError, match=rf"got null \(file 'f', row 2, column '{column}'\)"):
        conform(make_batch(**{column: pa.array([1, 2, None])}), make_schema(), "f")


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1_700_000_000_123] * 3),
        pa.array([1_700_000_000_123_999] * 3, pa.timestamp("us")),
        pa.array([1_700_000_000_123] * 3, pa.timestamp("ms", tz="Europe/Paris")),
        pa.array(["2023-11-14 22:13:20.123"] * 3),
        pa.array(["2023-11-14T23:13:20.123+01:00"] * 3),
        pa.array(["1700000000123"] * 3),
    ],
    ids=["int", "us", "zone", "text", "text-zone", "digits"],
)
def test_times_are_milliseconds_utc(times):
    """Integers, timestamps and ISO text become milliseconds since the epoch."""
    assert conform(make_batch(time=times), make_schema(), "f")["time"].to_pylist() == [1_700_000_000_123] * 3


def test_wrong_types_are_refused_with_their_value():
    """A value of another type is refused with row and column, text that is no number too."""
    for column, data, found in (
        ("user", pa.array(["1", "x", "3"]), "'x'"),
        ("time", pa.array(["yesterday"] * 3), "'yesterday'"),
        ("age", pa.array(["1", "", "3"]), "''"),
        ("time", pa.array([0, 1_700_000_000_000_000, 1]), "1700000000000000"),
        ("items", pa.array([["1"], ["2", "b"], []]), "'b'"),
    ):
        with pytest.raises(LogError, match=rf"got {found} \(file 'f', row \d, column '{column}'\)"):
            conform(make_batch(**{column: data}), make_schema(), "f")
    batch = make_batch()
    twins = pa.RecordBatch.from_arrays([*batch.columns, batch.column(0)], names=[*batch.schema.names, "user"])
    with pytest.raises(LogError, match="expected one column of this name, got 2"):
        conform(twins, make_schema(), "f")


def test_zero_rows_and_tables_conform_J01():
    """Zero rows give zero rows of the right types; a chunked table conforms like one batch."""
    schema = make_schema()
    empty = conform(make_batch().slice(0, 0), schema, "f")
    assert empty.schema == sample_schema(schema)
    assert empty.num_rows == 0
    table = pa.Table.from_batches([make_batch(), make_batch()])
    assert conform(table, schema, "f").num_rows == 6
    assert conform(table.slice(0, 0), schema, "f").num_rows == 0


def test_canonical_lists_are_not_copied():
    """IDs that already are int64 keep their buffer."""
    ids = pa.array(np.arange(1000))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 1001, 10).astype(np.int32)), ids)
    out = conform(make_batch(100, items=lists), make_schema(), "f")
    assert out["items"].values.buffers()[1].address == ids.buffers()[1].address
