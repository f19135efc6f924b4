"""Dense parameters and their optimizer, as one flat dict of tensors whose names do not depend on placement."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from recoup.train.config import TrainConfig
from recoup.train.errors import TrainError
from recoup.train.ranks import Ranks

_MODEL = "model/"
_OPTIMIZER = "optimizer/"


class DenseParameters:
    """The replicated parameters of a model: their optimizer, their gradients' sum, their state."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], config: TrainConfig, ranks: Ranks) -> None:
        """Make the optimizer with its whole state, so that a state saved before the first step is complete."""
        self._parameters = dict(named)
        self.ranks = ranks
        self.optimizer = _optimizer(list(self._parameters.values()), config)

    def zero_grad(self) -> None:
        """Forget gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Average gradients over ranks, then update; a parameter without gradient has gradient zero."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.ranks.world_size > 1:
            self._average()
        self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """Return copies of parameters (`model/<name>`) and optimizer state (`optimizer/<name>/<state>`)."""
        return {key: tensor.detach().clone() for key, tensor in self._live().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Set everything from what `state` returned.

        Raises:
            TrainError: a tensor is absent, left over, or of another shape or dtype; nothing is changed.
        """
        live = self._live()
        if set(live) != set(state):
            wrong = sorted(set(live) ^ set(state))[0]
            raise TrainError(
                f"expected the dense state of this model and optimizer, got one with {wrong!r} "
                f"{'left over' if wrong in state else 'absent'}: resume with the settings it was saved with"
            )
        for key, tensor in live.items():
            if state[key].shape != tensor.shape or state[key].dtype != tensor.dtype:
                raise TrainError(
                    f"expected {key!r} of shape {list(tensor.shape)} and {tensor.dtype}, "
                    f"got {list(state[key].shape)} and {state[key].dtype}: nothing is cast or cut silently"
                )
        with torch.no_grad():
            for key, tensor in live.items():
                tensor.copy_(state[key])

    def first_not_finite(self) -> str:
        """Return the name of a parameter or optimizer tensor that holds NaN or infinity; "" if none does."""
        return next((key for key, tensor in self._live().items() if not bool(torch.isfinite(tensor).all())), "")

    def _live(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {_MODEL + name: parameter for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"{_OPTIMIZER}{name}/{key}"] = value
        return tensors

    def _average(self) -> None:
        """One all-reduce of all gradients, in one buffer."""
        grads = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        self.ranks.sum(flat).div_(self.ranks.world_size)
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))


def _optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    if config.dense_optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.dense_lr)
    if config.dense_optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=config.dense_lr)
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
    adam = torch.optim.Adam(parameters, lr=config.dense_lr, fused=on_cpu, foreach=not on_cpu)
    for parameter in parameters:
        adam.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adam
