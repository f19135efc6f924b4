"""Look-ups on tables of this process equal slow sums and slow row-wise Adagrad, whatever the windows and threads."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.jagged import JaggedRows
from recoup.model import ModelError
from recoup.model.fused import FusedTable
from recoup.model.fused_kernels import list_uses, position_gradients, sort_uses
from recoup.model.own_lookup import own_lookup

RATE, EPS = 0.1, 1e-3


def made(num_rows, dim, seed):
    """Return a table of random rows and moments."""
    rng = torch.Generator().manual_seed(seed)
    lookup = SimpleNamespace(learning_rate_tensor=torch.tensor(RATE), optimizer_args=SimpleNamespace(eps=EPS))
    weight, moments = torch.randn(num_rows, dim, generator=rng), torch.rand(num_rows, generator=rng)
    return FusedTable(weight.numpy(), moments.numpy(), lookup)


def bags_of(windows, ids):
    """Return windows on one buffer."""
    start, length = torch.tensor(windows, dtype=torch.int64).view(-1, 2).unbind(1)
    return JaggedRows(values=torch.tensor(ids, dtype=torch.int64), start=start.contiguous(), length=length.contiguous())


def slow_sums(weight, bags, mean):
    """Return each bag's sum in float32, first ID to last, times the reciprocal of its length for means."""
    out = np.zeros((bags.num_rows, weight.shape[1]), dtype=np.float32)
    for u in range(bags.num_rows):
        low, size = int(bags.start[u]), int(bags.length[u])
        for n in range(low, low + size):
            out[u] += weight[bags.values[n]]
        if mean and size:
            out[u] *= np.float32(1) / np.float32(size)
    return torch.from_numpy(out)


def slow_update(table, bags, mean, grad):
    """Return rows and moments after row-wise Adagrad in float64."""
    weight, moments = torch.from_numpy(table.weight).double(), torch.from_numpy(table.moments).double()
    sums = torch.zeros_like(weight)
    for u in range(bags.num_rows):
        low, size = int(bags.start[u]), int(bags.length[u])
        for n in range(low, low + size):
            sums[bags.values[n]] += grad[u].double() / (size if mean else 1)
    moments += sums.square().mean(dim=1)
    return weight - RATE / (moments.sqrt() + EPS).unsqueeze(1) * sums, moments


windows = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(
    lists=st.lists(windows, min_size=1, max_size=3),
    num_rows=st.sampled_from([1, 7, 3000, 5_000_000]),
    dim=st.sampled_from([1, 8, 64, 80, 128]),
    mean=st.booleans(),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
    by_windows=st.booleans(),
)
def test_own_lookup_equals_slow_sums_and_adagrad(lists, num_rows, dim, mean, threads, seed, by_windows):
    """Forward has the bits of float32 sums in order; moved rows and moments equal float64, no other moves.

    Backward by windows and by bags.
    """
    if num_rows * dim > 10_000_000:
        dim = 1
    rng = np.random.default_rng(seed)
    bags = [bags_of(one, rng.choice([0, num_rows - 1, num_rows // 2, num_rows // 3], 12)) for one in lists]
    tables = [made(num_rows, dim, seed + t) for t in range(len(lists))]
    means = [mean and t % 2 == 0 for t in range(len(lists))]
    before = [(table.weight.copy(), table.moments.copy()) for table in tables]
    torch.set_num_threads(threads)
    out = own_lookup(tables, bags, means, [f"t{t}" for t in range(len(lists))])
    grad = torch.from_numpy(rng.normal(size=out.shape).astype(np.float32))
    expected = [slow_update(*x, g) for *x, g in zip(tables, bags, means, grad.split(dim, dim=1), strict=True)]
    with mock.patch("recoup.model.own_lookup._overlap", return_value=by_windows):
        out.backward(grad)
    torch.set_num_threads(1)
    stride = max(one.num_rows for one in bags)
    assert out.shape == (stride, len(lists) * dim)
    for t, part in enumerate(out.detach().split(dim, dim=1)):
        count = bags[t].num_rows
        assert torch.equal(part[:count], slow_sums(before[t][0], bags[t], means[t]))
        assert not part[count:].any()
        torch.testing.assert_close(torch.from_numpy(tables[t].weight).double(), expected[t][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.from_numpy(tables[t].moments).double(), expected[t][1], rtol=1e-5, atol=1e-7)
        used = {int(bags[t].values[n]) for low, size in lists[t] for n in range(low, low + size)}
        same = [row for row in range(min(num_rows, 9)) if row not in used]
        assert np.array_equal(tables[t].weight[same], before[t][0][same])


@given(windows=windows, dim=st.sampled_from([1, 16, 70]), seed=st.integers(0, 9))
def test_position_gradients_are_sums_over_the_windows_that_cover(windows, dim, seed):
    """Every covered position once, in order, with the float64 sum of its windows' gradients, rounded once."""
    bags = bags_of(windows, [0] * 12)
    grad = np.random.default_rng(seed).normal(size=(len(windows), dim + 3)).astype(np.float32)
    positions, slopes = position_gradients(bags.start.numpy(), bags.length.numpy(), grad, 2, dim)
    covering = {n: [u for u, (low, size) in enumerate(windows) if low <= n < low + size] for n in range(12)}
    expected = {n: grad[us, 2 : 2 + dim].astype(np.float64).sum(axis=0) for n, us in covering.items() if us}
    assert positions.tolist() == sorted(expected)
    for n, found in zip(positions.tolist(), slopes, strict=True):
        np.testing.assert_allclose(found, expected[n], rtol=1e-6, atol=1e-12)


@given(ids=st.lists(st.integers(0, 2**31 - 1), max_size=40))
def test_uses_are_ordered_by_row_and_then_as_they_came(ids):
    """The sort is stable, so that a row's gradients are added in bag order, up to 2^31 rows."""
    bags = bags_of([(n, 1) for n in range(len(ids))], ids)
    uses = sort_uses(list_uses(bags.values.numpy(), bags.start.numpy(), bags.length.numpy()), 2**31)
    assert [divmod(int(use), 2**32) for use in uses] == sorted((row, bag) for bag, row in enumerate(ids))


@pytest.mark.parametrize("bad", [-1, 5, 2**40, -(2**63)])
def test_an_id_outside_the_table_is_refused_E01(bad):
    """A bag that reads such an ID is an error that names it; an ID that no bag reads is not looked at."""
    with pytest.raises(ModelError, match=rf"expected IDs 0 \.\. 4, got {bad} \(table 'items'\)"):
        own_lookup([made(5, 4, 0)], [bags_of([(0, 1), (1, 2)], [1, 2, bad])], [False], ["items"])
    out = own_lookup([made(5, 4, 0)], [bags_of([(0, 2)], [1, 2, bad])], [False], ["items"])
    out.sum().backward()


def test_without_gradients_nothing_moves():
    """Evaluation reads and never writes."""
    table = made(5, 4, 0)
    before = table.weight.copy()
    with torch.no_grad():
        out = own_lookup([table], [bags_of([(0, 2)], [1, 2])], [False], ["t"])
    assert not out.requires_grad
    assert np.array_equal(table.weight, before)
