"""Data of an emulation: real logs in time order without repeats, the synthetic set as stated, batches that hold all."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recoup.emulate import CriteoLikeData, EmulationError, LogData, load_dataset, plain_batches, samples_of, shuffled
from recoup.log import CriteoLog, KuaiRandLog
from recoup.schema import DenseFeature, Schema, SparseFeature, sample_schema

KUAIRAND = Path(__file__).parents[3] / "shared" / "data" / "kuairand"


def test_synthetic_set_has_the_stated_shape():
    """13 dense, 26 categorical; the 7 largest tables hold 99.6 % of rows; a quarter positive; repeatable."""
    config = CriteoLikeData(num_samples=20_000)
    data, again = load_dataset(config), load_dataset(config)
    sizes = sorted(data.num_rows.values())
    assert (data.train.dense.shape[1], len(sizes), data.synthetic) == (13, 26, True)
    assert sum(sizes[-7:]) / sum(sizes) == pytest.approx(0.996, abs=0.001)
    assert 0.2 < data.train.label.mean() < 0.35
    assert np.array_equal(data.train.values["c2"], again.train.values["c2"])
    assert all(data.train.values[key].max() < rows for key, rows in data.num_rows.items())


def test_log_is_sorted_and_freed_of_repeats():
    """Samples come in time order, one for each event; dense values keep their sign; IDs become row numbers."""
    schema = Schema(
        key="user",
        event_id="event",
        labels=("click",),
        dense=(DenseFeature(name="count"),),
        sparse=(SparseFeature(name="items"),),
    )
    rows = {
        "user": [1, 1, 2, 1],
        "time": [30, 10, 20, 10],
        "event": ["c", "a", "b", "a"],
        "click": [1.0, 0.0, 1.0, 0.0],
        "count": [0.0, -3.0, 2.0, -3.0],
        "items": [[7], [900, 7], [], [900, 7]],
    }
    samples, sizes = samples_of(
        pa.table(rows, schema=sample_schema(schema)), schema, label="click", features=("items",), max_rows=10
    )
    assert samples.time.tolist() == [10, 20, 30]
    assert samples.dense[:, 0].tolist() == pytest.approx([-np.log(4), np.log(3), 0.0])
    assert sizes == {"items": 2}
    assert samples.values["items"].tolist() == [1, 0, 0]
    assert samples.offsets["items"].tolist() == [0, 2, 2, 3]


def test_batches_and_shuffles_hold_every_sample_once():
    """Cut or shuffled, each sample keeps its IDs, label and dense values, and is there once."""
    data = load_dataset(CriteoLikeData(num_samples=1000, scale=1e-4)).train
    order = shuffled(data, np.random.default_rng(1))

    def rows(samples):
        table = np.column_stack([samples.dense, samples.label, *(samples.values[key] for key in samples.values)])
        return table[np.lexsort(table.T)]

    assert np.array_equal(rows(order), rows(data))
    assert not np.array_equal(order.label, data.label)
    batches = plain_batches(data, 300)
    assert [batch.num_samples for batch in batches] == [300, 300, 200]
    joined = np.concatenate([batch.sparse.rows["c0"].values.numpy() for batch in batches])
    assert np.array_equal(joined, data.values["c0"])


def test_criteo_file_is_read(tmp_path):
    """A Criteo TSV given by the user becomes a data set; a blank category is an empty list."""
    lines = ["\t".join([str(i % 2), *["3", "-1", ""], *["1"] * 10, *[f"{i % 5:08x}"] * 25, ""]) for i in range(200)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    data = load_dataset(LogData(log=CriteoLog(path=str(tmp_path / "train.txt")), num_samples=100))
    assert (data.train.num_samples, data.test.num_samples) == (80, 20)
    assert data.num_rows["C1"] == 5
    assert data.train.values["C26"].size == 0


def test_missing_label_is_refused(tmp_path):
    """A label or feature that the log does not have is refused by name."""
    (tmp_path / "train.txt").write_text("\t".join(["0", *["1"] * 13, *["0a"] * 26]) + "\n")
    log = CriteoLog(path=str(tmp_path / "train.txt"))
    with pytest.raises(EmulationError, match="expected a label or sparse feature of the log, got 'buy'"):
        load_dataset(LogData(log=log, label="buy"))
    with pytest.raises(EmulationError, match="expected both classes in the test set"):
        load_dataset(LogData(log=log))


@pytest.mark.skipif(not KUAIRAND.exists(), reason="needs ../shared/data/kuairand")
def test_kuairand_is_read():
    """The KuaiRand log loses its exact repeats and keeps time order."""
    data = load_dataset(LogData(log=KuaiRandLog(path=str(KUAIRAND)), features=("user_id", "video_id")))
    assert data.train.num_samples + data.test.num_samples < 228_329
    assert (np.diff(data.train.time) >= 0).all()
    assert data.train.time[-1] <= data.test.time[0]
    assert data.num_rows["user_id"] == 25_156
