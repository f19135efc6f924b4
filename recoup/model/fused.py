"""The fused look-ups of a sharded model: the modules that hold this rank's rows and update them inside backward.

TorchRec keeps them in plain lists of its sharded modules, so that `model.modules()` does not reach them.
"""

from collections.abc import Iterator
from typing import Any

from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn


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
