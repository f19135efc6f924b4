"""Rows to samples with a gradient: forward one gather, backward one ordered reduction instead of a hot-row scatter.

A session's samples are neighbours, so the samples of a row come in runs: the backward pass adds each run where it is
in cache. The sum's order is the sample order: the same bits every time, whatever the threads.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from recoup.jagged.kernels import sum_by_inverse


class _ExpandRows(torch.autograd.Function):
    # torch declares forward and backward with *args: each function narrows them
    @staticmethod
    @override
    def forward(ctx: Any, rows: Tensor, inverse: Tensor) -> Tensor:  # pyrefly: ignore [bad-override]
        ctx.save_for_backward(inverse)
        ctx.num_rows = rows.shape[0]
        return rows.index_select(0, inverse)

    @staticmethod
    @override
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyrefly: ignore [bad-override]
        (inverse,) = ctx.saved_tensors
        return sum_rows(grad, inverse, ctx.num_rows), None


def expand_rows(rows: Tensor, inverse: Tensor) -> Tensor:
    """Return row `inverse[b]` of `rows` for every sample b.

    Args:
        rows: float [U, ...].
        inverse: int64 [B].
    Returns:
        float [B, ...], a copy. Bit-equal to `rows[inverse]`.
    Cost: O(B * D) both ways.
    """
    result = _ExpandRows.apply(rows, inverse)
    assert isinstance(result, Tensor)
    return result


def sum_rows(grad: Tensor, inverse: Tensor, num_rows: int) -> Tensor:
    """Return the sums of the samples of every row: out[u] = sum of grad[b] over inverse[b] = u, in sample order.

    Args:
        grad: float [B, ...].
        inverse: int64 [B].
        num_rows: U.
    """
    if grad.device.type != "cpu" or grad.dtype not in (torch.float32, torch.float64):
        return _sum_sorted(grad, inverse, num_rows)
    flat = grad.detach().reshape(grad.shape[0], math.prod(grad.shape[1:])).contiguous()  # -1 fails without samples
    out = np.zeros((num_rows, flat.shape[1]), dtype=np.float32 if grad.dtype == torch.float32 else np.float64)
    sum_by_inverse(flat.numpy(), inverse.numpy(), out)
    return torch.from_numpy(out).view(num_rows, *grad.shape[1:])


def _sum_sorted(grad: Tensor, inverse: Tensor, num_rows: int) -> Tensor:
    """Do the same on any device: a stable sort of the samples by row, then one reduction a segment, no atomics."""
    if grad.numel() == 0:
        return grad.new_zeros(num_rows, *grad.shape[1:])
    order = torch.argsort(inverse, stable=True)
    lengths = torch.bincount(inverse, minlength=num_rows)
    flat = grad.reshape(grad.shape[0], -1).index_select(0, order)
    return torch.segment_reduce(flat, "sum", lengths=lengths, axis=0).view(num_rows, *grad.shape[1:])
