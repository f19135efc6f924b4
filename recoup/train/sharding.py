"""A model under TorchRec's DistributedModelParallel: which rank holds which table, and fused row-wise Adagrad.

One code path from one rank to many. Tables are placed whole, largest first, on the rank with the fewest bytes so far:
a pure function of the model and the number of ranks, so that every rank (also one that joins later) computes the same
plan without talking. Dense parameters are replicated; the trainer adds their gradients itself, because a wrapper that
synchronises at construction could not be built by a rank that joins later.
"""

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingPlan

from recoup.model import DLRM, DLRMConfig
from recoup.model.lookup import table_name
from recoup.train.config import TrainConfig
from recoup.train.ranks import Ranks

_COLLECTIONS = (EmbeddingBagCollection, EmbeddingCollection)


def table_ranks(model: DLRMConfig, world_size: int) -> dict[str, int]:
    """Return the rank that holds each table, by table name."""
    sizes = {table.name: table.num_embeddings * table.embedding_dim for table in model.tables}
    held = [0] * world_size
    placed: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = min(range(world_size), key=lambda rank: (held[rank], rank))
        placed[name] = rank
        held[rank] += sizes[name]
    return placed


def sharding_plan(model: DLRM, world_size: int, device: torch.device) -> ShardingPlan:
    """Return the plan that places whole tables as `table_ranks` says, with fused kernels."""
    placed = table_ranks(model.config, world_size)
    local_size = min(world_size, torch.cuda.device_count()) if device.type == "cuda" else world_size
    sharders = {sharder.module_type: sharder for sharder in _sharders(TrainConfig())}
    plan: dict[str, Any] = {}
    for path, module in _collections(model):
        rules = {
            config.name: table_wise(rank=placed[table_name(config.name)], compute_kernel="fused")
            for config in _configs(module)
        }
        plan[path] = construct_module_sharding_plan(
            module,
            rules,
            sharder=sharders[type(module)],
            local_size=local_size,
            world_size=world_size,
            device_type=device.type,
        )
    return ShardingPlan(plan)


def shard(
    model: DLRM, config: TrainConfig, ranks: Ranks, device: torch.device, plan: ShardingPlan | None = None
) -> DistributedModelParallel:
    """Return `model` under DistributedModelParallel; table rows are not set yet.

    Args:
        model: on device "meta" as far as tables go; its modules are replaced in place.
        config: optimizer of the tables.
        ranks: the group; nothing is exchanged but TorchRec's one broadcast a process.
        device: where this rank computes.
        plan: kept from an earlier build; None = `sharding_plan`.
    """
    with _quiet_torchrec():
        return DistributedModelParallel(
            model,
            env=ShardingEnv.from_process_group(ranks.group),
            device=device,
            plan=plan or sharding_plan(model, ranks.world_size, device),
            sharders=_sharders(config),
            init_data_parallel=False,
        )


def _collections(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((path, module) for path, module in model.named_modules() if isinstance(module, _COLLECTIONS))


def _configs(module: nn.Module) -> Any:  # noqa: ANN401
    if isinstance(module, EmbeddingBagCollection):
        return module.embedding_bag_configs()
    assert isinstance(module, EmbeddingCollection)
    return module.embedding_configs()


def _sharders(config: TrainConfig) -> list[ModuleSharder[nn.Module]]:
    fused: dict[str, Any] = {
        "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "learning_rate": config.table_lr,
        "eps": config.table_eps,
    }
    sharders: list[Any] = [
        EmbeddingBagCollectionSharder(fused_params=dict(fused)),
        EmbeddingCollectionSharder(fused_params=dict(fused)),
    ]
    return sharders


@contextmanager
def _quiet_torchrec() -> Generator[None]:
    """TorchRec warns once a table that CPU tables have no cache; nothing a user could act on."""
    logger = logging.getLogger("torchrec")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
