"""Pooling over windows of a shared buffer: each position is looked up once, each window is summed where it lies.

Legend: U rows, N positions of the buffers, F features, D embedding dim.

Rows of a history that shifts by one ID overlap: 5 windows of 40 IDs lie on 44 positions. Their bags repeat the IDs;
here the positions are looked up as bags of one ID and the windows are summed afterwards.
Guarantee: a window's vectors are added in float32 from the first to the last, as FBGEMM adds a bag: the same bits as
the bag's sum. A mean is that sum times the float32 reciprocal of the length. No prefix sums: their rounding grows with
the buffer. Gradients do go by running sums, in float64 and from zero again in every session: closer to exact than
float32 sums, the same bits in every run.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from recoup.jagged import JaggedRows, offsets_of
from recoup.model.pooling_kernels import pool_windows, pool_windows_backward

_IDS_A_POSITION = 7.5
"""Above it windows pay. Measured (1 core, FBGEMM CPU 1.8, D 64, 47,000 IDs in 2 features; forward, backward, update):
bags 30 ns an ID + 84 a position, windows 8 ns an ID + 250 a position; at 4.5 IDs a position 2.1 against 2.7 ms, at 8.2
1.76 against 1.58, at 20 1.61 against 1.25 (FBGEMM reads a repeated row from cache, and a bag writes one vector)."""


def windows_pay(features: Sequence[JaggedRows]) -> bool:
    """Whether looking up positions and summing windows costs less than bags of all their IDs.

    Args:
        features: the features of one look-up, one a table; positions are padded to the longest buffer.
    Cost: one sum of lengths a feature; False on a GPU, where nothing was measured.
    """
    if features[0].values.device.type != "cpu":
        return False
    num_ids = sum(int(rows.length.sum()) for rows in features)
    num_positions = len(features) * max(rows.values.numel() for rows in features)
    return num_ids > _IDS_A_POSITION * num_positions


def pool_rows(values_NX: Tensor, features: Sequence[JaggedRows], *, means: Sequence[bool]) -> Tensor:
    """Return the sum (or mean) of every window of every feature; an empty window gives zeros.

    Args:
        values_NX: float [N, F * D]; position n of feature f has the vector `values_NX[n, f * D : (f + 1) * D]`.
        features: the windows of the features; as many rows each.
        means: by feature, mean in place of sum.
    Returns:
        float [U, F * D].
    Cost: O(D * sum of lengths) forward, O(D * (N + U)) backward.
    """
    start_FU = torch.stack([rows.start for rows in features])
    length_FU = torch.stack([rows.length for rows in features])
    scale_FU = torch.stack(
        [
            rows.length.clamp(min=1).to(values_NX.dtype).reciprocal()
            if mean
            else torch.ones_like(rows.length, dtype=values_NX.dtype)
            for rows, mean in zip(features, means, strict=True)
        ]
    )
    if values_NX.device.type == "cpu" and values_NX.dtype == torch.float32:
        result = _PoolWindows.apply(values_NX, start_FU, length_FU, scale_FU)
        assert isinstance(result, Tensor)
        return result
    return gathered_pooling(values_NX, start_FU, length_FU, scale_FU)


def gathered_pooling(values_NX: Tensor, start_FU: Tensor, length_FU: Tensor, scale_FU: Tensor) -> Tensor:
    """Return the same by writing every window out; any device and dtype, memory O(D * sum of lengths)."""
    columns = []
    for values_ND, start, length, scale in zip(
        values_NX.chunk(len(start_FU), dim=1), start_FU, length_FU, scale_FU, strict=True
    ):
        offsets = offsets_of(length)
        position = torch.arange(int(offsets[-1]), device=start.device)
        position = position + torch.repeat_interleave(start - offsets[:-1], length)
        row = torch.repeat_interleave(torch.arange(len(start), device=start.device), length)
        pooled = values_ND.new_zeros(len(start), values_ND.shape[1]).index_add(0, row, values_ND[position])
        columns.append(pooled * scale.unsqueeze(1))
    return torch.cat(columns, dim=1)


class _PoolWindows(torch.autograd.Function):
    # torch declares forward and backward with *args: each function narrows them
    @staticmethod
    @override
    def forward(  # pyrefly: ignore [bad-override]
        ctx: Any, values: Tensor, start: Tensor, length: Tensor, scale: Tensor
    ) -> Tensor:
        ctx.save_for_backward(start, length, scale)
        ctx.num_positions = values.shape[0]
        out = np.zeros((start.shape[1], values.shape[1]), dtype=np.float32)
        pool_windows(values.detach().contiguous().numpy(), start.numpy(), length.numpy(), scale.numpy(), out)
        return torch.from_numpy(out)

    @staticmethod
    @override
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore [bad-override]
        start, length, scale = ctx.saved_tensors
        out = np.zeros((ctx.num_positions, grad.shape[1]), dtype=np.float32)
        pool_windows_backward(grad.detach().contiguous().numpy(), start.numpy(), length.numpy(), scale.numpy(), out)
        return torch.from_numpy(out), None, None, None
