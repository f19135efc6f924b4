"""Windows summed where they lie equal bags of all their IDs: the same bits forward, closer to exact backward."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.jagged import InverseKeyedJaggedTensor, JaggedRows, expand
from recoup.model import EmbeddingTable, Lookup
from recoup.model.pooling import gathered_pooling, pool_rows, windows_pay
from recoup.schema import DedupGroup


def rows_of(windows, size):
    """Return windows (start, length) on a buffer of `size` IDs."""
    start, length = (torch.tensor([w[i] for w in windows], dtype=torch.int64) for i in (0, 1))
    return JaggedRows(values=torch.arange(size) % 7, start=start, length=length)


@settings(max_examples=30, deadline=None)
@given(
    windows=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8),
    mean=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_window_sums_and_their_gradients_are_within_rounding_of_float64_N02(windows, mean, seed):
    """Sums stay within k eps sum|x| of float64, gradients within k eps sum|g|, empty and overlapping windows too."""
    rng = torch.Generator().manual_seed(seed)
    features = [rows_of(windows, 12), rows_of(windows[::-1], 12)]
    values = torch.randn(12, 8, generator=rng)
    weight = torch.randn(len(windows), 8, generator=rng)
    results = []
    for kind in (torch.float32, torch.float64):
        leaf = values.detach().to(kind, copy=True).requires_grad_()
        out = pool_rows(leaf, features, means=[mean, False])
        (out * weight.to(kind)).sum().backward()
        results.append((out.detach(), leaf.grad))
    sizes = gathered_sizes(values.abs(), weight.abs(), features)
    for one, exact, size in zip(*results, sizes, strict=True):
        assert bool(((one.double() - exact).abs() <= 8 * np.finfo(np.float32).eps * size + 1e-12).all())


def gathered_sizes(values, weight, features):
    """Return sum|x| of every window and sum|g| of every position."""
    leaf = values.double().requires_grad_()
    start, length = (torch.stack([getattr(rows, name) for rows in features]) for name in ("start", "length"))
    out = gathered_pooling(leaf, start, length, torch.ones(length.shape, dtype=torch.float64))
    (out * weight.double()).sum().backward()
    return out.detach(), leaf.grad


def test_gathered_pooling_passes_gradcheck():
    """The device-independent form has the gradient that differences show."""
    rows = rows_of([(0, 3), (2, 0), (1, 4), (4, 1)], 5)
    values = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pool_rows(x, [rows], means=[True]), (values,))


def sliding(num_sessions, versions, length, shared):
    """Return a batch of histories that shift by one ID, and a candidate item."""
    rng = torch.Generator().manual_seed(0)
    width = length + versions - 1
    start = (torch.arange(num_sessions)[:, None] * width + torch.arange(versions)).flatten()
    rows = {}
    for name, extra in (("hist_0", 0), ("hist_1", 5)):  # buffers of unequal length
        values = torch.randint(0, 50, (num_sessions * width + extra,), generator=rng)
        rows[name] = JaggedRows(values=values, start=start, length=torch.full_like(start, length))
    inverse = torch.arange(len(start)).repeat_interleave(2)
    item = torch.randint(0, 50, (len(inverse),), generator=rng)
    rows["item"] = JaggedRows(values=item, start=torch.arange(len(inverse)), length=torch.ones_like(item))
    groups = (DedupGroup(name="history", features=("hist_0", "hist_1")), DedupGroup(name="", features=("item",)))
    tables = [("items", ("hist_0", "item")), ("other", ("hist_1",))] if shared else [(f, (f,)) for f in rows]
    batch = InverseKeyedJaggedTensor(groups=groups, rows=rows, inverse={"history": inverse}, num_samples=len(inverse))
    return batch, groups, tables


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_a_lookup_by_windows_has_the_bits_of_bags(pooling, shared):
    """Overlapping histories summed by windows have the bits of the expanded batch, a table shared with the item too."""
    batch, groups, tables = sliding(3, 30, 40, shared)
    made = [
        EmbeddingTable(name=name, num_embeddings=50, embedding_dim=8, features=features, pooling=pooling)
        for name, features in tables
    ]
    assert windows_pay([batch.rows["hist_0"], batch.rows["hist_1"]])
    lookup = Lookup(made, (), groups, device=torch.device("cpu"))
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in lookup.parameters():
            weight.copy_(torch.randn(weight.shape, generator=rng))
    plain = expand(batch)
    by_group = (
        DedupGroup(name="history", features=("hist_0", "hist_1")),
        DedupGroup(name="", features=("item",)),
    )
    plain = InverseKeyedJaggedTensor(
        groups=by_group,
        rows=plain.rows,
        inverse={"history": torch.arange(batch.num_samples)},
        num_samples=batch.num_samples,
    )
    found, expected = lookup(batch).pooled, lookup(plain).pooled
    assert not windows_pay([plain.rows["hist_0"]])
    assert torch.equal(found[""], expected[""])
    history = found["history"][batch.inverse["history"]]
    if pooling == "sum":
        assert torch.equal(history, expected["history"])
    else:  # torch's own bags divide by the length, FBGEMM's and ours multiply by its reciprocal
        torch.testing.assert_close(history, expected["history"], rtol=3e-7, atol=1e-8)


def test_weights_count_in_the_sum():
    """A weighted list is the sum of its rows times their weights; a feature of the table without weights has ones."""
    start, length = torch.tensor([0, 2]), torch.tensor([2, 1])
    weights = torch.tensor([0.5, 2.0, -1.0])
    rows = {
        "a": JaggedRows(values=torch.tensor([1, 2, 3]), start=start, length=length, weights=weights),
        "b": JaggedRows(values=torch.tensor([4, 0, 1]), start=start, length=length),
    }
    groups = (DedupGroup(name="g", features=("a", "b")),)
    table = EmbeddingTable(name="t", num_embeddings=5, embedding_dim=4, features=("a", "b"))
    lookup = Lookup([table], (), groups, weighted=("a",), device=torch.device("cpu"))
    (rows_RD,) = lookup.parameters()
    with torch.no_grad():
        rows_RD.copy_(torch.arange(20.0).view(5, 4))
    batch = InverseKeyedJaggedTensor(groups=groups, rows=rows, inverse={"g": torch.tensor([0, 1, 1])}, num_samples=3)
    found = lookup(batch).pooled["g"]
    assert torch.equal(found[:, 0], torch.stack([0.5 * rows_RD[1] + 2 * rows_RD[2], -rows_RD[3]]))
    assert torch.equal(found[:, 1], torch.stack([rows_RD[4] + rows_RD[0], rows_RD[1]]))
