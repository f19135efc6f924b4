"""Row-wise quantised weights for deltas: 8 or 4 bits a number, each row between its least and greatest value.

Error bound: |restored - saved| <= (greatest - least of the row) / (2 (2^bits - 1)), plus float32 rounding. Optimizer
rows stay exact. Source: Check-N-Run (NSDI 2022) for the idea of quantised deltas. Differs: plain min-max a row.
"""

from typing import Literal

import torch
from torch import Tensor

Bits = Literal[4, 8]


def quantise(weight: Tensor, bits: Bits) -> dict[str, Tensor]:
    """Return the codes uint8 [n, D] (8 bits) or [n, ceil(D / 2)] (4 bits), and `least` and `step`, float32 [n, 1]."""
    exact = weight.to(torch.float32)
    least = exact.min(dim=1, keepdim=True).values
    step = (exact.max(dim=1, keepdim=True).values - least) / (2**bits - 1)
    codes = torch.where(step > 0, (exact - least) / step, torch.zeros(())).round_().to(torch.uint8)
    if bits == 4:
        if codes.shape[1] % 2:
            codes = torch.nn.functional.pad(codes, (0, 1))
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return {"codes": codes.contiguous(), "least": least, "step": step}


def dequantise(parts: dict[str, Tensor], bits: Bits, dim: int, dtype: torch.dtype) -> Tensor:
    """Return the weights [n, D]."""
    codes = parts["codes"]
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)[:, :dim]
    return (codes.to(torch.float32) * parts["step"] + parts["least"]).to(dtype)
