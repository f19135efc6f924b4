"""A user's own collection on unique rows gives the same bits; the lint refuses what would not."""

import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, PoolingType

from recoup.jagged import dedup, to_kjt
from recoup.model import EmbeddedRows, ModelError, TargetAttention, check_deduplicated, wrap
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
    attention = TargetAttention(4, num_heads=2, max_length=3).double()
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
