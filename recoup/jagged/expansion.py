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


def drop_unused(rows: JaggedRows) -> JaggedRows:
    """Return the same rows on a buffer without the positions that no row reads; `rows` itself if there are none.

    A list cut to its last IDs leaves positions behind: they are neither looked up nor checked.
    Cost: O(U + N).
    """
    num_positions = rows.values.numel()
    filled = rows.length > 0
    ends = torch.zeros(num_positions + 1, dtype=torch.int64, device=rows.values.device)
    ends.index_add_(0, torch.where(filled, rows.start, num_positions), torch.ones_like(rows.start))
    ends.index_add_(0, torch.where(filled, rows.start + rows.length, num_positions), -torch.ones_like(rows.start))
    used = torch.cumsum(ends, 0)[:-1] > 0
    if bool(used.all()):
        return rows
    place = torch.cumsum(used, 0) - 1
    start = torch.zeros_like(rows.start)
    start[filled] = place[rows.start[filled]]
    return JaggedRows(
        values=rows.values[used],
        start=start,
        length=rows.length,
        weights=None if rows.weights is None else rows.weights[used],
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
