"""Law 2 where look-ups branch: weighted lists, and windows summed where they lie, sharded as in training."""

from dataclasses import replace

import pytest
import torch

from recoup.jagged import plain_batch
from recoup.model import pooling
from recoup.train import Trainer
from tests.train import tiny


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def weighted(batch, names):
    """Return the batch with a weight an ID of some features, taken from the ID."""
    rows = dict(batch.sparse.rows)
    for name in names:
        rows[name] = replace(rows[name], weights=0.5 + (rows[name].values % 3).float())
    return replace(batch, sparse=replace(batch.sparse, rows=rows))


def test_weighted_lists_have_one_loss_curve():
    """Weights count in the sum, the same on deduplicated and plain batches."""
    schema = tiny.table().schema
    names = ("user_0", "hist_1", "item_1")
    sparse = tuple(replace(feature, weighted=feature.name in names) for feature in schema.sparse)
    batches = [weighted(batch, names) for batch in tiny.batches()]
    like = tiny.trainer()
    one, other = (Trainer(like.model_config, like.config, replace(schema, sparse=sparse)) for _ in range(2))
    unique = [one.step(batch).loss for batch in batches]
    plain = [other.step(plain_batch(batch)).loss for batch in batches]
    unweighted = [like.step(batch).loss for batch in batches]
    assert unique == pytest.approx(plain, rel=2e-5)
    assert unique != pytest.approx(unweighted, rel=1e-4)


def test_windows_and_bags_have_one_loss_curve(monkeypatch):
    """Whatever the cost rule says, the losses are the same: forward to the bit in the first step."""
    batches, losses = tiny.batches(), []
    for bound in (0.0, 1e9):
        monkeypatch.setattr(pooling, "_IDS_A_POSITION", bound)
        trainer = tiny.trainer()
        losses.append([trainer.step(batch).loss for batch in batches])
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)
    assert losses[0][0] == losses[1][0]
