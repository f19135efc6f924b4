"""Deduplicate row-per-sample batches of a foreign reader: neighbours first, then a hash of run heads that is verified.

A batch from a session table never comes here: its inverse comes from the file. Equality is exact over all features of
a group, weights included, and A, B, A is found. Cost is linear in the IDs.
Law: expand(dedup(x)) equals x, bit for bit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from recoup.jagged import equality
from recoup.jagged.errors import JaggedError
from recoup.jagged.expansion import expand, offsets_of, pack_rows
from recoup.jagged.ikjt import InverseKeyedJaggedTensor, JaggedRows
from recoup.jagged.interchange import from_kjt
from recoup.jagged.kernels import Array
from recoup.schema import DedupGroup

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def dedup(
    batch: "KeyedJaggedTensor | InverseKeyedJaggedTensor", groups: Sequence[DedupGroup]
) -> InverseKeyedJaggedTensor:
    """Return the batch with each distinct row of every group once.

    Args:
        batch: B samples, on the CPU; an IKJT is expanded first.
        groups: what to deduplicate together; features in none of them stay as they are (group "").
    Raises:
        JaggedError: a group names a feature that the batch does not have, or one twice.
    Cost: O(IDs): one comparison of neighbours, one hash a run head, one copy of the unique rows.
    """
    plain = expand(batch) if isinstance(batch, InverseKeyedJaggedTensor) else from_kjt(batch)
    grouped = [key for group in groups for key in group.features]
    for key in grouped:
        if key not in plain.rows or grouped.count(key) > 1:
            raise JaggedError(f"groups: expected features of {list(plain.keys)}, each once, got {key!r}")
    rows: dict[str, JaggedRows] = {}
    inverse: dict[str, Tensor] = {}
    for group in groups:
        packed = {key: pack_rows(plain.rows[key]) for key in group.features}
        inverse[group.name], first = _unique(list(packed.values()), plain.num_samples)
        for key, one in packed.items():
            rows[key] = pack_rows(one, first)
    rest = tuple(key for key in plain.keys if key not in grouped)
    rows |= {key: plain.rows[key] for key in rest}
    every = (*groups, DedupGroup(name="", features=rest)) if rest else tuple(groups)
    return InverseKeyedJaggedTensor(groups=every, rows=rows, inverse=inverse, num_samples=plain.num_samples)


def _unique(features: Sequence[JaggedRows], num_samples: int) -> tuple[Tensor, Tensor]:
    """Return the inverse int64 [B] and a sample that holds each unique row, int64 [U], in order of first use."""
    head = np.zeros(num_samples, dtype=np.bool_)
    first_row = np.zeros(num_samples, dtype=np.bool_)
    first_row[:1] = True
    parts = [_flat(rows) for rows in features]
    for values, weights, offsets in parts:
        equality.differs_from_previous(values, weights, offsets, first_row, head)
    hashes = np.zeros(num_samples, dtype=np.uint64)
    for values, weights, offsets in parts:
        equality.add_hashes(values, weights, offsets, head, hashes)
    bounds = np.array([0, num_samples], dtype=np.int64)
    proposed = np.empty(num_samples, dtype=np.int64)
    equality.propose(bounds, head, hashes, proposed)
    for values, weights, offsets in parts:
        equality.refuse_unequal(values, weights, offsets, proposed)
    inverse = np.empty(num_samples, dtype=np.int32)
    sample = np.empty(int(head.sum()), dtype=np.int64)
    count = equality.number_versions(bounds, head, proposed, inverse, sample, np.empty(2, dtype=np.int64))
    return torch.from_numpy(inverse.astype(np.int64)), torch.from_numpy(sample[:count])


def _flat(rows: JaggedRows) -> tuple[Array, Array, Array]:
    weights = np.zeros(0, dtype=np.int32)
    if rows.weights is not None:
        weights = rows.weights.contiguous().numpy().view(np.int32)
    return rows.values.numpy(), weights, offsets_of(rows.length).numpy()
