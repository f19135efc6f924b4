"""Quantised deltas: within the stated bound, smaller, never where exactness is due, finite always."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.checkpoint import StoreConfig, TableView
from recoup.checkpoint.quantise import dequantise, quantise
from tests.checkpoint.builders import contents, make_store, make_views, request, same

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    st.integers(1, 7).flatmap(
        lambda dim: st.lists(st.lists(NUMBERS, min_size=dim, max_size=dim), min_size=1, max_size=4)
    ),
    st.sampled_from([4, 8]),
)
@settings(max_examples=150, deadline=None)
def test_error_is_within_the_bound(rows, bits):
    """|restored - saved| <= range of the row / (2 (2^bits - 1)) plus rounding of float32; odd dims, any magnitude."""
    weight = torch.tensor(rows, dtype=torch.float32)
    back = dequantise(quantise(weight, bits), bits, weight.shape[1], torch.float32)
    exact = weight.double()
    span = (exact.max(dim=1).values - exact.min(dim=1).values)[:, None]
    bound = span / (2 * (2**bits - 1)) + 1e-6 * exact.abs().max(dim=1).values[:, None] + 1e-36
    assert torch.isfinite(back).all()
    assert ((back.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
def test_largest_values_stay_finite(dtype, bits):
    """The extremes of each dtype come back finite."""
    limits = torch.finfo(dtype)
    weight = torch.tensor([[limits.min, 0.0, limits.max], [limits.max] * 3], dtype=dtype)
    back = dequantise(quantise(weight, bits), bits, 3, dtype)
    assert torch.isfinite(back.float()).all()
    assert torch.equal(back[1], weight[1])


@pytest.mark.parametrize("bits", [4, 8])
def test_deltas_are_lossy_bases_and_asked_for_saves_exact(tmp_path, bits):
    """Deltas of a quantising store keep the bound, optimizer rows exact; bases and `exact` saves are bit for bit."""
    store, views = make_store(tmp_path, config=StoreConfig(quantise_bits=bits, max_chain=2)), make_views()
    assert store.save(request(views, 1)).exact
    found = make_views(seed=9)
    store.restore(found)
    assert same(found, contents(views))
    rows = {"users": torch.arange(0, 97, 2), "items": torch.arange(40)}
    for number in (2, 3, 4):  # the last one merges the chain into a base, which stays within the bound of one delta
        for name in rows:
            views[name].weight.mul_(1.1)
            views[name].optimizer["momentum1"].add_(1.0)
        manifest = store.save(request(views, number, rows=rows))
        assert not manifest.exact
        store.restore(found)
        for name, chosen in rows.items():
            live, back = views[name].weight[chosen], found[name].weight[chosen]
            span = live.max(dim=1).values - live.min(dim=1).values
            assert ((live - back).abs() <= span[:, None] / (2 * (2**bits - 1)) + 1e-6).all()
            assert not torch.equal(live, back)
            assert torch.equal(views[name].optimizer["momentum1"][chosen], found[name].optimizer["momentum1"][chosen])
    assert {entry.kind for entry in manifest.entries} == {"base"}
    everything = {name: torch.arange(view.num_rows_total) for name, view in views.items()}
    store.save(request(views, 5, rows=everything, exact=True))
    store.restore(found)
    assert same(found, contents(views))
    assert store.save(request(views, 6)).exact


def test_quantised_deltas_are_smaller(tmp_path):
    """At dim 64 an 8-bit delta is below 0.36 of an exact one and a 4-bit delta below 0.24, row numbers included."""
    total = 4000
    weight = torch.randn(total, 64)
    view = TableView(name="t", weight=weight, optimizer={"m": torch.rand(total)}, first_row=0, num_rows_total=total)
    sizes = {}
    for bits in (0, 4, 8):
        store = make_store(tmp_path, run_id=f"bits{bits}", shards=1, config=StoreConfig(quantise_bits=bits))
        store.plan = type(store.plan).by_range({"t": total}, 1)
        store.save(request({"t": view}, 1))
        sizes[bits] = store.save(request({"t": view}, 2, rows={"t": torch.arange(0, total, 8)})).entries[-1].file.bytes
    assert sizes[8] < 0.36 * sizes[0]
    assert sizes[4] < 0.24 * sizes[0]
