"""Interchange with TorchRec: an IKJT as KeyedJaggedTensors, expanded or one a group, and back.

TorchRec (115 MiB of memory) is imported when a KJT is first made: a process that only reads batches does without.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recoup.jagged.expansion import offsets_of, pack_rows
from recoup.jagged.ikjt import InverseKeyedJaggedTensor, JaggedRows
from recoup.jagged.validation import check_lengths
from recoup.schema import DedupGroup

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def group_kjt(ikjt: InverseKeyedJaggedTensor, group: str, keys: Sequence[str] | None = None) -> "KeyedJaggedTensor":
    """Return the unique rows of a group as a KJT of stride U (B for the group "").

    Args:
        ikjt: the batch's sparse features.
        group: a group of it.
        keys: features of the group, in the order wanted; None = all.
    Cost: one copy of the IDs; windows are written out.
    """
    chosen = next(g for g in ikjt.groups if g.name == group).features if keys is None else tuple(keys)
    return _kjt([pack_rows(ikjt.rows[key]) for key in chosen], chosen, ikjt.num_rows(group))


def to_kjt(ikjt: InverseKeyedJaggedTensor, keys: Sequence[str] | None = None) -> "KeyedJaggedTensor":
    """Return all features, repeats written out, as an ordinary KJT of stride B."""
    chosen = ikjt.keys if keys is None else tuple(keys)
    rows = [pack_rows(ikjt.rows[key], ikjt.inverse.get(ikjt.group_of(key).name)) for key in chosen]
    return _kjt(rows, chosen, ikjt.num_samples)


def from_kjt(kjt: "KeyedJaggedTensor") -> InverseKeyedJaggedTensor:
    """Return an ordinary KJT as an IKJT with one group "" (nothing is deduplicated; see `dedup`).

    Raises:
        JaggedError: the KJT's lengths contradict its values.
    """
    keys, stride = tuple(kjt.keys()), kjt.stride()
    lengths = kjt.lengths().to(torch.int64)
    check_lengths(lengths, kjt.values().numel(), keys=len(keys), stride=stride)
    offsets = offsets_of(lengths)
    weights = kjt.weights_or_none()
    rows: dict[str, JaggedRows] = {}
    for i, key in enumerate(keys):
        low, high = int(offsets[i * stride]), int(offsets[(i + 1) * stride])
        rows[key] = JaggedRows(
            values=kjt.values()[low:high].to(torch.int64),
            start=offsets[i * stride : (i + 1) * stride] - low,
            length=lengths[i * stride : (i + 1) * stride],
            weights=None if weights is None else weights[low:high],
        )
    return InverseKeyedJaggedTensor(
        groups=(DedupGroup(name="", features=keys),), rows=rows, inverse={}, num_samples=stride
    )


def _kjt(rows: Sequence[JaggedRows], keys: Sequence[str], stride: int) -> "KeyedJaggedTensor":
    values = _cat([r.values for r in rows], torch.int64)
    lengths = _cat([r.length for r in rows], torch.int64)
    weights: Tensor | None = None
    if any(r.weights is not None for r in rows):
        ones = [torch.ones_like(r.values, dtype=torch.float32) if r.weights is None else r.weights for r in rows]
        weights = _cat(ones, torch.float32)
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    return KeyedJaggedTensor(keys=list(keys), values=values, lengths=lengths, weights=weights, stride=stride)


def _cat(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(tensors)) if tensors else torch.empty(0, dtype=dtype)
