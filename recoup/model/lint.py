"""Refuse what would make a deduplicated part differ from the plain one: chance, and dependence on the batch.

Dropout on a unique row drops the same units for all its samples; BatchNorm's statistics would count a row once instead
of once a sample. Both change the model, so they are refused unless they are wanted and named. `wrap` and `DLRM` call
this for what they run on unique rows. What a module does outside of layers (torch.nn.functional.dropout) is not seen.
"""

from collections.abc import Collection

from torch import nn

from recoup.model.errors import ModelError

_REFUSED: tuple[type[nn.Module], ...] = (
    nn.modules.dropout._DropoutNd,  # every kind of Dropout
    nn.RReLU,
    nn.modules.batchnorm._NormBase,  # BatchNorm and InstanceNorm of every dimension
)


def check_deduplicated(module: nn.Module, *, allow: Collection[str] = ()) -> None:
    """Refuse stochastic and batch-dependent layers inside a part that runs on unique rows.

    Args:
        module: the part.
        allow: paths of layers that may stay (`encoder.dropout`).
    Raises:
        ModelError: names the layer, its class and what to do.
    """
    for path, layer in module.named_modules():
        if _differs(layer) and path not in allow:
            raise ModelError(
                f"expected a deterministic, per-row layer in the deduplicated part, got {type(layer).__name__} at "
                f"'{path}': move it after the expansion, or allow it by its path"
            )


def _differs(layer: nn.Module) -> bool:
    """Whether the layer is random or depends on the batch; attention and RNNs hold their dropout as a number."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    inner = getattr(layer, "dropout", 0.0)
    return isinstance(layer, _REFUSED) or (isinstance(inner, float) and inner > 0)
