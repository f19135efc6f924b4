"""Row-wise quantised weights for deltas: 8 or 4 bits a number, each row between its least and greatest value.

Error bound: |restored - saved| <= (greatest - least of the row) / (2 (2^bits - 1)), plus the rounding of float32 (and
of the weight's own dtype). It does not add up over deltas: each holds whole weights. Optimizer rows stay exact.
Source: Check-N-Run (NSDI 2022) for the idea of quantised deltas. Differs: plain min-max a row.
"""

from typing import Literal

import torch
from torch import Tensor

Bits = Literal[4, 8]


def quantise(weight: Tensor, bits: Bits) -> dict[str, Tensor]:
    """Return the codes uint8 [n, D] (8 bits) or [n, ceil(D / 2)] (4 bits), and `least` and `step`, float32 [n, 1]."""
    exact = weight.to(torch.float64)  # the range of a float32 row may not fit float32
    least, greatest = torch.aminmax(exact, dim=1, keepdim=True)
    step = ((greatest - least) / (2**bits - 1)).to(torch.float32)
    scale = torch.where(step > 0, step.to(torch.float64), 1.0)
    codes = ((exact - least) / scale).round_().clamp_(0, 2**bits - 1).to(torch.uint8)
    if bits == 4:
        if codes.shape[1] % 2:
            codes = torch.nn.functional.pad(codes, (0, 1))
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return {"codes": codes.contiguous(), "least": least.to(torch.float32), "step": step}


def dequantise(parts: dict[str, Tensor], bits: Bits, dim: int, dtype: torch.dtype) -> Tensor:
    """Return the weights [n, D]; finite if what was saved was."""
    codes = parts["codes"]
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)[:, :dim]
    weight = codes.to(torch.float64) * parts["step"] + parts["least"]
    limits = torch.finfo(dtype)
    return weight.clamp_(limits.min, limits.max).to(dtype)
