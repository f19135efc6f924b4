"""Put the update of the tables off until every exchange of the step is over, so that a step is applied whole or not.

FBGEMM updates a table's rows inside backward, between exchanges: a rank that dies in the middle of a step would leave
some survivors with the step applied and others without. Here the output of every fused look-up is cut from the graph:
backward (and all its exchanges) ends at the cut, and the update runs from there afterwards, on this rank alone.
The last exchange of a step is the sum of the dense gradients; a rank that comes out of it proves that every rank has
gone into it with all its table gradients in hand. So after a failure either some survivor has finished the step, and
the others can finish it too (`apply`, and the dense part from that survivor), or none has, and nothing was changed.
Cost: nothing is copied; the update is the same kernel on the same gradients, to the bit.
"""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from recoup.model import Cutter, fused_lookups


class DeferredUpdates:
    """Hold the table updates of the step in progress."""

    def __init__(self, model: nn.Module) -> None:
        """Cut the output of every fused look-up in `model`, in training only."""
        self._pending: list[tuple[Tensor, Tensor]] = []
        cutter = _Cut(self._pending)
        for lookup in fused_lookups(model):
            lookup.register_forward_hook(cutter)

    def discard(self) -> None:
        """Forget the step in progress; no row has changed."""
        self._pending.clear()

    def apply(self) -> None:
        """Update the rows by the gradients that backward left at the cuts."""
        pending = list(self._pending)
        self.discard()
        ready = [(output, cut.grad) for output, cut in pending if cut.grad is not None]
        if ready:
            torch.autograd.backward([output for output, _ in ready], [grad for _, grad in ready])


class _Cut(Cutter):
    def __init__(self, pending: list[tuple[Tensor, Tensor]]) -> None:
        self._pending = pending

    @override
    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        del module, args
        if not (torch.is_grad_enabled() and output.requires_grad):
            return None
        cut = output.detach().requires_grad_()
        self._pending.append((output, cut))
        return cut
