"""Arrow's JSON parser is used only where it gives what the exact parser gives."""

import json
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.log import LogError, conform
from recoup.log.json_blocks import fast_batch, json_shape
from recoup.log.jsonlines import lines_to_batch, objects_to_batch, parse_object
from recoup.log.where import Where
from recoup.schema import DenseFeature, Schema, SparseFeature

BIG = 1577134800018226901
SCHEMA = Schema(
    key="user",
    event_id="event",
    labels=("click",),
    dense=(DenseFeature(name="age", missing="empty"),),
    sparse=(SparseFeature(name="items"), SparseFeature(name="city", missing="empty")),
)
SHAPE = json_shape(SCHEMA, SCHEMA.column_names)


def make_line(i, **overrides):
    row = {"user": i, "time": 1000 + i, "event": f"e{i}", "click": i % 2, "age": 0.5, "items": [BIG + i], "city": i}
    return json.dumps({**row, **overrides}).encode()


def outcome(parse):
    """The conformed rows, or where the error is; empty lists have no type of their own, so its text may differ."""
    try:
        return conform(parse(), SCHEMA, "f").to_pylist()
    except LogError as err:
        return re.search(r"\(file .*\)", str(err)).group()


def exact(lines):
    rows = [parse_object(line, "f", i) for i, line in enumerate(lines)]
    return objects_to_batch(rows, SHAPE, Where("f"))


ODD = [
    None,
    True,
    1,
    1.0,
    0.1,
    "7",
    "x",
    2**63,
    2**64,
    -(2**63),
    [],
    [1, None],
    [1.5],
    ["a"],
    [[1]],
    {"a": 1},
    float("nan"),
    1e308,
    "2023-11-14 22:13:20",
    "2023-11-14T22:13:20Z",
]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*SCHEMA.column_names, "other"]), st.sampled_from(ODD), st.booleans()), max_size=3
    ),
    st.integers(1, 5),
    st.data(),
)
def test_both_parsers_agree(changes, num_lines, data):
    """Whatever odd value or missing key stands in whatever lines, rows or place of the error are the exact parser's."""
    rows = [json.loads(make_line(i)) for i in range(num_lines)]
    for name, value, gone in changes:
        for i in data.draw(st.sets(st.integers(0, num_lines - 1), min_size=1)):
            if gone:
                rows[i].pop(name, None)
            else:
                rows[i][name] = value
    lines = [json.dumps(row).encode() for row in rows]
    assert outcome(lambda: lines_to_batch(lines, SHAPE, Where("f"))) == outcome(lambda: exact(lines))


@pytest.mark.parametrize(
    "bad",
    [
        b'{"user": 1} {"user": 2}',
        b"[1]",
        b"1",
        b"null",
        b'{"user": 1',
        b"{} x",
        b'{"user": "\xff"}',
        b"{'user': 1}",
        b"  ",
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_lines_that_are_no_object_are_refused(bad, place):
    """Two objects on a line, half of one, or none: refused with the line's row, wherever it stands."""
    lines = [make_line(i) for i in range(3)]
    lines[place] = bad
    with pytest.raises(LogError, match=rf"expected a JSON object, got .*row {place}\)"):
        lines_to_batch(lines, SHAPE, Where("f"))


def test_ordinary_blocks_take_the_fast_way():
    """Ordinary lines, with nulls and absent optional keys, need no exact parser; every digit of an ID stays."""
    lines = [make_line(i, city=None if i % 2 else i) for i in range(5)]
    batch = fast_batch(lines, SHAPE)
    assert batch is not None
    assert batch["items"].to_pylist() == [[BIG + i] for i in range(5)]
    assert batch["event"].type == pa.string()
    assert fast_batch([make_line(0, items=None), make_line(1, items=None)], SHAPE) is None
