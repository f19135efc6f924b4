"""One process: deduplicated = plain, the same bits again, dense Adagrad's numbers, and clear refusals."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from recoup.jagged import Batch, InverseKeyedJaggedTensor, JaggedRows, plain_batch
from recoup.model import DLRMConfig, EmbeddingTable, ModelError
from recoup.schema import DedupGroup, DenseFeature, Schema, SparseFeature
from recoup.train import TrainConfig, Trainer, TrainError, empty_batch
from tests.train import tiny
from tests.train.ranks_job import tables_of, take


def train_all(trainer, batches):
    return [trainer.step(batch).loss for batch in batches]


def lists(values):
    length = torch.tensor([len(v) for v in values], dtype=torch.int64)
    flat = torch.tensor([i for v in values for i in v], dtype=torch.int64)
    return JaggedRows(values=flat, start=torch.cumsum(length, 0) - length, length=length)


def batch_of(schema, rows, labels, inverse=None):
    """Return a batch of lists by feature."""
    num_samples = len(labels)
    return Batch(
        dense=torch.zeros(num_samples, len(schema.dense)),
        labels=torch.tensor(labels, dtype=torch.float32)[:, None],
        sparse=InverseKeyedJaggedTensor(
            groups=schema.groups,
            rows={name: lists(values) for name, values in rows.items()},
            inverse={name: torch.tensor(index) for name, index in (inverse or {}).items()},
            num_samples=num_samples,
        ),
        time=torch.zeros(num_samples, dtype=torch.int64),
        session=torch.zeros(num_samples, dtype=torch.int64),
    )


def test_deduplicated_and_plain_batches_have_one_loss_curve():
    """Law 2: one seed gives the same losses on deduplicated and plain batches within rounding."""
    batches = tiny.batches()
    one, other = tiny.trainer(), tiny.trainer()
    torch.testing.assert_close(one.predict(batches[0]), other.predict(plain_batch(batches[0])), rtol=1e-6, atol=1e-7)
    unique = train_all(one, batches)
    plain = train_all(other, [plain_batch(batch) for batch in batches])
    assert unique == pytest.approx(plain, rel=2e-5)
    assert unique[-1] < unique[0]
    read_plain = train_all(tiny.trainer(), tiny.batches(dedup=False))
    assert read_plain == plain


def test_gradients_of_deduplicated_batches_are_within_rounding_N02():
    """The first update of every row differs from the plain path's by no more than k eps times the sum of |terms|."""
    batch = tiny.batches()[0]
    one, other = tiny.trainer(table_lr=1.0), tiny.trainer(table_lr=1.0)
    one.step(batch)
    other.step(plain_batch(batch))
    for name, (weight, momentum) in tables_of(one).items():
        plain_weight, plain_momentum = tables_of(other)[name]
        assert torch.equal(momentum > 0, plain_momentum > 0)  # the same rows were touched
        assert torch.allclose(momentum, plain_momentum, rtol=64 * torch.finfo(torch.float32).eps, atol=1e-12)
        assert torch.allclose(weight, plain_weight, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_fifty_steps_give_the_same_bytes_N01(threads):
    """Fifty steps, three times: every table and dense tensor is byte-identical, with one thread and with two."""
    batches = tiny.batches(batch_size=16)
    batches = (batches * (1 + 50 // len(batches)))[:50]
    hot = replace(batches[0].sparse.rows["user_0"], values=torch.zeros_like(batches[0].sparse.rows["user_0"].values))
    for batch in batches[:10]:  # one ID in every row is the critical case
        batch.sparse.rows["user_0"] = replace(hot, **_windows(batch.sparse.rows["user_0"]))
    seen = set()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            trainer = tiny.trainer()
            train_all(trainer, batches)
            parts = [tensor for pair in tables_of(trainer).values() for tensor in pair]
            parts += list(trainer.dense_state().values())
            seen.add(b"".join(part.numpy().tobytes() for part in parts))
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 1


def _windows(rows):
    return {"values": torch.zeros_like(rows.values), "start": rows.start, "length": rows.length}


def test_repeated_ids_are_summed_before_the_update_N03():
    """IDs repeated within a bag, across rows and across features of one table: equals dense row-wise Adagrad."""
    schema = Schema(
        key="user", labels=("y",), sparse=(SparseFeature(name="a", group="g"), SparseFeature(name="b")), dense=()
    )
    table = EmbeddingTable(name="t", num_embeddings=6, embedding_dim=4, features=("a", "b"))
    model = DLRMConfig(tables=(table,), top_mlp=(), interaction="dot_concat")
    trainer = Trainer(model, TrainConfig(table_lr=0.1, dense_lr=0.0, dense_optimizer="sgd"), schema)
    oracle = copy.deepcopy(trainer.model.module.top)
    weight = trainer.table_views()["t"].weight.clone().requires_grad_()
    momentum = torch.zeros(6)
    rows_a, rows_b, inverse, labels = [[3, 3, 1], [3]], [[3], [0, 3], []], [0, 0, 1], [1.0, 0.0, 1.0]
    for _ in range(5):
        result = trainer.step(batch_of(schema, {"a": rows_a, "b": rows_b}, labels, {"g": inverse}))
        pooled_a = torch.stack([weight[rows_a[u]].sum(0) for u in inverse])
        pooled_b = torch.stack([weight[torch.tensor(ids, dtype=torch.int64)].sum(0) for ids in rows_b])
        features = torch.cat([pooled_a, pooled_b, (pooled_a * pooled_b).sum(1, keepdim=True)], dim=1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(oracle(features)[:, 0], torch.tensor(labels))
        (grad,) = torch.autograd.grad(loss, weight)
        momentum += grad.square().mean(dim=1)
        with torch.no_grad():
            weight -= 0.1 * grad / (momentum.sqrt() + 1e-8)[:, None]
        assert result.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(trainer.table_views()["t"].weight, weight.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(trainer.table_views()["t"].optimizer["momentum1"], momentum, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("wrong", [-1, 200, 201, 2**31, 2**62])
def test_ids_outside_their_table_J09(wrong):
    """An ID outside its table gives the same error on deduplicated and plain batches; nothing is updated."""
    batch = tiny.batches()[0]
    values = batch.sparse.rows["hist_1"].values
    values[int(batch.sparse.rows["hist_1"].start[2])] = wrong
    trainer = tiny.trainer()
    before = tables_of(trainer)
    messages = []
    for given in (batch, plain_batch(batch)):
        with pytest.raises(
            ModelError, match=rf"expected IDs 0 \.\. 199, got {wrong} \(feature 'hist_1', sample"
        ) as err:
            trainer.step(given)
        messages.append(str(err.value))
    assert messages[0] == messages[1]
    assert all(torch.equal(rows[0], before[name][0]) for name, rows in tables_of(trainer).items())


def test_an_absent_feature_follows_the_schema_J13():
    """A batch without a feature of the model: an error that names it, or empty lists if the schema says so."""
    batch = tiny.batches()[0]
    rows = {key: value for key, value in batch.sparse.rows.items() if key != "item_1"}
    groups = tuple(
        DedupGroup(name=g.name, features=tuple(f for f in g.features if f != "item_1")) for g in batch.sparse.groups
    )
    without = replace(batch, sparse=replace(batch.sparse, rows=rows, groups=groups))
    with pytest.raises(ModelError, match="expected feature 'item_1'"):
        tiny.trainer().step(without)
    schema = tiny.table().schema
    optional = replace(
        schema, sparse=tuple(replace(f, missing="empty") if f.name == "item_1" else f for f in schema.sparse)
    )
    trainer = Trainer(tiny.model(), TrainConfig(), optional)
    before = tables_of(trainer)["other"][0]
    assert np.isfinite(trainer.step(without).loss)
    assert torch.equal(tables_of(trainer)["other"][0], before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_stop_the_run_M10(value):
    """NaN or infinity in a dense feature or label is refused with sample and column before anything is updated."""
    trainer = tiny.trainer()
    before = trainer.dense_state()
    batch = tiny.batches()[0]
    batch.dense[5, 1] = value
    with pytest.raises(ModelError, match=r"dense feature 'dense_1', sample 5 of the batch"):
        trainer.step(batch)
    batch = tiny.batches()[0]
    batch.labels[2, 0] = value
    with pytest.raises(ModelError, match=r"label 'click', sample 2 of the batch"):
        trainer.step(batch)
    assert all(torch.equal(tensor, before[key]) for key, tensor in trainer.dense_state().items())


def test_a_loss_that_is_not_finite_stops_the_run_M10():
    """A model that overflowed stops with step and sample, and may not be saved."""
    trainer = tiny.trainer()
    trainer.table_views()["users"].weight[:] = 3e38
    with pytest.raises(TrainError, match=r"expected a finite loss, got .* \(step 1, sample \d+ of the batch\)"):
        trainer.step(tiny.batches()[0])
    trainer.table_views()["users"].weight[7, 1] = float("nan")
    with pytest.raises(TrainError, match="weight of table 'users', row 7"):
        trainer.check_finite()


def test_a_batch_of_zero_rows_changes_nothing_J01():
    """Zero samples: forward, backward and update run or are passed over, and nothing changes."""
    trainer = tiny.trainer()
    before, dense = tables_of(trainer), trainer.dense_state()
    for nothing in (empty_batch(tiny.table().schema), take(tiny.batches()[0], 0, 0)):
        result = trainer.step(nothing)
        assert (result.loss, result.num_samples) == (0.0, 0)
        assert trainer.predict(nothing).shape == (0,)
    assert all(torch.equal(rows[0], before[name][0]) for name, rows in tables_of(trainer).items())
    assert all(torch.equal(value, dense[key]) for key, value in trainer.dense_state().items())


def test_views_are_live_and_rows_do_not_depend_on_the_order_of_tables():
    """What is written through a view is what the next forward reads; a table's start depends on seed and name only."""
    trainer = tiny.trainer()
    batch = tiny.batches()[0]
    before = trainer.predict(batch)
    for view in trainer.table_views().values():
        view.weight.zero_()
    assert not torch.equal(trainer.predict(batch), before)
    config = tiny.model()
    turned = tiny.trainer(replace(config, tables=config.tables[::-1]))
    fresh = tables_of(tiny.trainer())
    assert all(torch.equal(rows[0], fresh[name][0]) for name, rows in tables_of(turned).items())


def test_a_dense_state_of_another_dtype_or_shape_is_refused_C12():
    """Dense state is never cast, cut or left out silently; a refused state changes nothing."""
    trainer = tiny.trainer()
    state = trainer.dense_state()
    name = "model/top.0.weight"
    for wrong, match in (
        ({**state, name: state[name].bfloat16()}, "got .* and torch.bfloat16"),
        ({**state, name: state[name][:3]}, "of shape"),
        ({key: value for key, value in state.items() if key != name}, "'model/top.0.weight' absent"),
        ({**state, "optimizer/more": state[name]}, "left over"),
    ):
        with pytest.raises(TrainError, match=match):
            trainer.load_dense_state(wrong)
    assert all(torch.equal(value, state[key]) for key, value in trainer.dense_state().items())


def test_ids_by_table_are_the_rows_that_a_step_changes():
    """A step changes exactly the rows that `ids_by_table` names."""
    trainer = tiny.trainer(table_lr=1.0)
    batch = tiny.batches()[0]
    before = tables_of(trainer)
    named = trainer.ids_by_table(batch)
    trainer.step(batch)
    for name, (_, momentum) in tables_of(trainer).items():
        changed = (momentum != before[name][1]).nonzero().flatten()
        assert set(changed.tolist()) <= set(named[name].tolist())
        assert changed.numel() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_trains_as_the_cpu_does():
    """The same losses on CUDA as on the CPU, within rounding."""
    batches = tiny.batches()
    gpu = Trainer(tiny.model(), TrainConfig(dense_lr=0.01), tiny.table().schema, device="cuda")
    assert train_all(gpu, batches) == pytest.approx(train_all(tiny.trainer(), batches), rel=1e-3)


def test_dense_features_may_be_a_part_of_the_batch():
    """A model may take some dense features only, in its own order."""
    trainer = tiny.trainer(tiny.model(dense=("dense_1",)))
    batch = tiny.batches()[0]
    first = trainer.predict(batch)
    batch.dense[:, 0] += 5
    assert torch.equal(trainer.predict(batch), first)
    assert DenseFeature(name="dense_1") in tiny.table().schema.dense
