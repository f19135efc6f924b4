"""The fused look-ups of a sharded model: the modules that hold this rank's rows and update them inside backward.

TorchRec keeps them in plain lists of its sharded modules, so that `model.modules()` does not reach them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection


class Watcher(ABC):
    """A pre-hook of fused look-ups that changes nothing; where look-ups pass FBGEMM by, it is told the rows instead."""

    @abstractmethod
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See a call of FBGEMM's look-up before it is made."""

    @abstractmethod
    def see(self, table: str, rows: Tensor) -> None:
        """See the rows of a table that are looked up, repeats included."""


class Cutter(ABC):
    """A hook of fused look-ups that may put another tensor in the place of what was found, whatever the module."""

    @abstractmethod
    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Return the tensor to go on with; None = `output` itself."""


@dataclass(frozen=True, slots=True)
class FusedTable:
    """A whole table of this process."""

    weight: npt.NDArray[np.float32]
    """[E, D], live."""
    moments: npt.NDArray[np.float32]
    """[E]: row-wise Adagrad's, live."""
    lookup: SplitTableBatchedEmbeddingBagsCodegen
    """The module that owns both, and the settings of row-wise Adagrad."""

    @property
    def watchers(self) -> list[Watcher]:
        """Who wants to know which rows are looked up."""
        return [hook for hook in self.lookup._forward_pre_hooks.values() if isinstance(hook, Watcher)]

    @property
    def cutters(self) -> list[Cutter]:
        """Who may replace what was found."""
        return [hook for hook in self.lookup._forward_hooks.values() if isinstance(hook, Cutter)]

    @property
    def rate(self) -> np.float32:
        """The learning rate now."""
        return np.float32(self.lookup.learning_rate_tensor.item())

    @property
    def eps(self) -> np.float32:
        """What is added to the root of the moment."""
        return np.float32(self.lookup.optimizer_args.eps)


def fused_lookups(model: nn.Module) -> Iterator[SplitTableBatchedEmbeddingBagsCodegen]:
    """Yield every fused look-up of `model` on this rank, each once; none where this rank holds no table."""
    seen: set[int] = set()
    for module in model.modules():
        lookups: Any = getattr(module, "_lookups", ())
        for lookup in (module, *lookups):
            for inner in lookup.modules():
                if isinstance(inner, SplitTableBatchedEmbeddingBagsCodegen) and id(inner) not in seen:
                    seen.add(id(inner))
                    yield inner


@dataclass(frozen=True, slots=True)
class OwnTables:
    """The tables of one sharded collection, as long as this process can do all that FBGEMM does.

    That is: one rank holds all tables in its memory, float32, under row-wise Adagrad without decay or clipping, and
    no hooks hang on the look-ups but watchers and cutters.
    """

    collection: ShardedEmbeddingBagCollection
    lookups: tuple[SplitTableBatchedEmbeddingBagsCodegen, ...]
    places: tuple[int, ...]
    """Where the tables were when they were found."""
    tables: dict[str, FusedTable]

    @staticmethod
    def of(collection: nn.Module) -> "OwnTables | None":
        """Return the tables by their names in TorchRec; None if FBGEMM must be asked."""
        if not isinstance(collection, ShardedEmbeddingBagCollection):
            return None
        ranked: list[Any] = [getattr(lookup, "module", lookup) for lookup in collection._lookups]
        modules = [module for lookup in ranked for module in lookup._emb_modules]
        lookups: list[Any] = [getattr(module, "_emb_module", None) for module in modules]
        if not all(isinstance(lookup, SplitTableBatchedEmbeddingBagsCodegen) for lookup in lookups):
            return None
        if not all(lookup.use_cpu and lookup.optimizer == EmbOptimType.EXACT_ROWWISE_ADAGRAD for lookup in lookups):
            return None
        tables: dict[str, FusedTable] = {}
        for module, lookup in zip(modules, lookups, strict=True):
            weights, moments = lookup.split_embedding_weights(), lookup.split_optimizer_states()
            for config, weight, (moment, *_) in zip(module._config.embedding_tables, weights, moments, strict=True):
                tables[config.name] = FusedTable(weight.detach().numpy(), moment.detach().numpy(), lookup)
        found = OwnTables(collection, tuple(lookups), _places(lookups), tables)
        return found if set(tables) == set(collection._table_names) and found.are_of(collection) else None

    def are_of(self, collection: nn.Module) -> bool:
        """Whether these are still all tables of the collection, and in the same place."""
        return (
            self.collection is collection
            and self.collection._env.world_size == 1
            and all(_is_plain(lookup) for lookup in self.lookups)
            and _places(self.lookups) == self.places
        )


def _places(lookups: Sequence[SplitTableBatchedEmbeddingBagsCodegen]) -> tuple[int, ...]:
    tensors: list[Any] = [x for lookup in lookups for x in (lookup.weights_host, lookup.momentum1_host)]
    return tuple(x.data_ptr() for x in tensors)


def _is_plain(lookup: SplitTableBatchedEmbeddingBagsCodegen) -> bool:
    """Whether a look-up does no more than what the trainer asks of it."""
    args = lookup.optimizer_args
    return (
        lookup.weights_precision == SparseType.FP32
        and lookup.output_dtype == SparseType.FP32.as_int()
        and all(isinstance(hook, Cutter) for hook in lookup._forward_hooks.values())
        and all(isinstance(hook, Watcher) for hook in lookup._forward_pre_hooks.values())
        and not (args.weight_decay or args.gradient_clipping or args.max_norm)
    )
