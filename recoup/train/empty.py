"""A batch without samples: what a rank trains on when it has no more data while others have."""

import torch

from recoup.jagged import Batch, InverseKeyedJaggedTensor, JaggedRows
from recoup.schema import Schema


def empty_batch(schema: Schema) -> Batch:
    """Return zero samples of `schema`: the same tensors, dtypes and groups as any batch of it."""
    nothing = torch.zeros(0, dtype=torch.int64)
    rows = {
        feature.name: JaggedRows(
            values=nothing, start=nothing, length=nothing, weights=torch.zeros(0) if feature.weighted else None
        )
        for feature in schema.sparse
    }
    groups = schema.groups
    return Batch(
        dense=torch.zeros(0, len(schema.dense)),
        labels=torch.zeros(0, len(schema.labels)),
        sparse=InverseKeyedJaggedTensor(
            groups=groups, rows=rows, inverse={g.name: nothing for g in groups if g.name}, num_samples=0
        ),
        time=nothing,
        session=nothing,
    )
