"""The format of version 1 stays readable: a stored checkpoint restores to known rows.

`python -m tests.checkpoint.test_golden` writes it anew; do that only with a new format version, beside the old one.
"""

import json
import shutil
from pathlib import Path

import torch

from recoup.checkpoint import StoreConfig
from tests.checkpoint.builders import make_store, make_views, request

GOLDEN = Path(__file__).parent / "golden_v1"
ROWS = {"users": torch.tensor([0, 40, 96]), "items": torch.tensor([7])}


def write():
    """Write a base in two hashed shards and a delta of 8 bits."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    store = make_store(GOLDEN, kind="hash", shards=2, run_id="golden", config=StoreConfig(quantise_bits=8))
    views = known()
    store.save(request(views, 1))
    for name, rows in ROWS.items():
        views[name].weight[rows] *= -1
        views[name].optimizer["momentum1"][rows] += 1
    store.save(request(views, 2, rows=ROWS))


def known():
    """Return tables whose row i holds i, i + 1, i, ... and i as momentum: exact in 8 bits too."""
    views = make_views()
    for view in views.values():
        rows = torch.arange(view.num_rows_total).float()
        view.weight.copy_(rows[:, None] + torch.arange(view.weight.shape[1]) % 2)
        view.optimizer["momentum1"].copy_(rows)
    return views


def test_version_1_restores():
    """Base, delta, 8-bit weights, optimizer rows, dense tensors, plain state, and the order of checkpoints."""
    store = make_store(GOLDEN, kind="range", shards=3, run_id="golden")
    assert [manifest.step for manifest in store.checkpoints()] == [2, 1]
    views, expected = make_views(seed=7), known()
    found = store.restore(views)
    for name, rows in ROWS.items():
        expected[name].weight[rows] *= -1
        expected[name].optimizer["momentum1"][rows] += 1
    for name, view in views.items():
        assert torch.allclose(view.weight, expected[name].weight, atol=1e-4)
        assert torch.equal(view.optimizer["momentum1"], expected[name].optimizer["momentum1"])
    assert found.dense["w"].tolist() == [2.0] * 3
    assert found.extra == {"at": 2}
    assert not found.manifest.exact


def test_version_1_is_what_is_written_now():
    """The keys of a manifest are those of the stored one: a change of the format bumps its version."""
    (path, *_) = sorted((GOLDEN / "checkpoints").iterdir())
    body = json.loads(json.loads(path.read_text())["body"])
    store = make_store("memory://golden-now", kind="hash", shards=2, run_id="golden")
    now = store.save(request(known(), 1))
    stored = json.loads(json.loads(store.storage.read(now.name))["body"])
    assert stored == body


if __name__ == "__main__":
    write()
