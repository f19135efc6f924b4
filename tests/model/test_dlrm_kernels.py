"""The model's kernels equal slow, padded or expanded torch, forward and backward, whatever the threads."""

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recoup.core import ConfigError, from_table, to_table
from recoup.model import (
    DLRM,
    AttentionEncoder,
    DLRMConfig,
    EmbeddingTable,
    ModelError,
    TargetEncoder,
    dlrm,
    padded_attention,
    window_attention,
)
from recoup.model.interaction import DotInteraction
from recoup.schema import Schema, SparseFeature


def gradients(function, inputs, weight):
    """Return the output, and the gradients of its weighted sum."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    (out * weight).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@settings(max_examples=30, deadline=None)
@given(
    windows=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8),
    heads=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 1000),
)
def test_window_attention_equals_padded_attention(windows, heads, seed):
    """Attention on overlapping, empty and one-position windows equals float64 padded attention, gradients included."""
    rng = torch.Generator().manual_seed(seed)
    dim, num_positions, num_rows = 8, 12, len(windows)
    start = torch.tensor([low for low, _ in windows])
    length = torch.tensor([size for _, size in windows])
    inputs = [
        torch.randn(num_rows, dim, generator=rng),
        torch.randn(num_positions, 2 * dim, generator=rng),
        torch.randn(heads, 4, generator=rng),
    ]
    weight = torch.randn(num_rows, dim, generator=rng)
    found = gradients(lambda q, kv, b: window_attention(q, kv, b, start, length), inputs, weight)
    exact = gradients(
        lambda q, kv, b: padded_attention(q, kv, b, start, length), [x.double() for x in inputs], weight.double()
    )
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def test_window_attention_has_the_same_bits_with_one_thread_and_two_N01():
    """Heads are divided among threads, never a sum."""
    rng = torch.Generator().manual_seed(1)
    start, length = torch.randint(0, 50, (64,), generator=rng), torch.randint(0, 50, (64,), generator=rng)
    inputs = [torch.randn(shape, generator=rng) for shape in ((64, 16), (100, 32), (2, 9))]
    weight = torch.randn(64, 16, generator=rng)
    results = []
    before = numba.get_num_threads()
    for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(threads)
        results.append(gradients(lambda q, kv, b: window_attention(q, kv, b, start, length), inputs, weight))
    numba.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=3),
    own=st.integers(0, 3),
    dense=st.booleans(),
    concat=st.booleans(),
    num_samples=st.sampled_from([0, 1, 7]),
    dim=st.sampled_from([1, 5, 16, 40, 64]),
    spend=st.booleans(),
)
def test_interaction_on_unique_rows_equals_expansion(sizes, own, dense, concat, num_samples, dim, spend):
    """Dots taken from unique rows equal dots of expanded vectors, and so do all gradients; zero samples too."""
    rng = torch.Generator().manual_seed(len(sizes) + 10 * own)
    num_vectors = int(dense) + own + sum(f for _, f in sizes)
    if num_vectors < 2 or not (sizes or own):
        return
    inputs = [torch.randn(u, f, dim, generator=rng) for u, f in sizes]
    inverse = [torch.randint(0, u, (num_samples,), generator=rng) for u, _ in sizes]
    if own:
        inputs.append(torch.randn(num_samples, own, dim, generator=rng))
        inverse.append(None)
    if dense:
        inputs.append(torch.randn(num_samples, dim, generator=rng))
    layer = DotInteraction(num_vectors, concat=concat, has_dense=dense)
    weight = torch.randn(num_samples, layer.width(dim), generator=rng)

    def call(function):
        def inner(*tensors):
            made = [tensor.clone() for tensor in tensors]  # vectors that nobody else reads
            return function(made[-1] if dense else None, list(zip(made, inverse, strict=False)))

        return gradients(inner, inputs, weight)

    found = call(lambda *given: layer(*given, spend=spend))
    for one, other in zip(found, call(layer.expanded), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_vectors_are_spent_once():
    """A second backward through vectors that the first one wrote over is refused, never wrong."""
    layer = DotInteraction(2, concat=False, has_dense=False)
    vectors = torch.randn(3, 2, 4, requires_grad=True)
    for spend in (False, True):
        made = vectors.clone()
        total = layer(None, [(made, None)], spend=spend).sum()
        total.backward(retain_graph=True)
        if spend:
            with pytest.raises(RuntimeError, match="expected one backward"):
                total.backward()
        else:
            total.backward()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_embeddings": 0}, "num_embeddings and embedding_dim >= 1, got 0"),
        ({"features": ()}, "expected distinct features"),
        ({"name": "a.b"}, "without dots"),
        ({"init_range": -1.0}, "init_range >= 0, got -1"),
    ],
)
def test_tables_are_checked(change, match):
    """A table that cannot be is refused with its name and value."""
    with pytest.raises(ConfigError, match=match):
        EmbeddingTable(**{"name": "t", "num_embeddings": 3, "embedding_dim": 4, "features": ("f",), **change})


def test_models_are_checked():
    """Features and tables are named once, dims agree, heads divide the dim."""
    one = EmbeddingTable(name="a", num_embeddings=3, embedding_dim=4, features=("f",))
    for tables, sequences, match in (
        ((), (), "at least one table"),
        ((one, one), (), "every table once, got 'a' 2 times"),
        ((one, EmbeddingTable(name="b", num_embeddings=3, embedding_dim=8, features=("g",))), (), r"got \[4, 8\]"),
        ((one, EmbeddingTable(name="b", num_embeddings=3, embedding_dim=4, features=("f",))), (), "every feature once"),
        ((one,), (AttentionEncoder(feature="x"),), "sequence 'x'"),
        ((one,), (AttentionEncoder(feature="f", num_heads=3),), "num_heads to divide embedding_dim 4, got 3"),
        ((one,), (TargetEncoder(feature="f", candidate="f"),), r"candidate of the pooled \[\], got 'f'"),
        ((one,), (TargetEncoder(feature="f", candidate="g"),), r"candidate of the pooled \[\], got 'g'"),
    ):
        with pytest.raises(ConfigError, match=match):
            DLRMConfig(tables=tables, sequences=sequences)


def test_the_models_encoders_are_linted(monkeypatch):
    """A DLRM refuses an encoder with dropout when it is built, by path."""
    schema = Schema(key="u", labels=("y",), dense=(), sparse=(SparseFeature(name="f", group="g"),))
    tables = (EmbeddingTable(name="a", num_embeddings=3, embedding_dim=4, features=("f",)),)
    config = DLRMConfig(tables=tables, sequences=(AttentionEncoder(feature="f"),), interaction="dot_concat")
    DLRM(config, schema)
    monkeypatch.setattr(dlrm, "SequenceAttention", lambda *_: torch.nn.Sequential(torch.nn.Dropout(0.5)))
    with pytest.raises(ModelError, match=r"got Dropout at 'of_f\.0'"):
        DLRM(config, schema)


def test_sequences_are_chosen_by_kind():
    """TOML names a sequence's kind; target attention is there beside the encoder, and both read back equal."""
    tables = (EmbeddingTable(name="a", num_embeddings=3, embedding_dim=4, features=("f", "g", "h")),)
    sequences = (AttentionEncoder(feature="f"), TargetEncoder(feature="g", candidate="h", num_heads=2))
    config = DLRMConfig(tables=tables, sequences=sequences)
    assert [table["kind"] for table in to_table(config)["sequences"]] == ["attention", "target_attention"]
    assert from_table(DLRMConfig, to_table(config)) == config
    with pytest.raises(ConfigError, match="expected kind one of"):
        from_table(DLRMConfig, {**to_table(config), "sequences": [{"kind": "din", "feature": "f"}]})
