"""Hypothesis strategies that every part shares: schemas, and canonical sample batches with sessions that repeat.

`samples(schema)` draws a whole small log: rows of `sample_schema(schema)`, several sessions interleaved in time,
lists that repeat, shift by one, come back (A, B, A), are empty, or differ only in where one list ends and the next
begins; IDs from a small pool plus the extremes of int64.
"""

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from recoup.schema import DenseFeature, Schema, SparseFeature, sample_schema, weights_column

IDS = st.one_of(st.integers(0, 5), st.sampled_from([-1, 2**31, 2**62, 2**63 - 1, -(2**63), 1577134800018226901]))
"""IDs that often repeat, with the extremes of int64."""

FLOATS = st.sampled_from([0.0, 1.0, -1.0, 0.5, -3.25, 1e-30, 3e38])
"""Finite float32 values, exact in float32 or rounded the same way everywhere."""


@st.composite
def schemas(draw, *, max_groups=3, weights=True, event_ids=True, key_types=("int64", "string")):
    """Schemas with up to `max_groups` dedup groups, ungrouped features, dense features and labels."""
    sparse = []
    for g in range(draw(st.integers(0, max_groups))):
        for i in range(draw(st.integers(1, 2))):
            weighted = weights and draw(st.booleans())
            sparse.append(SparseFeature(name=f"g{g}_f{i}", group=f"g{g}", weighted=weighted))
    num_items = draw(st.integers(0 if sparse else 1, 2))
    sparse += [SparseFeature(name=f"item{i}", weighted=weights and draw(st.booleans())) for i in range(num_items)]
    return Schema(
        key="user",
        key_type=draw(st.sampled_from(key_types)),
        event_id="event" if event_ids and draw(st.booleans()) else "",
        labels=("click", "like")[: draw(st.integers(1, 2))],
        dense=tuple(DenseFeature(name=f"d{i}") for i in range(draw(st.integers(0, 2)))),
        sparse=tuple(draw(st.permutations(sparse))),
    )


@st.composite
def samples(draw, schema, *, min_rows=0, max_rows=30, num_keys=4, max_length=5):
    """Return a canonical `pa.RecordBatch` in time order; each group's lists evolve within a session.

    Times are distinct within a key, so a session's order is unique. Event IDs are distinct.
    """
    num_rows = draw(st.integers(min_rows, max_rows))
    random = draw(st.randoms(use_true_random=False))
    keys = [random.randrange(num_keys) for _ in range(num_rows)]
    start = draw(st.sampled_from([0, 1_700_000_000_000]))
    gaps = draw(st.lists(st.sampled_from([1, 1000, 2_400_000]), min_size=num_rows, max_size=num_rows))
    times = start + np.cumsum(np.array(gaps, dtype=np.int64)) if num_rows else np.zeros(0, np.int64)
    columns = {schema.key: [f"k{key}" if schema.key_type == "string" else key * 7 - 3 for key in keys]}
    columns[schema.time] = times
    columns[schema.event_id or "-"] = [f"e{i}" for i in range(num_rows)]
    for name in (*schema.labels, *schema.dense_names):
        columns[name] = [draw(FLOATS) if i < 4 else random.choice([0.0, 1.0, 2.5]) for i in range(num_rows)]
    pool = draw(st.lists(IDS, min_size=1, max_size=6))
    states = {}
    for name in (*schema.sparse_names, *(weights_column(f.name) for f in schema.sparse if f.weighted)):
        columns[name] = []
    for key in keys:
        for group in schema.groups:
            _advance(states, (key, group.name), group, schema, random, pool, max_length)
            for name in group.features:
                ids, weights = states[(key, group.name)][-1][name]
                columns[name].append(ids)
                if schema.sparse_feature(name).weighted:
                    columns[weights_column(name)].append(weights)
    target = sample_schema(schema)
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], type=f.type) for f in target], schema=target)


def _advance(states, place, group, schema, random, pool, max_length):
    """Append the next state of a key's group: mostly the last one again, at times an older, shifted or new one."""
    history = states.setdefault(place, [])
    move = random.choice(["same", "same", "same", "back", "shift", "new", "one"]) if history else "new"
    if not group.name and move == "same":
        move = "new"
    fresh = {name: _new_list(random, pool, max_length) for name in group.features}
    if move == "new":
        state = fresh
    elif move == "same":
        state = history[-1]
    elif move == "back":
        state = random.choice(history)
    elif move == "one":
        state = {**history[-1], random.choice(group.features): fresh[group.features[0]]}
    else:
        state = {
            name: ([*ids[1:], random.choice(pool)], [*weights[1:], 1.0]) if ids else (ids, weights)
            for name, (ids, weights) in history[-1].items()
        }
    history.append(state)


def _new_list(random, pool, max_length):
    length = random.randrange(max_length + 1)
    return [random.choice(pool) for _ in range(length)], [random.choice([0.0, 1.0, 0.5]) for _ in range(length)]
