"""Slow, obvious Python: a log in memory, the sessions and histories it must give, and a table decoded by hand."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.schema import sample_schema, weights_column

DAY_MS = 86_400_000


class MemoryLog:
    """A `LogSource` over samples in memory, in arrival order."""

    num_bytes = None

    def __init__(self, batch, schema, batch_samples=7):
        self.batch, self.schema, self.batch_samples = batch, schema, batch_samples

    def describe(self):
        return {"kind": "memory", "rows": self.batch.num_rows}

    def batches(self, columns=None, *, batch_samples=8192, progress=None):
        size = min(batch_samples, self.batch_samples)
        for first in range(0, self.batch.num_rows, size):
            batch = self.batch.slice(first, size)
            yield batch if columns is None else batch.select(columns)
            if progress is not None:
                progress("read log", min(first + size, self.batch.num_rows), self.batch.num_rows)


def on_time(samples, schema, lateness_ms):
    """Return the samples that do not lag more than the lateness behind the greatest time before them, and the rest."""
    kept, late, greatest = [], [], None
    for sample in samples:
        greatest = sample[schema.time] if greatest is None else max(greatest, sample[schema.time])
        is_late = lateness_ms is not None and sample[schema.time] < greatest - lateness_ms
        (late if is_late else kept).append(sample)
    return kept, late


def sessions_of(samples, schema, rule):
    """Return the sessions of samples in any order: lists of samples by time, repeats by event id left out."""
    gap, age = (None if d is None else d.total_seconds() * 1000 for d in (rule.gap, rule.max_session_age))
    by_key = defaultdict(list)
    for sample in samples:
        by_key[sample[schema.key]].append(sample)
    sessions = []
    for of_key in by_key.values():
        seen, session = set(), []
        for sample in sorted(of_key, key=lambda s: (s[schema.time], s.get(schema.event_id, ""))):
            if schema.event_id:
                identity = (sample[schema.time], sample[schema.event_id])
                if identity in seen:
                    continue
                seen.add(identity)
            if session:
                time = sample[schema.time]
                ends = gap is not None and time - session[-1][schema.time] > gap
                ends |= age is not None and time - session[0][schema.time] > age
                ends |= rule.max_session_samples is not None and len(session) >= rule.max_session_samples
                if ends:
                    sessions.append(session)
                    session = []
            session.append(sample)
        sessions.append(session)
    return sorted(sessions, key=lambda session: (session[0][schema.time], session[0][schema.key]))


def history_of(sample, session, of_key, history, schema):
    """Return the last IDs of the key's samples strictly before the cut-off."""
    time = sample[schema.time]
    cutoff = {"session": session[0][schema.time], "day": time - time % DAY_MS, "rolling": time}[history.freeze]
    ids = []
    for other in of_key:  # by time
        if other[schema.time] < cutoff and (not history.label or other[history.label] >= history.at_least):
            ids += other[history.source]
    return ids[-history.last :]


def decode(path, schema):
    """Return (key, start, chunk, samples) of every row, window by window, from the files alone."""
    rows = []
    for part in sorted((path / "parts").glob("*.parquet")):
        stored = pq.read_table(part).to_pylist()
        hot = {f: stored[0][f"{f}__hot"] if stored else [] for f in schema.sparse_names}
        for row in stored:
            for f in schema.sparse_names:
                row[f"{f}__values"] = [id_of(code, hot[f]) for code in row[f"{f}__codes"]]
            samples = [decode_sample(row, i, schema) for i in range(row["num_samples"])]
            rows.append((row["session_key"], row["session_start"], row["chunk"], samples))
    return rows


def id_of(code, hot):
    """Return the ID that a code stands for."""
    return code if code < 0 else hot[code] if code < len(hot) else code - len(hot)


def decode_sample(row, i, schema):
    """Return sample i of a row."""
    sample = {schema.key: row["session_key"], schema.time: row["time"][i]}
    if schema.event_id:
        sample[schema.event_id] = row["event_id"][i]
    sample |= {name: row[name][i] for name in (*schema.labels, *schema.dense_names)}
    for feature in schema.sparse:
        name = feature.name
        if feature.group:
            version = row[f"{feature.group}__inverse"][i]
            low, size = row[f"{name}__start"][version], row[f"{name}__length"][version]
        else:
            low, size = sum(row[f"{name}__length"][:i]), row[f"{name}__length"][i]
        sample[name] = row[f"{name}__values"][low : low + size]
        if feature.weighted:
            sample[weights_column(name)] = row[f"{name}__weights"][low : low + size]
    return sample


def num_versions(samples, schema, group):
    """Return how many distinct states of a group some samples have."""
    features = [schema.sparse_feature(name) for name in group.features]
    columns = [f.name for f in features] + [weights_column(f.name) for f in features if f.weighted]
    return len({repr([np.float32(s[c]).tobytes() if "_weights" in c else s[c] for c in columns]) for s in samples})


def multiset(batches, schema):
    """Return samples as a sorted list of texts."""
    names = sample_schema(schema).names
    return sorted(repr([row[name] for name in names]) for batch in batches for row in batch.to_pylist())


def batch_of(samples, schema):
    """Return samples (dicts) as a canonical batch."""
    return pa.RecordBatch.from_pylist(samples, schema=sample_schema(schema))
