"""The encoder: exact versions and windows, whatever the batches are."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.schema import Schema, SchemaError, SparseFeature
from recoup.table import SessionEncoder, SessionRule, encode_sessions, flatten_rows, row_schema
from tests.strategies import samples, schemas
from tests.table.oracles import batch_of, decode_sample, multiset, num_versions

ONE = Schema(key="user", labels=("click",), sparse=(SparseFeature(name="f", group="g"),))


def encode(batch, schema, sizes=(None,), **rule):
    """Return the rows of samples that are sorted here, fed in batches of the given sizes in turn."""
    order = [(name, "ascending") for name in (schema.key, schema.time)]
    batch = batch.sort_by(order)
    batches, first, turn = [], 0, 0
    while first < batch.num_rows or not batches:
        size = sizes[turn % len(sizes)] or max(1, batch.num_rows)
        batches.append(batch.slice(first, size))
        first, turn = first + size, turn + 1
    encoder = SessionEncoder(schema, SessionRule(**rule))
    rows = list(encode_sessions(batches, encoder))
    return pa.Table.from_batches(rows, row_schema(schema)).combine_chunks(), encoder


def lists(*values):
    """Return samples of one user with one list each."""
    rows = [{"user": 1, "time": i, "click": 0.0, "f": list(value)} for i, value in enumerate(values)]
    return batch_of(rows, ONE)


def encoded(*values):
    """Return the single row of such samples."""
    return encode(lists(*values), ONE)[0].to_pylist()[0]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_flatten_of_encode_is_the_identity_and_versions_are_the_distinct_states(data):
    """Law 1 for the encoder: same multiset of samples, each state of a group stored once, windows in range."""
    schema = data.draw(schemas())
    batch = data.draw(samples(schema))
    chunk = data.draw(st.sampled_from([1, 3, 4096]))
    rows, encoder = encode(batch, schema, max_samples_per_row=chunk)
    assert encoder.num_samples == batch.num_rows == sum(rows.column("num_samples").to_pylist())
    assert multiset([flatten_rows(b, schema) for b in rows.to_batches()], schema) == multiset([batch], schema)
    for row in rows.to_pylist():
        decoded = [decode_sample(row, i, schema) for i in range(row["num_samples"])]
        assert row["num_samples"] <= chunk
        for group in schema.groups:
            if group.name:
                inverse = row[f"{group.name}__inverse"]
                assert len(row[f"{group.features[0]}__length"]) == num_versions(decoded, schema, group)
                assert list(dict.fromkeys(inverse)) == list(range(max(inverse) + 1))
                for name in group.features:
                    expanded = sum(row[f"{name}__length"])
                    assert len(row[f"{name}__values"]) <= expanded


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_batches_do_not_show(data):
    """However the sorted stream is cut into batches, the rows are the same."""
    schema = data.draw(schemas(max_groups=2))
    batch = data.draw(samples(schema))
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    whole, _ = encode(batch, schema, max_samples_per_row=5)
    pieces, _ = encode(batch, schema, sizes, max_samples_per_row=5)
    assert pieces.equals(whole)


def test_a_state_that_comes_back_is_one_version():
    """A, B, A, A, B: two versions, found by comparison and not only beside each other."""
    row = encoded([1, 2], [3], [1, 2], [1, 2], [3])
    assert row["g__inverse"] == [0, 1, 0, 0, 1]
    assert row["f__values"] == [1, 2, 3]


def test_equality_is_exact_where_boundaries_differ():
    """[1, 2] then [] differs from [1] then [2] in a group of two features."""
    schema = Schema(
        key="user", labels=("click",), sparse=tuple(SparseFeature(name=name, group="g") for name in ("a", "b"))
    )
    values = [([1, 2], []), ([1], [2]), ([], [1, 2]), ([1, 2], [])]
    rows = [{"user": 1, "time": i, "click": 0.0, "a": a, "b": b} for i, (a, b) in enumerate(values)]
    assert encode(batch_of(rows, schema), schema)[0].to_pylist()[0]["g__inverse"] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    "states",
    [
        [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]],  # newest last, oldest dropped
        [[3, 2, 1], [4, 3, 2], [5, 4, 3], [6, 5, 4]],  # newest first
        [[1], [1, 2], [1, 2, 3], [2, 3, 4, 5, 6]],  # grows, then shifts by two
    ],
)
def test_shifted_histories_share_one_buffer(states):
    """A history that shifts stores each ID once, whichever end it grows at."""
    row = encoded(*states)
    assert len(row["f__values"]) == len({i for state in states for i in state})
    starts, lengths = row["f__start"], row["f__length"]
    windows = [row["f__values"][a : a + n] for a, n in zip(starts, lengths, strict=True)]
    assert [windows[version] for version in row["g__inverse"]] == states


def test_no_samples_no_rows_J01():
    """An empty stream gives no rows, with the table's schema."""
    rows, encoder = encode(lists(), ONE)
    assert rows.num_rows == 0
    assert encoder.num_samples == 0


def test_a_row_ends_before_it_passes_its_bytes_F03():
    """One huge session becomes chunks of at most `max_row_bytes`, its samples in order."""
    batch = lists(*([i] * 40 for i in range(60)))
    rows, encoder = encode(batch, ONE, max_row_bytes=2000)
    assert encoder.num_sessions == 1
    assert rows.column("chunk").to_pylist() == list(range(rows.num_rows))
    assert rows.num_rows > 8
    assert [i for times in rows.column("time").to_pylist() for i in times] == list(range(60))
    assert all(rows.slice(i, 1).nbytes <= 2000 + 8 * rows.num_columns for i in range(rows.num_rows))


def test_names_that_the_layout_uses_are_refused():
    """A feature called as a column of the layout gets one clear error."""
    with pytest.raises(SchemaError, match="distinct columns in the session table, got 'chunk' twice"):
        row_schema(Schema(key="user", labels=("chunk",), sparse=(SparseFeature(name="f"),)))
