"""Session tables written by hand, from sessions of plain samples, and batches turned back into plain samples."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.schema import DenseFeature, Schema, SparseFeature

SCHEMA = Schema(
    key="user",
    time="time",
    labels=("click",),
    dense=(DenseFeature(name="d0"), DenseFeature(name="d1", missing="empty")),
    sparse=(
        SparseFeature(name="u0", group="user"),
        SparseFeature(name="item"),
        SparseFeature(name="u1", group="user", missing="empty"),
        SparseFeature(name="hist", group="history"),
        SparseFeature(name="price", weighted=True),
        SparseFeature(name="liked", group="history", weighted=True),
    ),
)


@dataclass
class HandTable:
    path: Path
    schema: Schema
    manifest: SimpleNamespace


def random_sessions(seed=0, num_sessions=20, mean_length=5, schema=SCHEMA):
    """Return sessions, each a list of samples; a sample maps column to value; histories shift by one ID."""
    rng = np.random.default_rng(seed)
    sessions = []
    for key in range(num_sessions):
        length = int(rng.geometric(1 / mean_length))
        history = list(map(int, rng.integers(-5, 1000, rng.integers(0, 8))))
        user = [list(map(int, rng.integers(0, 50, rng.integers(0, 4)))) for _ in range(2)]
        session = []
        for i in range(length):
            if rng.random() < 0.3:
                history = [*history, int(rng.integers(0, 1000))][-6:]
            if rng.random() < 0.2:
                user = [list(map(int, rng.integers(0, 50, rng.integers(0, 4)))) for _ in range(2)]
            values = {
                "u0": user[0],
                "u1": user[1],
                "hist": history,
                "liked": history[::2],
                "item": list(map(int, rng.integers(0, 99, rng.integers(0, 3)))),
                "price": [int(rng.integers(0, 9))],
            }
            weights = {"price": [float(rng.integers(1, 4))], "liked": [float(x % 3) for x in history[::2]]}
            session.append(
                {
                    "key": key,
                    "time": key * 1000 + i,
                    "click": float(rng.integers(0, 2)),
                    "d0": float(rng.integers(-3, 9)),
                    "d1": float(rng.integers(0, 9)),
                    "sparse": {name: tuple(ids) for name, ids in values.items() if name in schema.sparse_names},
                    "weights": {name: tuple(w) for name, w in weights.items()},
                }
            )
        sessions.append(session)
    return sessions


def encode_row(session, schema, chunk, start):
    """Return one table row: versions in order of first use, each a window of its own unless it continues the last."""
    row = {"session_key": session[0]["key"], "session_start": start, "chunk": chunk}
    row["num_samples"] = len(session)
    row["time"] = [s["time"] for s in session]
    for name in (*schema.labels, *schema.dense_names):
        row[name] = [s[name] for s in session]
    for group in schema.groups:
        row |= encode_group(session, schema, group) if group.name else encode_loose(session, schema, group)
    return row


def encode_loose(session, schema, group):
    row = {}
    for f in group.features:
        row[f"{f}__values"] = [x for s in session for x in s["sparse"][f]]
        row[f"{f}__length"] = [len(s["sparse"][f]) for s in session]
        if schema.sparse_feature(f).weighted:
            row[f"{f}__weights"] = [w for s in session for w in s["weights"][f]]
    return row


def encode_group(session, schema, group):
    versions, inverse = [], []
    for s in session:
        version = tuple((s["sparse"][f], s["weights"].get(f)) for f in group.features)
        if version not in versions:
            versions.append(version)
        inverse.append(versions.index(version))
    row = {f"{group.name}__inverse": inverse}
    for i, f in enumerate(group.features):
        values, weights, start, length = [], [], [], []
        for version in versions:
            ids, ws = version[i]
            overlap = len(ids) - 1
            if start and ws is None and overlap > 0 and values[-overlap:] == list(ids[:-1]):
                values.append(ids[-1])
                start.append(len(values) - len(ids))
            else:
                start.append(len(values))
                values += ids
                weights += ws or ()
            length.append(len(ids))
        row |= {f"{f}__values": values, f"{f}__start": start, f"{f}__length": length}
        if schema.sparse_feature(f).weighted:
            row[f"{f}__weights"] = weights
    return row


def coded(groups, schema):
    """Return the rows of a part as they are stored: every other ID of the part is a hot one."""
    groups = [[dict(row) for row in group] for group in groups]
    rows = [row for group in groups for row in group]
    for f in schema.sparse_names:
        hot = sorted({x for row in rows for x in row[f"{f}__values"]})[::-2]
        for i, row in enumerate(rows):
            row[f"{f}__codes"] = [hot.index(x) if x in hot else x + len(hot) * (x >= 0) for x in row[f"{f}__values"]]
            row[f"{f}__hot"] = hot if i == 0 else []
    return groups


def arrow_schema(schema):
    ints, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    fields = [("session_key", pa.int64()), ("session_start", pa.int64()), ("chunk", pa.int32())]
    fields += [("num_samples", pa.int32()), ("time", pa.list_(pa.int64()))]
    fields += [(name, floats) for name in (*schema.labels, *schema.dense_names)]
    for group in schema.groups:
        fields += [(f"{group.name}__inverse", ints)] if group.name else []
        for f in group.features:
            ids = pa.list_(pa.int64())
            fields += [(f"{f}__codes", ids), (f"{f}__hot", ids), (f"{f}__length", ints)]
            fields += [(f"{f}__start", ints)] if group.name else []
            fields += [(f"{f}__weights", floats)] if schema.sparse_feature(f).weighted else []
    return pa.schema(fields)


def write_table(
    folder,
    sessions,
    schema=SCHEMA,
    *,
    rows_per_group=4,
    groups_per_part=3,
    max_samples_per_row=0,
    drop=(),
    empty_at=None,
):
    """Write the sessions as a table.

    Sessions longer than `max_samples_per_row` become several chunks; columns in `drop` are left out of the files;
    a row group without rows is put in at `empty_at`.
    """
    rows = []
    for session in sessions:
        step = max_samples_per_row or len(session)
        rows += [
            encode_row(session[i : i + step], schema, i // step, session[0]["time"])
            for i in range(0, len(session), step)
        ]
    (folder / "parts").mkdir(parents=True)
    parts = []
    groups = [rows[i : i + rows_per_group] for i in range(0, len(rows), rows_per_group)] or [[]]
    if empty_at is not None:
        groups.insert(empty_at, [])
    columns = pa.schema([field for field in arrow_schema(schema) if field.name not in drop])
    for p in range(0, len(groups), groups_per_part):
        name = f"part-{len(parts):05d}.parquet"
        stored = coded(groups[p : p + groups_per_part], schema)
        with pq.ParquetWriter(folder / "parts" / name, columns, write_page_checksum=True) as writer:
            for group in stored:
                writer.write_table(pa.Table.from_pylist(group, columns))
        row_groups = [
            SimpleNamespace(rows=len(g), samples=sum(r["num_samples"] for r in g))
            for g in groups[p : p + groups_per_part]
        ]
        parts.append(
            SimpleNamespace(
                name=name,
                rows=sum(g.rows for g in row_groups),
                samples=sum(g.samples for g in row_groups),
                row_groups=row_groups,
                checksum=f"{p}",
                first_start=min((r["session_start"] for g in groups[p : p + groups_per_part] for r in g), default=0),
                last_start=max((r["session_start"] for g in groups[p : p + groups_per_part] for r in g), default=0),
            )
        )
    return HandTable(folder, schema, SimpleNamespace(parts=parts))


def samples_of(batch, schema=SCHEMA):
    """Return the batch's samples in order, as plain values (without the key)."""
    ikjt = batch.sparse
    samples = []
    for b in range(batch.num_samples):
        sparse, weights = {}, {}
        for group in ikjt.groups:
            u = int(ikjt.inverse[group.name][b]) if group.name in ikjt.inverse else b
            for f in group.features:
                rows = ikjt.rows[f]
                s, n = int(rows.start[u]), int(rows.length[u])
                assert 0 <= s <= s + n <= rows.values.shape[0]
                sparse[f] = tuple(rows.values[s : s + n].tolist())
                if rows.weights is not None:
                    weights[f] = tuple(rows.weights[s : s + n].tolist())
        samples.append(
            {
                "time": int(batch.time[b]),
                "labels": tuple(batch.labels[b].tolist()),
                "dense": tuple(batch.dense[b].tolist()),
                "sparse": sparse,
                "weights": weights,
            }
        )
    return samples


def plain_samples(sessions, schema=SCHEMA):
    """Return all samples of `sessions` in the form of `samples_of`."""
    return [
        {
            "time": s["time"],
            "labels": tuple(s[name] for name in schema.labels),
            "dense": tuple(s[name] for name in schema.dense_names),
            "sparse": s["sparse"],
            "weights": s["weights"],
        }
        for session in sessions
        for s in session
    ]


def by_time(samples):
    return sorted(samples, key=lambda s: s["time"])
