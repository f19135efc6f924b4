"""Multi-layer perceptrons, seeded by name so that a model's start does not depend on construction order."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from recoup.core import derive_seed


def mlp(sizes: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Return linear layers from sizes[0] to sizes[-1] with ReLU between them, and after them if `last_relu`."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(fan_in, fan_out))
        if last_relu or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def seed_parameters(module: nn.Module, seed: int) -> None:
    """Draw every dense parameter anew, each from its own stream of (seed, name).

    Matrices are normal with variance 2 / (fan in + fan out), biases normal with variance 1 / fan out (as DLRM does);
    other vectors keep the value their module gave them.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.is_meta:
                continue  # a table: drawn when it is sharded
            rng = torch.Generator().manual_seed(derive_seed(seed, "dense", name))
            if parameter.dim() >= 2:
                fan_out, fan_in = parameter.shape[0], parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=rng) * math.sqrt(2 / (fan_in + fan_out)))
            elif name.endswith("bias") and bool(parameter.any()):
                parameter.copy_(torch.randn(parameter.shape, generator=rng) * math.sqrt(1 / parameter.numel()))
