"""Law 1 in memory: expand(dedup(x)) is x; malformed input is named; gradients of the expansion are right."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recoup.jagged import (
    InverseKeyedJaggedTensor,
    JaggedError,
    JaggedRows,
    check_lengths,
    check_offsets,
    dedup,
    dedup_factor,
    drop_unused,
    expand,
    expand_rows,
    from_kjt,
    group_kjt,
    measured_factor,
    pack_rows,
    sum_rows,
    to_kjt,
    validate,
    window_factor,
)
from recoup.jagged.row_expansion import _sum_sorted
from recoup.schema import DedupGroup
from tests.jagged.oracles import distinct, samples

GROUPS = (DedupGroup(name="g", features=("a", "b")), DedupGroup(name="h", features=("c",)))


def packed(lists, weights=None):
    values = torch.tensor([x for one in lists for x in one], dtype=torch.int64)
    length = torch.tensor([len(one) for one in lists], dtype=torch.int64)
    start = torch.cumsum(length, 0) - length
    flat = None if weights is None else torch.tensor([x for one in weights for x in one], dtype=torch.float32)
    return JaggedRows(values=values, start=start, length=length, weights=flat)


def plain(columns, weights=None):
    """Return a plain batch from lists by key."""
    keys = tuple(columns)
    rows = {key: packed(columns[key], (weights or {}).get(key)) for key in keys}
    size = len(columns[keys[0]])
    return InverseKeyedJaggedTensor(
        groups=(DedupGroup(name="", features=keys),), rows=rows, inverse={}, num_samples=size
    )


lists = st.lists(st.lists(st.sampled_from([0, 1, 2, 2**62, -5]), max_size=3).map(tuple), min_size=1, max_size=4)


@st.composite
def batches(draw):
    """Plain batches whose lists come from small pools, so that rows repeat, also later (A, B, A)."""
    size = draw(st.integers(0, 12))
    columns, weights = {}, {}
    for key in ("a", "b", "c", "d"):
        pool = draw(lists)
        columns[key] = [pool[i] for i in draw(st.lists(st.integers(0, len(pool) - 1), min_size=size, max_size=size))]
    if draw(st.booleans()):
        choices = st.sampled_from([0.0, -0.0, 1.0])
        weights["a"] = [[draw(choices) for _ in one] for one in columns["a"]]
    return plain(columns, weights)


@settings(max_examples=80, deadline=None)
@given(batches())
def test_expand_of_dedup_is_the_identity_and_rows_are_distinct(batch):
    """expand(dedup(x)) = x bit for bit, weights included, with as few rows as there are distinct ones."""
    unique = dedup(batch, GROUPS)
    validate(unique)
    assert samples(unique) == samples(batch)
    back = expand(unique)
    for key in batch.keys:
        assert torch.equal(back.rows[key].values, batch.rows[key].values)
        assert torch.equal(back.rows[key].length, batch.rows[key].length)
        if batch.rows[key].weights is not None:
            bits = back.rows[key].weights.numpy().view(np.int32)
            assert (bits == batch.rows[key].weights.numpy().view(np.int32)).all()
    if batch.rows["a"].weights is None:
        for group in GROUPS:
            assert unique.num_rows(group.name) == distinct(batch, group.features)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_torchrec_sees_the_same_samples(batch):
    """to_kjt writes repeats out, group_kjt does not, from_kjt takes them back."""
    unique = dedup(batch, GROUPS)
    kjt = to_kjt(unique, batch.keys)
    again = from_kjt(kjt)
    if batch.rows["a"].weights is None:
        assert samples(again) == samples(batch)
    assert group_kjt(unique, "g").stride() == unique.num_rows("g")
    assert kjt.stride() == batch.num_samples


def test_a_row_that_comes_back_is_found():
    """A, B, A is two rows; neighbours alone would make it three."""
    batch = plain({"a": [(1, 2), (3,), (1, 2)], "b": [(), (4,), ()]})
    unique = dedup(batch, GROUPS[:1])
    assert unique.inverse["g"].tolist() == [0, 1, 0]
    assert measured_factor(unique, "g") == 1.5


def test_equal_ids_with_another_boundary_or_weight_differ():
    """[1, 2], [] and [1], [2] are different rows of a group; so are equal IDs of other weights."""
    batch = plain({"a": [(1, 2), (1,)], "b": [(), (2,)]})
    assert dedup(batch, GROUPS[:1]).num_rows("g") == 2
    weighted = plain({"a": [(1,), (1,)], "b": [(), ()]}, {"a": [(0.5,), (0.25,)]})
    assert dedup(weighted, GROUPS[:1]).num_rows("g") == 2


def test_zero_row_batch_J01():
    """A batch of zero rows splits, deduplicates and expands into zero rows, with dtypes like any other batch (J03)."""
    empty = plain({"a": [], "b": [], "c": [], "d": []})
    unique = dedup(empty, GROUPS)
    assert unique.num_rows("g") == 0
    assert samples(expand(unique)) == []
    kjt = to_kjt(unique)
    assert kjt.stride() == 0
    normal = to_kjt(dedup(plain({"a": [(1,)], "b": [()], "c": [()], "d": [(2,)]}), GROUPS))
    assert (kjt.values().dtype, kjt.lengths().dtype) == (normal.values().dtype, normal.lengths().dtype)
    assert expand_rows(torch.zeros(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.int64)).shape == (0, 4)


def test_windows_share_a_buffer_and_pack_alone():
    """Rows that share positions are written out each with its own copy; a packed feature is not copied."""
    rows = JaggedRows(values=torch.tensor([1, 2, 3, 4]), start=torch.tensor([0, 1]), length=torch.tensor([3, 3]))
    assert pack_rows(rows).values.tolist() == [1, 2, 3, 2, 3, 4]
    assert pack_rows(rows, torch.tensor([1, 1])).values.tolist() == [2, 3, 4, 2, 3, 4]
    alone = packed([(1, 2), (3,)])
    assert pack_rows(alone) is alone


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_expansion_gathers_and_its_gradient_sums(dtype):
    """Forward equals rows[inverse] to the bit; the gradient is the sum over a row's samples."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(7, 3, 2, dtype=dtype, generator=generator, requires_grad=True)
    inverse = torch.randint(0, 7, (40,), generator=generator)
    out = expand_rows(rows, inverse)
    assert torch.equal(out, rows[inverse])
    grad = torch.randn(out.shape, dtype=dtype, generator=generator)
    out.backward(grad)
    exact = torch.zeros(rows.shape, dtype=torch.float64).index_add_(0, inverse, grad.double())
    size = torch.zeros(rows.shape, dtype=torch.float64).index_add_(0, inverse, grad.double().abs())
    bound = 8 * torch.finfo(dtype).eps * size
    assert ((rows.grad.double() - exact).abs() <= bound).all()
    assert torch.equal(rows.grad, sum_rows(grad, inverse, 7))


@pytest.mark.parametrize("inverse", [[], [0, 2, 2, 0, 2, 4]])
def test_the_sum_on_any_device_equals_the_kernel(inverse):
    """Sorting by row and reducing segments gives the kernel's sums: rows without samples and no samples at all too."""
    inverse = torch.tensor(inverse, dtype=torch.int64)
    grad = torch.arange(len(inverse) * 6.0).view(-1, 3, 2)
    exact = sum_rows(grad, inverse, 5)
    assert torch.equal(_sum_sorted(grad, inverse, 5), exact)
    assert torch.equal(sum_rows(grad.to(torch.bfloat16), inverse, 5).float(), exact)  # small integers are exact


def test_expansion_passes_gradcheck():
    """The gradient agrees with finite differences in float64."""
    rows = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    inverse = torch.tensor([0, 0, 1, 4, 4, 4, 0])
    assert torch.autograd.gradcheck(lambda x: expand_rows(x, inverse), (rows,))


@pytest.mark.parametrize(
    ("lengths", "num_values", "keys", "stride", "message"),
    [
        ([1] * 2114, 2114, 20, 105, r"expected keys x batch = 20 x 105 = 2100 entries, got 2114"),
        ([1, 2, -1], 2, 1, 3, r"lengths must not be negative, got -1 at 2"),
        ([1, 2], 4, 1, 2, r"expected a sum of 4 .*got 3"),
        ([2], 1, 1, 2, r"= 2 entries, got 1"),
    ],
)
def test_wrong_lengths_are_named_J05(lengths, num_values, keys, stride, message):
    """Lengths that contradict batch or values raise an error that states both."""
    with pytest.raises(JaggedError, match=message):
        check_lengths(torch.tensor(lengths), num_values, keys=keys, stride=stride)


@pytest.mark.parametrize(
    ("offsets", "num_values", "segments", "message"),
    [
        ([0, 3, 1], 3, 2, r"offsets must not fall, got 3 then 1 at 2"),
        ([0, 3, 6737232377933725696], 3, 2, r"must end at 3 .*got 6737232377933725696"),
        ([0] * 8, 0, 8, r"expected 9 entries for 8 lists, got 8"),
        ([3, 4], 4, 1, r"offsets must start at 0, got 3"),
        ([0, -1], 0, 1, r"must not fall, got 0 then -1"),
    ],
)
def test_corrupt_offsets_are_named_J27(offsets, num_values, segments, message):
    """Corrupt offsets raise before anything is read; the message names the wrong one."""
    with pytest.raises(JaggedError, match=message):
        check_offsets(torch.tensor(offsets), num_values, segments=segments)


@settings(max_examples=60, deadline=None)
@given(batches().filter(lambda b: b.num_samples > 0), st.data())
def test_any_mutation_of_windows_or_inverse_is_refused_J27(batch, data):
    """One wrong entry of start, length, inverse or weights is found and named."""
    unique = dedup(batch, GROUPS)
    name = data.draw(st.sampled_from(["start", "length", "inverse", "extra length"]))
    key = data.draw(st.sampled_from(["a", "b", "c", "d"]))
    rows = unique.rows[key]
    place = data.draw(st.integers(0, rows.num_rows - 1))
    wrong = data.draw(st.sampled_from([-1, rows.values.numel() + 1, 2**62]))
    inverse = dict(unique.inverse)
    changed = {"start": rows.start.clone(), "length": rows.length.clone()}
    if name == "inverse":
        inverse["g"] = inverse["g"].clone()
        inverse["g"][0] = data.draw(st.sampled_from([-1, unique.num_rows("g"), 2**40]))
    elif name == "extra length":
        changed["length"] = torch.cat([changed["length"], torch.zeros(1, dtype=torch.int64)])
    else:
        changed[name][place] = wrong
    broken = InverseKeyedJaggedTensor(
        groups=unique.groups,
        rows={**unique.rows, key: JaggedRows(values=rows.values, weights=rows.weights, **changed)},
        inverse=inverse,
        num_samples=unique.num_samples,
    )
    with pytest.raises(JaggedError, match=rf"{'inverse' if name == 'inverse' else repr(key)}"):
        validate(broken)


def test_from_kjt_refuses_lengths_that_lie_J05():
    """A KJT whose lengths do not add up is refused before its values are cut."""
    kjt = KeyedJaggedTensor(keys=["a"], values=torch.arange(3), lengths=torch.tensor([1, 1]), stride=2)
    with pytest.raises(JaggedError, match="expected a sum of 3"):
        from_kjt(kjt)


def test_groups_name_features_of_the_batch():
    """A group of an unknown feature, or a feature in two groups, is refused."""
    batch = plain({"a": [(1,)], "b": [()]})
    for features in (("a", "x"), ("a", "a")):
        with pytest.raises(JaggedError, match="each once"):
            dedup(batch, (DedupGroup(name="g", features=features),))


def test_factors_have_their_limits():
    """D = 1 gives S; S large gives 1 / (1 - d); windows gain on top. Simulated: 9.3 at d = .95, S = 16.5 (RecD)."""
    assert dedup_factor(16.5, 1.0) == 16.5
    assert dedup_factor(1e9, 0.9) == pytest.approx(10, rel=1e-6)
    assert dedup_factor(16.5, 0.95) == pytest.approx(9.3, abs=0.05)
    assert window_factor(16.5, 0.75, length=40) > dedup_factor(16.5, 0.75)


@settings(max_examples=60, deadline=None)
@given(windows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=6), weighted=st.booleans())
def test_dropping_unused_positions_keeps_every_row(windows, weighted):
    """The rows are the same lists; every position left is read by a row; a fully used buffer is not copied."""
    values = torch.arange(12) * 7
    start, length = (torch.tensor([w[i] for w in windows], dtype=torch.int64) for i in (0, 1))
    rows = JaggedRows(values=values, start=start, length=length, weights=values / 2 if weighted else None)
    kept = drop_unused(rows)
    read = sorted({i for low, size in windows for i in range(low, low + size)})
    assert kept.values.tolist() == [7 * i for i in read]
    assert torch.equal(pack_rows(kept).values, pack_rows(rows).values)
    assert torch.equal(kept.length, rows.length)
    assert kept.weights is None or torch.equal(kept.weights, kept.values / 2)
    assert drop_unused(kept) is kept
