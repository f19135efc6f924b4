"""What a TorchRec user writes: KeyedJaggedTensors of stride B, TorchRec's own DLRM parts, fused row-wise Adagrad.

The same model as `recoup.model.DLRM` (weights are copied from it), every repeat looked up, pooled, encoded and
multiplied for every sample. Under DistributedModelParallel with the same plan, sharders and optimizer settings.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, PoolingType
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from recoup.jagged import Batch, to_kjt
from recoup.model import DLRMConfig, EmbeddedRows, SequenceAttention
from recoup.model.lookup import table_name
from recoup.schema import Schema
from recoup.train import Ranks, TrainConfig, Trainer
from recoup.train.sharding import _quiet_torchrec, _sharders


@dataclass(frozen=True)
class KJTBatch:
    """A batch as TorchRec takes it."""

    dense: Tensor
    labels: Tensor
    pooled: KeyedJaggedTensor
    sequences: KeyedJaggedTensor | None

    @staticmethod
    def of(batch: Batch, config: DLRMConfig) -> "KJTBatch":
        encoded = [sequence.feature for sequence in config.sequences]
        pooled = [feature for feature in config.features if feature not in encoded]
        return KJTBatch(
            dense=batch.dense,
            labels=batch.labels[:, 0],
            pooled=to_kjt(batch.sparse, pooled),
            sequences=to_kjt(batch.sparse, encoded) if encoded else None,
        )

    def num_bytes(self) -> int:
        """Return the size of the tensors."""
        kjts = [self.pooled] if self.sequences is None else [self.pooled, self.sequences]
        tensors = [self.dense, self.labels, *(t for kjt in kjts for t in (kjt.values(), kjt.lengths()))]
        return sum(t.numel() * t.element_size() for t in tensors)


class KJTModel(nn.Module):
    """DenseArch, EmbeddingBagCollection, InteractionArch, OverArch; histories by EmbeddingCollection or by bags."""

    def __init__(self, config: DLRMConfig, schema: Schema, *, bags_of_one: bool) -> None:
        super().__init__()
        dim = config.embedding_dim
        self.encoded = [sequence.feature for sequence in config.sequences]
        self.bags_of_one = bags_of_one
        meta = torch.device("meta")
        pooled = [t for t in config.tables if t.features[0] not in self.encoded]
        histories = [t for t in config.tables if t.features[0] in self.encoded]
        self.features = [t.features[0] for t in pooled]
        self.pooled = EmbeddingBagCollection(tables=[_bag(t) for t in pooled], device=meta)
        self.rows = None
        if histories and bags_of_one:
            self.rows = EmbeddingBagCollection(tables=[_bag(t) for t in histories], device=meta)
        elif histories:
            self.rows = EmbeddingCollection(
                tables=[
                    EmbeddingConfig(
                        name=f"table_{t.name}",
                        num_embeddings=t.num_embeddings,
                        embedding_dim=dim,
                        feature_names=list(t.features),
                        init_fn=_leave,
                    )
                    for t in histories
                ],
                device=meta,
            )
        self.encoders = nn.ModuleDict({f"of_{s.feature}": SequenceAttention(s, dim) for s in config.sequences})
        self.dense_arch = DenseArch(len(schema.dense), [*config.bottom_mlp, dim])
        num_features = len(config.features)
        self.interaction = InteractionArch(num_features)
        width = dim + num_features * (num_features + 1) // 2
        self.over = OverArch(width, [*config.top_mlp, 1])

    def forward(self, batch: KJTBatch) -> Tensor:
        dense_BD = self.dense_arch(batch.dense)
        found = self.pooled(batch.pooled)
        rows = None if self.rows is None else self._ask(batch.sequences)
        values = found.values() if hasattr(found, "values") else found.wait().values()
        vectors_BFD = values.view(dense_BD.shape[0], len(self.features), -1)
        if rows is not None:
            encoded = [self.encoders[f"of_{f}"](rows(f)) for f in self.encoded]
            vectors_BFD = torch.cat([torch.stack(encoded, dim=1), vectors_BFD], dim=1)
        return self.over(self.interaction(dense_BD, vectors_BFD)).squeeze(1)

    def _ask(self, kjt):
        batch_size = kjt.stride()
        if not self.bags_of_one:
            found = self.rows(kjt)

            def rows_of(feature):
                jagged = found[feature]
                return EmbeddedRows(jagged.values(), jagged.offsets()[:-1].long(), jagged.lengths().long())

            return rows_of
        counts = kjt.length_per_key()
        longest = max(counts)
        ones = torch.zeros(len(counts), longest, dtype=torch.int64)
        for i, count in enumerate(counts):
            ones[i, :count] = 1
        flat = KeyedJaggedTensor(keys=list(kjt.keys()), values=kjt.values(), lengths=ones.flatten(), stride=longest)
        found = self.rows(flat)
        by_key = dict(zip(kjt.keys(), found.values().split(found.length_per_key(), dim=1), strict=True))
        lengths = kjt.lengths().view(len(counts), batch_size).long()

        def rows_of(feature):
            length = lengths[kjt.keys().index(feature)]
            return EmbeddedRows(by_key[feature], torch.cumsum(length, 0) - length, length)

        return rows_of


class KJTTrainer:
    """Steps of the baseline: forward, loss, backward with the fused update, Adam on the dense part."""

    def __init__(self, ours: Trainer, *, bags_of_one: bool = False) -> None:
        """Build it with the weights that `ours` has now."""
        config, train = ours.model_config, ours.config
        model = KJTModel(config, ours.schema, bags_of_one=bags_of_one)
        copy_dense(ours, model)
        self.model = _shard(model, train)
        views = ours.table_views()
        for path, value in self.model.state_dict().items():
            if hasattr(value, "local_shards"):
                value.local_shards()[0].tensor.copy_(views[table_name(path.split(".")[-2])].weight)
        dense = [p for name, p in self.model.named_parameters() if not name.startswith(("pooled.", "rows."))]
        self.optimizer = torch.optim.Adam(dense, lr=train.dense_lr, foreach=True)

    def step(self, batch: KJTBatch) -> float:
        self.model.train()
        loss = binary_cross_entropy_with_logits(self.model(batch), batch.labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def copy_dense(ours: Trainer, model: KJTModel) -> None:
    """Give the baseline the same dense weights; the first top layer's columns follow TorchRec's order of pairs."""
    state = {key.removeprefix("model/"): value for key, value in ours.dense_state().items() if key.startswith("model/")}
    with torch.no_grad():
        for target, source in ((model.dense_arch, "bottom"), (model.over, "top")):
            wanted = [p for p in target.parameters()]
            given = [value for key, value in _in_order(state, source)]
            for p, value in zip(wanted, given, strict=True):
                p.copy_(value)
        for name, p in model.encoders.named_parameters():
            p.copy_(state[f"encoders.{name}"])
        first = next(model.over.parameters())
        first.copy_(first[:, _columns(ours, model)])


def _in_order(state, prefix):
    keys = [key for key in state if key.startswith(prefix + ".")]
    return [(key, state[key]) for key in sorted(keys, key=lambda k: (int(k.split(".")[1]), k.endswith("bias")))]


def _columns(ours: Trainer, model: KJTModel) -> Tensor:
    """Return, for each of TorchRec's columns, ours: dense vector, then pairs of (dense, features) by triu."""
    dlrm = ours.model.module
    mine = ["dense"]
    for group in dlrm._groups:
        mine += [f for f in group.features if f not in model.encoded]
        mine += [f for f in group.features if f in model.encoded]
    theirs = ["dense", *model.encoded, *model.features]
    place = {}
    count = 0
    for i in range(len(mine)):
        for j in range(i):
            place[frozenset((mine[i], mine[j]))] = count
            count += 1
    dim = ours.model_config.embedding_dim
    first, second = model.interaction.triu_indices
    pairs = [dim + place[frozenset((theirs[i], theirs[j]))] for i, j in zip(first, second, strict=True)]
    return torch.tensor([*range(dim), *pairs])


def _bag(table) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=f"table_{table.name}",
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        feature_names=list(table.features),
        pooling=PoolingType.SUM,
        init_fn=_leave,
    )


def _leave(weight: Tensor) -> None:
    del weight


def _shard(model: KJTModel, train: TrainConfig) -> DistributedModelParallel:
    device = torch.device("cpu")
    ranks = Ranks.join(device)
    sharders = {s.module_type: s for s in _sharders(train)}
    plan = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            bags = isinstance(module, EmbeddingBagCollection)
            configs = module.embedding_bag_configs() if bags else module.embedding_configs()
            plan[path] = construct_module_sharding_plan(
                module,
                {c.name: table_wise(rank=0, compute_kernel="fused") for c in configs},
                sharder=sharders[type(module)],
                local_size=1,
                world_size=1,
                device_type="cpu",
            )
    with _quiet_torchrec():
        return DistributedModelParallel(
            model,
            env=ShardingEnv.from_process_group(ranks.group),
            device=device,
            plan=ShardingPlan(plan),
            sharders=_sharders(train),
            init_data_parallel=False,
        )
