"""Recovery attached to a TorchRec job of one's own: priority saves, a lost shard, partial recovery. Synthetic data."""

import logging
import tempfile

logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torchrec  # noqa: E402
from torchrec.distributed.model_parallel import DistributedModelParallel  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402

from recoup.checkpoint import CheckpointStore, ShardPlan  # noqa: E402
from recoup.checkpoint.policies import MFU  # noqa: E402
from recoup.recovery import attach  # noqa: E402

ROWS, BATCH, STEPS = 5_000, 256, 60
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)

# The user's own model, sharded as usual.
config = torchrec.EmbeddingBagConfig(name="films", num_embeddings=ROWS, embedding_dim=16, feature_names=["item"])
bags = torchrec.EmbeddingBagCollection(tables=[config], device=torch.device("meta"))
apply_optimizer_in_backward(torchrec.optim.RowWiseAdagrad, bags.parameters(), {"lr": 0.05})
model = DistributedModelParallel(torch.nn.ModuleDict({"bags": bags, "top": torch.nn.Linear(16, 1)}))
top = model.module["top"]
optimizer = torch.optim.SGD(top.parameters(), lr=0.05)

# Attached: eight shards by hash, most frequently used rows saved first.
plan = ShardPlan.by_hash({"films": ROWS}, num_shards=8)
store = CheckpointStore(tempfile.mkdtemp(), "my-job", plan)
job = attach(model, store, MFU({"films": ROWS}), total_samples=STEPS * BATCH)
job.save(top.state_dict())

for step in range(1, STEPS + 1):
    items = (torch.rand(BATCH) ** 3 * ROWS).long()  # some items are hot
    kjt = torchrec.KeyedJaggedTensor(keys=["item"], values=items, lengths=torch.ones(BATCH, dtype=torch.int64))
    logits = top(model.module["bags"](kjt).wait().values()).squeeze(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, (items % 3 == 0).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    job.step_done(BATCH)
    if step % 10 == 0:
        job.save_first(top.state_dict())  # in the background
    if step == 45:
        lost = plan.rows_of("films", 2)
        job.views["films"].weight[lost] = 0  # shard 2 dies
        done = job.recover([2])
        print(f"step {step}: {done.recovery} recovery of {lost.numel()} rows, PLS {job.ledger.pls:.4f}")
job.close()
print(f"finished {job.step} steps, loss {loss.item():.3f}")
