"""The dot interaction of DLRM: every pair of a sample's vectors, once.

Legend: B samples, F vectors a sample, D embedding dim, P = F (F - 1) / 2 pairs.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override


class DotInteraction(nn.Module):
    """Dots of all pairs of vectors, after the vectors of `keep`: the first (the dense one), or all."""

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
        assert isinstance(self.flat_P, Tensor)
        return self.num_kept * dim + self.flat_P.numel()

    @override
    def forward(self, vectors_BFD: Tensor) -> Tensor:
        """Return float32 [B, width]."""
        assert isinstance(self.flat_P, Tensor)
        dots_BFF = torch.bmm(vectors_BFD, vectors_BFD.transpose(1, 2))
        dots_BP = dots_BFF.flatten(1).index_select(1, self.flat_P)
        kept = vectors_BFD[:, : self.num_kept].flatten(1)
        return torch.cat([kept, dots_BP], dim=1)
