"""A batch is a pytree: its tensors are the leaves, everything else is structure."""

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from recoup.jagged import Batch, InverseKeyedJaggedTensor, JaggedRows
from recoup.schema import DedupGroup


def small_batch():
    """Return two samples of one row, one weighted feature and one without weights."""
    start, length = torch.tensor([0]), torch.tensor([2])
    rows = {
        "a": JaggedRows(values=torch.tensor([1, 2]), start=start, length=length, weights=torch.tensor([0.5, 1.0])),
        "b": JaggedRows(values=torch.tensor([3, 4]), start=start, length=length),
    }
    sparse = InverseKeyedJaggedTensor(
        groups=(DedupGroup(name="g", features=("a", "b")),),
        rows=rows,
        inverse={"g": torch.tensor([0, 0])},
        num_samples=2,
    )
    two = torch.arange(2)
    return Batch(dense=torch.ones(2, 1), labels=torch.zeros(2, 1), sparse=sparse, time=two, session=two)


def test_a_batch_goes_through_a_pytree_and_back():
    """Every tensor is a leaf and comes back in its place; absent weights stay absent."""
    batch = small_batch()
    leaves, spec = tree_flatten(batch)
    assert len(leaves) == 4 + 4 + 3 + 1
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    back = tree_unflatten(leaves, spec)
    assert isinstance(back, Batch)
    assert back.sparse.groups == batch.sparse.groups
    assert back.sparse.num_samples == 2
    assert back.sparse.rows["b"].weights is None
    doubled = tree_map(lambda tensor: tensor * 2, batch)
    assert doubled.sparse.rows["a"].weights.tolist() == [1.0, 2.0]
    assert doubled.time.tolist() == [0, 2]
