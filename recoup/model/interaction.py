"""The dot interaction of DLRM: every pair of a sample's vectors, once, read from unique rows where they lie.

Legend: B samples, U unique rows of a group, F vectors a sample, D embedding dim, P = F (F - 1) / 2 pairs.

On CPU a kernel takes each sample's vectors from the unique rows into the first cache, so that the [B, F, D] tensor of
expanded vectors is never written, nor its gradient: a step of 2,048 samples of 21 vectors of dim 64 spends 4 ms here
where torch.bmm with expansion takes 25 (1 core). Elsewhere rows are expanded and torch.bmm does the rest.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from recoup.jagged import expand_rows
from recoup.model.interaction_kernels import interact, interact_backward


class DotInteraction(nn.Module):
    """Dots of all pairs of vectors, after the vectors that are kept: the first (the dense one), or all."""

    def __init__(self, num_vectors: int, *, concat: bool, has_dense: bool) -> None:
        """Fix the pairs.

        Args:
            num_vectors: F.
            concat: True puts all F vectors before the dots; False only the dense one, if there is one.
            has_dense: whether vector 0 comes from dense features.
        """
        super().__init__()
        self.num_kept = num_vectors if concat else int(has_dense)
        pairs = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("flat_P", pairs[0] * num_vectors + pairs[1], persistent=False)

    def width(self, dim: int) -> int:
        """Return the number of values a sample."""
        return self.num_kept * dim + self.get_buffer("flat_P").numel()

    @override
    def forward(
        self, dense_BD: Tensor | None, groups: Sequence[tuple[Tensor, Tensor | None]], *, spend: bool = False
    ) -> Tensor:
        """Return float32 [B, width].

        Args:
            dense_BD: the dense vector; None = there are no dense features.
            groups: vectors [U, F_g, D] and inverse [B] of each dedup group; inverse None = one row a sample.
            spend: True lets backward write gradients over the vectors of the groups without inverse, which nobody else
                may read: the lines are in the first cache already (0.6 ms of 3.2 for 2,048 samples of 12 such vectors).
        """
        first = groups[0][0] if dense_BD is None else dense_BD
        if first.device.type == "cpu" and first.dtype == torch.float32:
            return _interact_unique(dense_BD, groups, self.num_kept, spend=spend)
        return self.expanded(dense_BD, groups)

    def expanded(self, dense_BD: Tensor | None, groups: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
        """Return the same by expanding rows to samples: any device and dtype."""
        parts_BFD = [] if dense_BD is None else [dense_BD.unsqueeze(1)]
        parts_BFD += [rows if inverse is None else expand_rows(rows, inverse) for rows, inverse in groups]
        vectors_BFD = torch.cat(parts_BFD, dim=1)
        dots_BFF = torch.bmm(vectors_BFD, vectors_BFD.transpose(1, 2))
        dots_BP = dots_BFF.flatten(1).index_select(1, self.get_buffer("flat_P"))
        return torch.cat([vectors_BFD[:, : self.num_kept].flatten(1), dots_BP], dim=1)


def _interact_unique(
    dense_BD: Tensor | None, groups: Sequence[tuple[Tensor, Tensor | None]], num_kept: int, *, spend: bool
) -> Tensor:
    shared = [(rows, inverse) for rows, inverse in groups if inverse is not None]
    own = [rows for rows, inverse in groups if inverse is None]
    first = own[0] if own else shared[0][0]
    dim = first.shape[2]
    num_samples = shared[0][1].shape[0] if shared else first.shape[0]
    dense_B1D = first.new_zeros(num_samples, 0, dim) if dense_BD is None else dense_BD.unsqueeze(1)
    unique_RD = torch.cat([rows.reshape(-1, dim) for rows, _ in shared]) if shared else first.new_zeros(0, dim)
    own_BFD = (own[0] if len(own) == 1 else torch.cat(own, dim=1)) if own else first.new_zeros(num_samples, 0, dim)
    inverse = torch.empty(len(shared), num_samples + 1, dtype=torch.int64)
    for g, (rows, index) in enumerate(shared):
        inverse[g, :-1] = index
        inverse[g, -1] = rows.shape[0]
    sizes = torch.tensor([rows.shape[1] for rows, _ in shared], dtype=torch.int64)
    result = _Interact.apply(dense_B1D, unique_RD, own_BFD, inverse, sizes, num_kept, spend)
    assert isinstance(result, Tensor)
    return result


class _Interact(torch.autograd.Function):
    # torch declares forward and backward with *args: each function narrows them
    @staticmethod
    @override
    def forward(  # pyrefly: ignore [bad-override]
        ctx: Any,
        dense: Tensor,
        unique: Tensor,
        own: Tensor,
        inverse: Tensor,
        sizes: Tensor,
        num_kept: int,
        spend: bool,
    ) -> Tensor:
        tensors = [x.detach().contiguous() for x in (dense, unique, own, inverse, sizes)]
        num_vectors = dense.shape[1] + int(sizes.sum()) + own.shape[1]
        width = num_kept * own.shape[2] + num_vectors * (num_vectors - 1) // 2
        out = torch.empty(dense.shape[0] * width + num_vectors + 4)
        arrays = [x.numpy() for x in tensors]
        interact(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], num_kept, out.numpy())
        ctx.save_for_backward(*tensors)
        ctx.num_kept, ctx.spend, ctx.spent = num_kept, spend, False
        return out[: dense.shape[0] * width].view(-1, width)

    @staticmethod
    @override
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore [bad-override]
        dense, unique, own, inverse, sizes = ctx.saved_tensors
        if ctx.spent:
            raise RuntimeError("expected one backward of an interaction that may spend its vectors, got a second")
        ctx.spent = ctx.spend
        grads = torch.empty_like(dense), torch.zeros_like(unique), own if ctx.spend else torch.empty_like(own)
        saved = tuple(x.numpy() for x in (dense, unique, own, inverse, sizes))
        interact_backward(saved, ctx.num_kept, grad.contiguous().numpy(), *(x.numpy() for x in grads))
        return (*grads, None, None, None, None)
