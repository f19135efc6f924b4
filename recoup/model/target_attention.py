"""Target attention: each sample's candidate attends to its history; keys and values are projected on unique positions.

Legend: B samples, U unique rows, N positions of the buffer, D embedding dim.

A sample's history is a window of the buffer that its row shares with other samples. Keys and values are projected once
a position; a sample's query reads its row's window where it lies, so no history is ever expanded.
Source: Deep Interest Network (Zhou et al., KDD 2018). Differs: scaled dot product and softmax in place of DIN's MLP.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from recoup.model.attention import window_attention
from recoup.model.config import TargetEncoder
from recoup.model.lookup import EmbeddedRows


class TargetAttention(nn.Module):
    """Candidate and history become one vector a sample."""

    def __init__(self, config: TargetEncoder, dim: int) -> None:
        """Make the projections and a bias by distance from the history's end."""
        super().__init__()
        self.config = config
        self.keys_values = nn.Linear(dim, 2 * dim)
        self.query = nn.Linear(dim, dim)
        self.distance_bias = nn.Parameter(torch.zeros(config.num_heads, config.max_length))

    @override
    def forward(self, candidate_BD: Tensor, rows: EmbeddedRows, inverse_B: Tensor | None) -> Tensor:
        """Return float32 [B, D]; zero for a sample whose history is empty.

        Args:
            candidate_BD: the candidate's vector of every sample.
            rows: the history's positions, and the windows of its U unique rows.
            inverse_B: int64 [B], the row of every sample; None = row b is sample b.
        Cost: O(N D^2) projections, O(B L D) attention, whatever a row's repeats.
        """
        start_B = rows.start if inverse_B is None else rows.start[inverse_B]
        length_B = rows.length if inverse_B is None else rows.length[inverse_B]
        values_ND = rows.values
        if values_ND.shape[0] == 0:
            values_ND = torch.cat([values_ND, values_ND.new_zeros(1, values_ND.shape[1])])
        keys_values_N2D = self.keys_values(values_ND)
        read_BD = window_attention(self.query(candidate_BD), keys_values_N2D, self.distance_bias, start_B, length_B)
        return torch.where((length_B > 0).unsqueeze(1), read_BD, 0.0)
