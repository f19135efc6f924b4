"""Attach recovery to a TorchRec job of one's own: trackers, priority saves, the ledger, and one shard's return.

Nothing of Recoup's reader or model is needed: a DistributedModelParallel with fused tables, a store and a policy. The
job calls `step_done` after every step; everything else is asked for.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel

from recoup.checkpoint import CheckpointStore, Manifest, Restored, SaveRequest, TableView
from recoup.checkpoint.policies import SAVE_FRACTION, RowPolicy
from recoup.core import EventLog
from recoup.recovery import POSITION, FailureNotice, GuardConfig, Ledger, Recovered, recover
from recoup.runtime.errors import JobError
from recoup.runtime.lookups import fused_lookups
from recoup.train.views import table_views


class Attached:
    """A user's job with a store, a policy and a ledger."""

    def __init__(
        self,
        model: DistributedModelParallel,
        store: CheckpointStore,
        policy: RowPolicy | None,
        total_samples: int,
        *,
        guard: GuardConfig | None = None,
        events: EventLog | None = None,
    ) -> None:
        """Watch the model's look-ups; nothing is saved yet."""
        self.store = store
        self.policy = policy
        self.ledger = Ledger(store.plan.num_shards, total_samples)
        self.step = 0
        self.num_samples = 0
        self.views: dict[str, TableView] = table_views(model)
        self._guard = guard or GuardConfig()
        self._events = events or EventLog()
        if policy is not None:
            for lookup in fused_lookups(model):
                lookup.register_forward_pre_hook(self._observe, with_kwargs=True)

    def step_done(self, num_samples: int) -> None:
        """Count a step of `num_samples` samples (over all ranks)."""
        self.step += 1
        self.num_samples += num_samples

    def save(self, dense: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None) -> Manifest:
        """Save every row, the dense tensors and the plain state; returns when it is committed."""
        manifest = self.store.save(self._request(dense, extra, None))
        for table, view in self.views.items():
            if self.policy is not None:
                self.policy.saved(table, torch.arange(view.num_rows_total))
        self.ledger.saved(self.num_samples)
        return manifest

    def save_first(
        self, dense: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None, fraction: float = SAVE_FRACTION
    ) -> None:
        """Save the rows that the policy puts first, `fraction` of each table, in the background.

        Raises:
            JobError: the job was attached without a policy.
        """
        if self.policy is None:
            raise JobError("expected a policy for a priority save, got none: attach with one, or call save")
        rows = {
            table: self.policy.select(table, max(1, int(view.num_rows_total * fraction)))
            for table, view in self.views.items()
        }
        self.store.start_save(self._request(dense, extra, rows))
        for table, chosen in rows.items():
            self.policy.saved(table, chosen)

    def recover(self, shards: Sequence[int], *, staleness_seconds: float = 0.0) -> Recovered:
        """Set the failed shards' rows back as the guard decides, and count the loss.

        After a full recovery the caller loads the dense tensors and goes on from the plain state that are returned.
        """
        notice = FailureNotice(
            shards=tuple(shards),
            position=self.num_samples,
            staleness_seconds=staleness_seconds,
            num_dense_replicas=1,
        )
        done = recover(self.store, self.views, notice, self.ledger, self._guard, self._events)
        if done.extra is not None:
            self.num_samples = int(done.extra[POSITION])
            self.step = done.manifest.step
        return done

    def restore(self) -> Restored:
        """Set every row to the newest checkpoint (a restart of the whole job); return dense tensors and state."""
        restored = self.store.restore(self.views)
        self.num_samples = int(restored.extra[POSITION])
        self.step = restored.manifest.step
        return restored

    def _request(
        self, dense: Mapping[str, Tensor], extra: Mapping[str, Any] | None, rows: Mapping[str, Tensor] | None
    ) -> SaveRequest:
        state = {**(extra or {}), POSITION: self.num_samples}
        return SaveRequest(step=self.step, views=self.views, rows=rows, dense=dense, extra=state)

    def _observe(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or self.policy is None:
            return
        for table, rows in looked_up(module, args, kwargs, self.views).items():
            self.policy.observe(table, rows)


def attach(
    model: DistributedModelParallel,
    store: CheckpointStore,
    policy: RowPolicy | None = None,
    *,
    total_samples: int,
    guard: GuardConfig | None = None,
    events: EventLog | None = None,
) -> Attached:
    """Attach recovery to a user's sharded model and return the handle.

    Args:
        model: tables with fused optimizers, whatever else.
        store: where to save; its plan says which shard holds which rows.
        policy: which rows priority saves take; None = whole saves only.
        total_samples: samples of the whole run, for PLS.
        guard: limits of partial recovery.
        events: decisions and recoveries are written to it.
    Cost: with a policy, its `observe` on the row numbers of every look-up.
    """
    return Attached(model, store, policy, total_samples, guard=guard, events=events)


def looked_up(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], views: Mapping[str, TableView]
) -> dict[str, Tensor]:
    """Return the table's row numbers that a call of a fused look-up reads, by table name."""
    assert isinstance(module, SplitTableBatchedEmbeddingBagsCodegen)
    indices: Tensor = kwargs["indices"] if "indices" in kwargs else args[0]
    offsets: Tensor = kwargs["offsets"] if "offsets" in kwargs else args[1]
    num_features = len(module.feature_table_map)
    stride = (offsets.numel() - 1) // num_features
    bounds = [int(offsets[feature * stride]) for feature in range(num_features + 1)]
    names = {view.weight.data_ptr(): name for name, view in views.items()}
    result: dict[str, Tensor] = {}
    for feature, table in enumerate(module.feature_table_map):
        weight = module.split_embedding_weights()[table]
        name = names[weight.data_ptr()]
        rows = indices[bounds[feature] : bounds[feature + 1]].long() + views[name].first_row
        result[name] = torch.cat([result[name], rows]) if name in result else rows
    return result
