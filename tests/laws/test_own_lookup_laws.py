"""Law 2 where a rank reads its own tables: the same model as through TorchRec and FBGEMM, step by step."""

import pytest
import torch

from recoup.jagged import plain_batch
from recoup.model import EmbeddingTable, TargetEncoder, lookup, observe_lookups
from recoup.model.fused import fused_lookups
from tests.train import tiny


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def shared_model():
    """Return a model of one table for two groups and a candidate, with means, and target attention."""
    tables = (
        EmbeddingTable(name="ids", num_embeddings=200, embedding_dim=8, features=("hist_0", "item_0", "user_0")),
        EmbeddingTable(name="other", num_embeddings=200, embedding_dim=8, features=("item_1",), pooling="mean"),
        EmbeddingTable(name="users", num_embeddings=200, embedding_dim=8, features=("user_1",), pooling="mean"),
        EmbeddingTable(name="seen", num_embeddings=200, embedding_dim=8, features=("hist_1",)),
    )
    return tiny.model(tables=tables, sequences=(TargetEncoder(feature="hist_0", candidate="item_0"),))


def through_fbgemm(trainer):
    """Let somebody watch the look-ups: all of them go through TorchRec."""
    for fused in fused_lookups(trainer.model):
        fused.register_forward_pre_hook(lambda module, args: None)
    return trainer


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("config", [tiny.model(), tiny.model(sequences=()), shared_model()])
def test_own_tables_learn_as_fbgemm_does(config, plain, monkeypatch):
    """Losses, rows and moments after every step agree with FBGEMM's, shared tables, means and histories included."""
    calls = []
    real = lookup.own_lookup
    monkeypatch.setattr(lookup, "own_lookup", lambda *args: calls.append(1) or real(*args))
    own, other = tiny.trainer(config), through_fbgemm(tiny.trainer(config))
    for batch in tiny.batches():
        given = plain_batch(batch) if plain else batch
        calls.clear()
        loss = own.step(given).loss
        assert calls
        calls.clear()
        assert loss == pytest.approx(other.step(given).loss, rel=2e-5)
        assert not calls
    for name, view in own.table_views().items():
        expected = other.table_views()[name]
        torch.testing.assert_close(view.weight, expected.weight, rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(view.optimizer["momentum1"], expected.optimizer["momentum1"], rtol=1e-3, atol=1e-6)


def test_the_first_answer_has_fbgemms_bits():
    """Sums are added in FBGEMM's order."""
    own, other = tiny.trainer(tiny.model(sequences=())), through_fbgemm(tiny.trainer(tiny.model(sequences=())))
    for batch in tiny.batches()[:3]:
        assert torch.equal(own.predict(batch), other.predict(batch))


@pytest.mark.parametrize("config", [tiny.model(), tiny.model(sequences=()), shared_model()])
def test_a_policy_sees_the_rows_that_are_read(config):
    """Priority saves know every row of a step, with repeats, and do not change the way it is read."""
    seen = {}

    class Policy:
        def observe(self, table, rows):
            seen[table] = rows

    watched, other = tiny.trainer(config), tiny.trainer(config)
    observe_lookups(watched.model, watched.table_views(), Policy())
    for batch in tiny.batches():
        assert watched.step(batch).loss == other.step(batch).loss
        expected = watched.ids_by_table(batch)
        for sequence in config.sequences:  # read once a position
            name = next(table.name for table in config.tables if sequence.feature in table.features)
            assert set(seen[name].tolist()) == set(expected.pop(name).tolist())
        for name, rows in expected.items():
            assert torch.equal(seen[name].sort().values, rows.sort().values)
        seen.clear()
        watched.predict(batch)
        assert not seen


def test_a_learning_rate_set_later_counts_at_once():
    """The rate is read from FBGEMM's module at every step: rate zero moves no row."""
    trainer = tiny.trainer()
    batches = tiny.batches()
    trainer.step(batches[0])
    for fused in fused_lookups(trainer.model):
        fused.set_learning_rate(0.0)
    before = {name: view.weight.clone() for name, view in trainer.table_views().items()}
    trainer.step(batches[1])
    assert all(torch.equal(view.weight, before[name]) for name, view in trainer.table_views().items())
