"""Attention of one query a row over a window of a shared buffer of keys and values.

Legend: U rows, N positions of the buffer, D = H * E with H heads of E values, L longest window.

On CPU a kernel walks each window where it lies: nothing is padded, nothing is gathered. Threads divide heads, so every
sum has one order: the same bits whatever the number of threads. Elsewhere windows are padded and torch does the rest.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from recoup.model.attention_kernels import attend, attend_backward


def window_attention(
    query_UD: Tensor, keys_values_N2D: Tensor, bias_HM: Tensor, start: Tensor, length: Tensor
) -> Tensor:
    """Return, for every row and head, the values of its window weighted by softmax(query . key / sqrt(E) + bias).

    Args:
        query_UD: one query a row.
        keys_values_N2D: keys, then values, of every position of the buffer.
        bias_HM: by head and distance from the window's end; further ones take the last.
        start: int64 [U], first position of a row's window.
        length: int64 [U]; an empty window gives zeros.
    Returns:
        float [U, D].
    Cost: O(D * sum of lengths), both ways.
    """
    if query_UD.device.type == "cpu" and query_UD.dtype == torch.float32:
        result = _WindowAttention.apply(query_UD, keys_values_N2D, bias_HM, start, length)
        assert isinstance(result, Tensor)
        return result
    return padded_attention(query_UD, keys_values_N2D, bias_HM, start, length)


def padded_attention(
    query_UD: Tensor, keys_values_N2D: Tensor, bias_HM: Tensor, start: Tensor, length: Tensor
) -> Tensor:
    """Return the same by padding every window to the longest; any device and dtype, memory O(U L D)."""
    num_rows, dim = query_UD.shape
    num_heads, num_biases = bias_HM.shape
    longest = max(int(length.max()) if num_rows else 0, 1)
    offset_L = torch.arange(longest, device=start.device)
    inside_UL = offset_L < length[:, None]
    position_UL = torch.where(inside_UL, start[:, None] + offset_L, 0)
    keys_ULHE, values_ULHE = (
        part.reshape(num_rows, longest, num_heads, dim // num_heads)
        for part in keys_values_N2D[position_UL].split(dim, dim=2)
    )
    query_UHE = query_UD.view(num_rows, num_heads, -1)
    scores_UHL = torch.einsum("uhe,ulhe->uhl", query_UHE, keys_ULHE) / math.sqrt(dim // num_heads)
    distance_UL = (length[:, None] - 1 - offset_L).clamp(0, num_biases - 1)
    scores_UHL = scores_UHL + bias_HM[:, distance_UL].transpose(0, 1)
    scores_UHL = scores_UHL.masked_fill(~inside_UL[:, None], float("-inf"))
    weights_UHL = torch.softmax(scores_UHL, dim=2).nan_to_num(0.0)
    return torch.einsum("uhl,ulhe->uhe", weights_UHL, values_ULHE).reshape(num_rows, dim)


class _WindowAttention(torch.autograd.Function):
    # torch declares forward and backward with *args: each function narrows them
    @staticmethod
    @override
    def forward(  # pyrefly: ignore [bad-override]
        ctx: Any, query: Tensor, keys_values: Tensor, bias: Tensor, start: Tensor, length: Tensor
    ) -> Tensor:
        offsets = torch.zeros(length.numel() + 1, dtype=torch.int64)
        torch.cumsum(length, 0, out=offsets[1:])
        out = np.zeros(query.shape, dtype=np.float32)
        weights = np.empty((bias.shape[0], int(offsets[-1])), dtype=np.float32)
        arrays = [x.detach().contiguous().numpy() for x in (query, keys_values, bias, start, offsets)]
        attend(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], weights, out)
        ctx.save_for_backward(query, keys_values, bias, start, offsets)
        ctx.weights = weights
        return torch.from_numpy(out)

    @staticmethod
    @override
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore [bad-override]
        query, keys_values, bias, start, offsets = ctx.saved_tensors
        grads = [np.zeros(x.shape, dtype=np.float32) for x in (query, keys_values, bias)]
        arrays = [x.detach().contiguous().numpy() for x in (query, keys_values, start, offsets, grad)]
        attend_backward(
            (arrays[0], arrays[1], arrays[4], ctx.weights), arrays[2], arrays[3], grads[0], grads[1], grads[2]
        )
        return (*(torch.from_numpy(g) for g in grads), None, None)
