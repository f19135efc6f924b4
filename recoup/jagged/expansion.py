"""From unique rows back to samples: of windows to packed rows, of rows to samples.

Law: expand(dedup(x)) equals x, bit for bit, weights included.
"""

import numpy as np
import torch
from torch import Tensor

from recoup.jagged.ikjt import InverseKeyedJaggedTensor, JaggedRows
from recoup.jagged.kernels import copy_windows
from recoup.schema import DedupGroup


def offsets_of(length: Tensor) -> Tensor:
    """Return the U + 1 offsets of rows of these lengths laid back to back, int64."""
    offsets = torch.zeros(length.numel() + 1, dtype=torch.int64, device=length.device)
    torch.cumsum(length, 0, out=offsets[1:])
    return offsets


def pack_rows(rows: JaggedRows, index: Tensor | None = None) -> JaggedRows:
    """Return rows `index` of `rows` (all of them if None) laid back to back in a buffer of their own.

    Cost: O(IDs of the result); one copy. No copy if `rows` is packed already and `index` is None.
    """
    start = rows.start if index is None else rows.start[index]
    length = rows.length if index is None else rows.length[index]
    offsets = offsets_of(length)
    if index is None and is_packed(rows, offsets):
        return rows
    return JaggedRows(
        values=_gather(rows.values, start, offsets),
        start=offsets[:-1],
        length=length,
        weights=None if rows.weights is None else _gather(rows.weights, start, offsets),
    )


def is_packed(rows: JaggedRows, offsets: Tensor) -> bool:
    """Whether the rows lie back to back and cover the whole buffer."""
    return int(offsets[-1]) == rows.values.numel() and torch.equal(rows.start, offsets[:-1])


def expand(ikjt: InverseKeyedJaggedTensor) -> InverseKeyedJaggedTensor:
    """Return the same samples without repeats shared: one group "", row b is sample b, keys in the same order.

    Cost: O(IDs of all samples).
    """
    rows: dict[str, JaggedRows] = {}
    for group in ikjt.groups:
        inverse = ikjt.inverse.get(group.name)
        for key in group.features:
            rows[key] = pack_rows(ikjt.rows[key], inverse)
    return InverseKeyedJaggedTensor(
        groups=(DedupGroup(name="", features=ikjt.keys),), rows=rows, inverse={}, num_samples=ikjt.num_samples
    )


def _gather(values: Tensor, start: Tensor, offsets: Tensor) -> Tensor:
    total = int(offsets[-1])
    if values.device.type == "cpu":
        out = np.empty(total, dtype=_numpy_dtype(values))
        copy_windows(values.detach().numpy(), start.numpy(), offsets.numpy(), out)
        return torch.from_numpy(out)
    length = offsets[1:] - offsets[:-1]
    shift = torch.repeat_interleave(start - offsets[:-1], length, output_size=total)
    return values[torch.arange(total, device=values.device) + shift]


def _numpy_dtype(values: Tensor) -> "np.dtype[np.generic]":
    return np.dtype(str(values.dtype).removeprefix("torch."))
