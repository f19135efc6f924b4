"""The reader on tables of the real builder and writer: the log's samples, in every form, on one and on two ranks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.jagged import to_kjt, validate
from recoup.log import SyntheticLog, open_log
from recoup.reader import ReaderConfig, SessionReader
from recoup.table import BuildConfig, WriterConfig, build_table, open_table

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(scope="module", params=[1000, 10_000_000])
def table(request, tmp_path_factory):
    """2,000 recd-like samples in small row groups, so that pages, row groups and batches cut sessions everywhere."""
    folder = tmp_path_factory.mktemp("real") / "table"
    config = BuildConfig(writer=WriterConfig(row_group_bytes=200_000))
    build_table(open_log(SyntheticLog(num_samples=2000, num_ids=request.param)), folder, config)
    found = open_table(folder)
    assert len(found.manifest.parts[0].row_groups) > 4
    stored = pq.read_table(found.part_path(found.manifest.parts[0].name), columns=["u_medium_0__hot"])
    assert bool(stored.column(0)[0].as_py()) == (request.param > 1000)  # both ways to store IDs are read
    return found


def columns_of(batches, schema):
    """Return the samples of batches as a table of the log's columns (without the key)."""
    tables = []
    for batch in batches:
        validate(batch.sparse)
        kjt = to_kjt(batch.sparse, schema.sparse_names)
        lengths = kjt.lengths().reshape(len(schema.sparse_names), -1)
        values = kjt.values().split(lengths.sum(1).tolist())
        arrays = {schema.time: pa.array(batch.time.numpy())}
        arrays |= {name: pa.array(batch.labels[:, i].numpy()) for i, name in enumerate(schema.labels)}
        arrays |= {name: pa.array(batch.dense[:, i].numpy()) for i, name in enumerate(schema.dense_names)}
        for i, name in enumerate(schema.sparse_names):
            offsets = np.concatenate(([0], np.cumsum(lengths[i].numpy()))).astype(np.int32)
            arrays[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[i].numpy()))
        tables.append(pa.table(arrays))
    return pa.concat_tables(tables)


def rows_of(table):
    return sorted(map(repr, table.to_pylist()))


def stored(table):
    rows = pa.Table.from_batches(list(table.iter_samples()))
    return rows.drop_columns([table.schema.key])


@pytest.mark.parametrize("dedup", [True, False])
@pytest.mark.parametrize(
    "order",
    [
        {},
        {"shuffle": "full", "window_sessions": 30},
        {"max_samples_per_session_per_batch": 2, "window_sessions": 60},
    ],
)
def test_reader_returns_what_the_table_holds(table, dedup, order):
    """Every order, deduplicated or plain: the samples that flattening the table gives, each batch a valid IKJT."""
    batches = list(SessionReader(table, ReaderConfig(batch_size=129, dedup=dedup, **order)))
    found = columns_of(batches, table.schema)
    expected = stored(table).select(found.column_names)
    if not order:
        assert found.to_pylist() == expected.to_pylist()
    assert rows_of(found) == rows_of(expected)


def test_unique_rows_are_few(table):
    """A batch looks up about 1 / dedup_factor rows of a group: far fewer than samples."""
    (batch,) = SessionReader(table, ReaderConfig(batch_size=10**6))
    assert batch.sparse.num_rows("stable") < batch.num_samples / 4
    assert batch.sparse.num_rows("") == batch.num_samples


PROGRAM = """
import datetime, json, sys
import torch.distributed as dist
from recoup.reader import ReaderConfig, SessionReader
from recoup.table import open_table
rank, folder, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=30)
)
reader = SessionReader(open_table(folder), ReaderConfig(batch_size=300, num_workers=1), rank=rank, world_size=2)
counts, times, states = [], [], []
for batch in reader:
    import torch
    step = torch.tensor([batch.num_samples])
    dist.all_reduce(step)  # hangs, and then fails, if the ranks make different numbers of steps
    counts.append(int(step))
    times += batch.time.tolist()
    reader.commit()
    states.append(reader.state_dict())
reader.close()
gathered = [None, None]
dist.all_gather_object(gathered, (times, states))
if rank == 0:
    print(json.dumps({"counts": counts, "times": [g[0] for g in gathered], "equal": gathered[0][1] == gathered[1][1]}))
dist.destroy_process_group()
"""


def test_two_processes_step_together_R10(table, tmp_path):
    """Two real ranks over Gloo, each with a worker: equal steps, each sample once, equal states at every step."""
    store = str(tmp_path / "store")
    command = [sys.executable, "-c", PROGRAM]
    ranks = [
        subprocess.Popen([*command, str(rank), str(table.path), store], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    import json

    result = json.loads(outputs[0].splitlines()[-1])
    assert sum(result["counts"]) == 2000
    assert result["counts"] == [600, 600, 600, 200]
    assert result["equal"]
    times = sorted(result["times"][0] + result["times"][1])
    assert times == sorted(stored(table).column(table.schema.time).to_pylist())
