"""From NumPy fragments to torch batches: views, no copy but the transposition of dense features and labels."""

import torch

from recoup.jagged import Batch, InverseKeyedJaggedTensor, JaggedRows
from recoup.reader.fragment import Fragment
from recoup.schema import DedupGroup


def to_batch(fragment: Fragment) -> Batch:
    """Return `fragment` as a `Batch` whose tensors view the fragment's arrays (dense and labels are copied)."""
    rows = {
        name: JaggedRows(
            values=torch.from_numpy(r.values),
            start=torch.from_numpy(r.start),
            length=torch.from_numpy(r.length),
            weights=None if r.weights is None else torch.from_numpy(r.weights),
        )
        for name, r in fragment.rows.items()
    }
    return Batch(
        dense=torch.from_numpy(fragment.dense_FB).t().contiguous(),
        labels=torch.from_numpy(fragment.labels_LB).t().contiguous(),
        sparse=InverseKeyedJaggedTensor(
            groups=tuple(DedupGroup(name=name, features=features) for name, features in fragment.groups),
            rows=rows,
            inverse={name: torch.from_numpy(inverse) for name, inverse in fragment.inverse.items()},
            num_samples=fragment.num_samples,
        ),
        time=torch.from_numpy(fragment.time),
        session=torch.from_numpy(fragment.session),
    )
