"""Empty lists in a column of few distinct IDs (dictionary-coded by the writer) are read back as they were."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.log import ParquetLog, open_log
from recoup.reader import ReaderConfig, SessionReader
from recoup.schema import Schema, SparseFeature, sample_schema
from recoup.table import BuildConfig, build_table, open_table


@pytest.mark.parametrize("share_empty", [0.0, 0.01, 0.9])
def test_empty_lists_beside_dictionary_codes(tmp_path, share_empty):
    """Every sample's list comes back, whatever share of them is empty, with offsets read or told by lengths."""
    schema = Schema(
        key="user", labels=("y",), sparse=(SparseFeature(name="tag"), SparseFeature(name="seen", group="g"))
    )
    rng = np.random.default_rng(1)
    lists = [
        [] if rng.random() < share_empty else rng.integers(1, 60, rng.integers(1, 4)).tolist() for _ in range(5000)
    ]
    columns = {
        "user": np.repeat(np.arange(2500), 2),
        "time": np.arange(5000),
        "y": np.zeros(5000, dtype=np.float32),
        "tag": lists,
        "seen": [lists[i - i % 2] for i in range(5000)],
    }
    target = sample_schema(schema)
    table = pa.table({name: pa.array(columns[name], target.field(name).type) for name in target.names}, schema=target)
    pq.write_table(table, tmp_path / "log.parquet")
    build_table(open_log(ParquetLog(path=str(tmp_path / "log.parquet"), schema=schema)), tmp_path / "t", BuildConfig())
    found = {"tag": [], "seen": []}
    for batch in SessionReader(open_table(tmp_path / "t"), ReaderConfig(batch_size=64)):
        for b in range(batch.num_samples):
            for name, into in found.items():
                rows = batch.sparse.rows[name]
                u = int(batch.sparse.inverse["g"][b]) if name == "seen" else b
                low = int(rows.start[u])
                into.append(rows.values[low : low + int(rows.length[u])].tolist())
    assert found == {"tag": columns["tag"], "seen": columns["seen"]}
