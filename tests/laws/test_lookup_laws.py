"""Law 2 where look-ups branch: weighted lists, and windows summed where they lie, sharded as in training."""

from dataclasses import replace

import pytest
import torch

from recoup.jagged import plain_batch
from recoup.model import EmbeddingTable, TargetEncoder, pooling
from recoup.train import Trainer
from tests.train import tiny
from tests.train.ranks_job import take


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def weighted(batch, names):
    """Return the batch with a weight an ID of some features, taken from the ID."""
    rows = dict(batch.sparse.rows)
    for name in names:
        rows[name] = replace(rows[name], weights=0.5 + (rows[name].values % 3).float())
    return replace(batch, sparse=replace(batch.sparse, rows=rows))


@pytest.mark.parametrize("names", [("user_0", "hist_1", "item_1"), ("hist_0", "item_0")])
def test_weighted_lists_have_one_loss_curve(names):
    """Weights count in sums and in un-pooled sequences, the same on deduplicated and plain batches."""
    schema = tiny.table().schema
    sparse = tuple(replace(feature, weighted=feature.name in names) for feature in schema.sparse)
    batches = [weighted(batch, names) for batch in tiny.batches()]
    like = tiny.trainer()
    one, other = (Trainer(like.model_config, like.config, replace(schema, sparse=sparse)) for _ in range(2))
    unique = [one.step(batch).loss for batch in batches]
    plain = [other.step(plain_batch(batch)).loss for batch in batches]
    unweighted = [like.step(batch).loss for batch in batches]
    assert unique == pytest.approx(plain, rel=2e-5)
    assert unique != pytest.approx(unweighted, rel=1e-4)


def targeted(**overrides):
    """Return the tiny model whose first history is read by a candidate of its own table."""
    return tiny.model(sequences=(TargetEncoder(**{"feature": "hist_0", "candidate": "item_0", **overrides}),))


@pytest.mark.parametrize("candidate", ["item_0", "user_1", "hist_1"])
def test_target_attention_has_one_loss_curve(candidate):
    """Law 2 with DIN-like attention, whatever group the candidate is of, its table shared with the history or not."""
    batches = tiny.batches()
    one, other = (tiny.trainer(targeted(candidate=candidate, num_heads=2)) for _ in range(2))
    torch.testing.assert_close(one.predict(batches[0]), other.predict(plain_batch(batches[0])), rtol=1e-6, atol=1e-7)
    unique = [one.step(batch).loss for batch in batches]
    plain = [other.step(plain_batch(batch)).loss for batch in batches]
    assert unique == pytest.approx(plain, rel=2e-5)
    assert unique != pytest.approx([tiny.trainer().step(batch).loss for batch in batches], rel=1e-4)


def test_a_model_of_target_attention_alone_has_one_loss_curve():
    """A group whose only feature is read by target attention has no vectors of its own."""
    tables = (EmbeddingTable(name="t", num_embeddings=200, embedding_dim=8, features=("hist_0", "item_0")),)
    model = targeted()
    model = replace(model, tables=tables)
    batches = tiny.batches()[:4]
    one, other = tiny.trainer(model), tiny.trainer(model)
    unique = [one.step(batch).loss for batch in batches]
    assert unique == pytest.approx([other.step(plain_batch(batch)).loss for batch in batches], rel=2e-5)


def test_target_attention_takes_empty_histories_and_batches_J01():
    """Empty histories read as zeros, deduplicated or plain; a batch of zero samples changes nothing."""
    trainer = tiny.trainer(targeted())
    batch = tiny.batches()[0]
    rows = batch.sparse.rows["hist_0"]
    for length in (torch.zeros_like(rows.length), torch.where(torch.arange(len(rows.length)) % 2 > 0, rows.length, 0)):
        empty = replace(rows, length=length)
        other = replace(batch, sparse=replace(batch.sparse, rows={**batch.sparse.rows, "hist_0": empty}))
        torch.testing.assert_close(trainer.predict(other), trainer.predict(plain_batch(other)), rtol=1e-6, atol=1e-7)
        assert trainer.step(other).loss > 0
    before = trainer.predict(batch)
    nothing = take(batch, 0, 0)
    assert trainer.step(nothing).num_samples == 0
    assert trainer.predict(nothing).shape == (0,)
    assert torch.equal(trainer.predict(batch), before)


@pytest.mark.parametrize("feature", ["hist_0", "hist_1"])
def test_positions_that_no_row_reads_are_not_looked_up_J09(feature, monkeypatch):
    """IDs of a buffer that no row reads (lists cut to their last IDs) change nothing, out of range or not."""
    monkeypatch.setattr(pooling, "_IDS_A_POSITION", 0.0)  # hist_1 by windows, hist_0 as a sequence
    batch = tiny.batches()[0]
    rows = batch.sparse.rows[feature]
    extra = torch.tensor([-1, 200, 201, 2**31, 2**62])
    half = rows.values.numel() // 2
    cut = torch.where(rows.start >= half, rows.start + 5, rows.start)
    straddles = bool(((rows.start < half) & (rows.start + rows.length > half)).any())
    first = (extra, rows.values, extra) if straddles else (rows.values[:half], extra, rows.values[half:])
    dirty = replace(rows, values=torch.cat(first), start=rows.start + 5 if straddles else cut)
    other = replace(batch, sparse=replace(batch.sparse, rows={**batch.sparse.rows, feature: dirty}))
    clean, found = tiny.trainer(), tiny.trainer()
    expected = [clean.step(batch).loss for _ in range(2)]
    assert [found.step(other).loss for _ in range(2)] == expected
    assert found.step(plain_batch(other)).loss == pytest.approx(clean.step(batch).loss, rel=2e-5)


def test_windows_and_bags_have_one_loss_curve(monkeypatch):
    """Whatever the cost rule says, the losses are the same: forward to the bit in the first step."""
    batches, losses = tiny.batches(), []
    for bound in (0.0, 1e9):
        monkeypatch.setattr(pooling, "_IDS_A_POSITION", bound)
        trainer = tiny.trainer()
        losses.append([trainer.step(batch).loss for batch in batches])
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)
    assert losses[0][0] == losses[1][0]
