"""Sequence encoders: a history's rows become one vector a unique row, with nothing random and nothing batch-wide.

Legend: U unique rows, N positions of the buffer, D embedding dim, H heads.

One attention layer read at its last position (what a one-layer causal transformer knows when the next item is to be
guessed, as SASRec reads it): the query comes from the last position of a row, keys and values from all of its
positions, with a learned bias by distance from the end. Keys and values depend on the position's item alone, so they
are projected once a buffer position, and windows that share positions share the work.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from recoup.model.attention import window_attention
from recoup.model.config import AttentionEncoder
from recoup.model.lookup import EmbeddedRows


class SequenceAttention(nn.Module):
    """The encoder of one history feature."""

    def __init__(self, config: AttentionEncoder, dim: int) -> None:
        """Make the layers."""
        super().__init__()
        self.config = config
        self.keys_values = nn.Linear(dim, 2 * dim)
        self.query = nn.Linear(dim, dim)
        self.distance_bias = nn.Parameter(torch.zeros(config.num_heads, config.max_length))
        self.mix = nn.Linear(dim, dim)
        hidden = config.hidden or 2 * dim
        self.feed = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    @override
    def forward(self, rows: EmbeddedRows) -> Tensor:
        """Return float32 [U, D]; zero for an empty history.

        Cost: O(N D^2) for the projections, O(U L D) for the attention, O(U D^2) for the rest.
        """
        values_ND, length_U = rows.values, rows.length
        present_U1 = (length_U > 0).unsqueeze(1)
        last_U = torch.where(length_U > 0, rows.start + length_U - 1, 0)
        if values_ND.shape[0] == 0:  # all histories empty: attend to one row of zeros, masked below
            values_ND = torch.cat([values_ND, values_ND.new_zeros(1, values_ND.shape[1])])
        last_UD = values_ND.index_select(0, last_U)
        keys_values_N2D = self.keys_values(values_ND)
        attended_UD = window_attention(self.query(last_UD), keys_values_N2D, self.distance_bias, rows.start, length_U)
        mixed_UD = last_UD + self.mix(attended_UD)
        encoded_UD = mixed_UD + self.feed(mixed_UD)
        return torch.where(present_U1, encoded_UD, 0.0)
