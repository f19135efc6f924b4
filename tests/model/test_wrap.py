"""A user's own collection on unique rows gives the same bits; the lint refuses what would not."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, PoolingType

from recoup.jagged import dedup, to_kjt
from recoup.model import EmbeddedRows, ModelError, TargetAttention, TargetEncoder, check_deduplicated, wrap
from recoup.schema import DedupGroup
from tests.jagged.test_ikjt import plain

GROUPS = (DedupGroup(name="g", features=("hist", "liked")), DedupGroup(name="u", features=("user",)))

ITEMS = ["item", "hist", "liked"]


def batch(seed=0, size=12):
    generator = torch.Generator().manual_seed(seed)

    def draw(longest):
        return tuple(torch.randint(0, 20, (int(torch.randint(0, longest + 1, (1,), generator=generator)),)).tolist())

    pool = [(draw(5), draw(3), draw(2)) for _ in range(4)]
    picks = [pool[int(i)] for i in torch.randint(0, 4, (size,), generator=generator)]
    columns = {"hist": [p[0] for p in picks], "liked": [p[1] for p in picks], "user": [p[2] for p in picks]}
    return plain({**columns, "item": [draw(2) for _ in range(size)]})


def bags():
    torch.manual_seed(1)
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name="films", num_embeddings=20, embedding_dim=4, feature_names=["item", "hist", "liked"]
            ),
            EmbeddingBagConfig(
                name="people", num_embeddings=20, embedding_dim=6, feature_names=["user"], pooling=PoolingType.MEAN
            ),
        ]
    )


def sequences():
    torch.manual_seed(1)
    return EmbeddingCollection(
        tables=[
            EmbeddingConfig(name="films", num_embeddings=20, embedding_dim=4, feature_names=ITEMS),
            EmbeddingConfig(name="people", num_embeddings=20, embedding_dim=4, feature_names=["user"]),
        ]
    )


def test_wrapped_bags_take_a_batch_of_zero_rows_J01():
    """TorchRec cannot split a batch of zero rows; wrapped, it gives zero rows of every feature."""
    found = wrap(bags(), GROUPS)(dedup(batch(size=0), GROUPS))
    assert found.values().shape == (0, 4 * 3 + 6)
    assert wrap(sequences(), GROUPS)(dedup(batch(size=0), GROUPS))["hist"].values().shape == (0, 4)


@pytest.mark.parametrize("size", [1, 12])
def test_wrapped_bags_equal_the_bags(size):
    """wrap(ebc)(dedup(x)) = ebc(x) bit for bit, from a KJT too; gradients agree within the bound of sums."""
    samples = batch(size=size)
    kjt = to_kjt(samples, ("item", "hist", "liked", "user"))
    own, ours = bags(), bags()
    wrapped = wrap(ours, GROUPS)
    expected = own(kjt)
    for given in (dedup(samples, GROUPS), kjt):
        found = wrapped(given)
        assert found.keys() == expected.keys()
        assert torch.equal(found.values(), expected.values())
    if size > 1:
        weights = torch.randn(expected.values().shape, generator=torch.Generator().manual_seed(2))
        (expected.values() * weights).sum().backward()
        (wrapped(kjt).values() * weights).sum().backward()
        for one, other in zip(own.parameters(), ours.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, atol=1e-5)


def test_wrapped_sequences_equal_the_sequences():
    """wrap(ec)(dedup(x)) gives every sample's rows in order, as ec(x) does."""
    samples = batch()
    kjt = to_kjt(samples, ("item", "hist", "liked", "user"))
    own, wrapped = sequences(), wrap(sequences(), GROUPS)
    expected, found = own(kjt), wrapped(dedup(samples, GROUPS))
    assert set(found) == set(expected)
    for key, jagged in expected.items():
        assert torch.equal(found[key].values(), jagged.values())
        assert torch.equal(found[key].lengths(), jagged.lengths())


def test_a_missing_feature_is_named_J13():
    """A batch without one of the collection's features is refused by name."""
    with pytest.raises(ModelError, match="'user'"):
        wrap(bags(), GROUPS)(dedup(plain({"hist": [()], "liked": [()], "item": [(1,)]}), GROUPS[:1]))
    with pytest.raises(ModelError, match="give keys"):
        wrap(nn.Linear(1, 1), GROUPS)


def test_target_attention_reads_windows_as_if_they_were_expanded():
    """Histories on a shared buffer give what every sample's own copy gives; the gradient passes gradcheck."""
    torch.manual_seed(0)
    attention = TargetAttention(TargetEncoder(feature="hist", candidate="item", num_heads=2, max_length=3), 4).double()
    nn.init.normal_(attention.distance_bias)
    values = torch.randn(6, 4, dtype=torch.float64)
    start, length = torch.tensor([0, 1, 3, 0]), torch.tensor([3, 4, 2, 0])
    inverse = torch.tensor([0, 1, 1, 3, 2, 0])
    candidates = torch.randn(6, 4, dtype=torch.float64)
    found = attention(candidates, EmbeddedRows(values, start, length), inverse)
    for b in range(6):
        low, size = int(start[inverse[b]]), int(length[inverse[b]])
        own = EmbeddedRows(values[low : low + size], torch.tensor([0]), torch.tensor([size]))
        assert torch.allclose(found[b], attention(candidates[b : b + 1], own, None)[0])
        if size == 0:
            assert found[b].eq(0).all()

    def run(candidates, values):
        return attention(candidates, EmbeddedRows(values, start, length), inverse)

    inputs = candidates.requires_grad_(), values.requires_grad_()
    assert torch.autograd.gradcheck(run, inputs)


class LastRow(nn.Module):
    """A user's encoder: the last row of a list through a layer; zeros for an empty one."""

    def __init__(self, *, dropout=0.0, norm=False):
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(4, 3)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.BatchNorm1d(3) if norm else nn.LayerNorm(3)
        self.num_rows = []

    def forward(self, rows):
        self.num_rows.append(rows.lengths().numel())
        last = (rows.offsets()[1:] - 1).clamp(min=0)
        encoded = self.norm(self.dropout(self.layer(rows.values()[last])))
        return torch.where(rows.lengths().unsqueeze(1) > 0, encoded, 0.0)


def test_a_wrapped_encoder_runs_on_unique_rows():
    """An encoder of one's own sees each distinct row once and answers for samples; gradients agree with plain."""
    samples = batch()
    results = []
    for given in (dedup(samples, GROUPS), samples):
        encoder = LastRow()
        collection = sequences()
        wrapped = wrap(collection, GROUPS, encoders={"hist": encoder})
        found = wrapped(given)
        (found["hist"] * torch.arange(36.0).view(12, 3)).sum().backward()
        results.append((found["hist"].detach(), *(p.grad for p in (*encoder.parameters(), *collection.parameters()))))
        results[-1] = [x for x in results[-1] if x is not None]
        assert encoder.num_rows == [given.rows["hist"].num_rows]
        assert torch.equal(found["liked"].lengths(), wrap(sequences(), GROUPS)(samples)["liked"].lengths())
    assert dedup(samples, GROUPS).rows["hist"].num_rows < 12
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bad", [{"dropout": 0.1}, {"norm": True}])
def test_wrap_calls_the_lint(bad):
    """Dropout and BatchNorm in an encoder on unique rows are refused by path when it is built, unless allowed."""
    path = "of_hist.dropout" if "dropout" in bad else "of_hist.norm"
    with pytest.raises(ModelError, match=rf"'{path}': move it after the expansion, or allow it"):
        wrap(sequences(), GROUPS, encoders={"hist": LastRow(**bad)})
    wrap(sequences(), GROUPS, encoders={"hist": LastRow(**bad)}, allow=(path,))
    with pytest.raises(ModelError, match="'1': move it after"):
        wrap(nn.Sequential(bags(), nn.Dropout(0.2)), GROUPS, keys=("item", "hist", "liked", "user"))


def test_encoders_belong_to_sequences():
    """An encoder of a pooled or unknown feature is refused by name."""
    with pytest.raises(ModelError, match="got one of 'hist' for a EmbeddingBagCollection"):
        wrap(bags(), GROUPS, encoders={"hist": LastRow()})
    with pytest.raises(ModelError, match="got one of 'x'"):
        wrap(sequences(), GROUPS, encoders={"x": LastRow()})


@pytest.mark.parametrize("make", [bags, sequences])
@pytest.mark.parametrize("wrong", [-1, 20, 21, 2**31, 2**62])
def test_a_wrapped_collection_names_an_id_outside_its_table_J09(make, wrong):
    """The same typed error from a deduplicated batch, a plain one and a KJT: feature, sample, ID and table size."""
    columns = {"hist": [(1, 2), (3, wrong), (3, wrong)], "liked": [(), (4,), (4,)], "user": [(5,)] * 3}
    samples = plain({**columns, "item": [(6,)] * 3})
    wrapped = wrap(make(), GROUPS)
    match = rf"expected IDs 0 \.\. 19, got {wrong} \(feature 'hist', sample 1 of the batch, table of 20 rows\)"
    for given in (dedup(samples, GROUPS), samples, to_kjt(samples, ("item", "hist", "liked", "user"))):
        with pytest.raises(ModelError, match=match):
            wrapped(given)


def test_weights_count_in_wrapped_bags_and_not_in_sequences():
    """As in TorchRec: a weighted bag multiplies, an un-pooled sequence gives the table's rows as they are."""
    samples = batch()
    weighted = {k: replace(r, weights=0.5 + (r.values % 3).float()) for k, r in samples.rows.items()}
    samples = replace(samples, rows=weighted)
    kjt = to_kjt(samples, ("item", "hist", "liked", "user"))
    configs = [replace(config, pooling=PoolingType.SUM) for config in bags().embedding_bag_configs()]
    own = EmbeddingBagCollection(tables=configs, is_weighted=True)
    assert torch.equal(wrap(own, GROUPS)(dedup(samples, GROUPS)).values(), own(kjt).values())
    expected = sequences()(kjt)
    for key, found in wrap(sequences(), GROUPS)(dedup(samples, GROUPS)).items():
        assert torch.equal(found.values(), expected[key].values())


def test_the_lint_refuses_chance_and_batch_statistics():
    """Dropout and BatchNorm inside the deduplicated part are refused by path, unless allowed or inactive."""
    for layer in (nn.Dropout(0.1), nn.BatchNorm1d(3)):
        part = nn.Sequential(nn.Linear(3, 3), layer)
        with pytest.raises(ModelError, match=r"'1': move it after the expansion"):
            check_deduplicated(part)
        check_deduplicated(part, allow=("1",))
    check_deduplicated(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.Dropout1d(0.0), nn.LayerNorm(3)))
    for inner in (nn.MultiheadAttention(4, 2, dropout=0.1), nn.GRU(3, 3, num_layers=2, dropout=0.1)):
        with pytest.raises(ModelError, match=type(inner).__name__):
            check_deduplicated(nn.Sequential(inner))
    check_deduplicated(nn.MultiheadAttention(4, 2))
