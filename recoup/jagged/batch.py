"""One training batch: dense features and labels of B samples, and their sparse features as an IKJT.

Legend: B samples, Fd dense features, L labels.

A batch is a pytree node: `torch.utils._pytree.tree_map` reaches each of its tensors and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree

from recoup.jagged.expansion import expand
from recoup.jagged.ikjt import InverseKeyedJaggedTensor
from recoup.jagged.interchange import group_kjt, to_kjt

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """B samples in sample order; every per-sample tensor is on one device."""

    dense: Tensor
    """float32 [B, Fd]."""
    labels: Tensor
    """float32 [B, L]."""
    sparse: InverseKeyedJaggedTensor
    time: Tensor
    """int64 [B], milliseconds since the epoch."""
    session: Tensor
    """int64 [B], number of the sample's session within the batch, 0 .. num_sessions-1, non-decreasing runs."""

    @property
    def num_samples(self) -> int:
        """B."""
        return self.labels.shape[0]

    @property
    def num_sessions(self) -> int:
        """Distinct sessions in the batch."""
        return int(self.session.max()) + 1 if self.session.numel() else 0

    def to_kjt(self, keys: Sequence[str] | None = None) -> "KeyedJaggedTensor":
        """Return the sparse features with every repeat written out, as TorchRec's KJT of stride B (None = all)."""
        return to_kjt(self.sparse, keys)

    def group_kjts(self) -> "dict[str, KeyedJaggedTensor]":
        """Return for each dedup group the KJT of its unique rows (stride U; B for the group "")."""
        return {group.name: group_kjt(self.sparse, group.name) for group in self.sparse.groups}

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch on `device`."""
        return Batch(
            dense=self.dense.to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
            sparse=self.sparse.to(device, non_blocking=non_blocking),
            time=self.time.to(device, non_blocking=non_blocking),
            session=self.session.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> "Batch":
        """Return the batch in page-locked memory."""
        return Batch(
            dense=self.dense.pin_memory(),
            labels=self.labels.pin_memory(),
            sparse=self.sparse.pin_memory(),
            time=self.time.pin_memory(),
            session=self.session.pin_memory(),
        )


def plain_batch(batch: Batch) -> Batch:
    """Return the batch with every repeat written out: what a reader without deduplication yields."""
    return Batch(
        dense=batch.dense, labels=batch.labels, sparse=expand(batch.sparse), time=batch.time, session=batch.session
    )


def _flatten(batch: Batch) -> tuple[list[Any], None]:
    return [batch.dense, batch.labels, batch.sparse, batch.time, batch.session], None


def _unflatten(parts: Iterable[Any], context: Any) -> Batch:  # noqa: ANN401 -- torch's signature
    del context
    dense, labels, sparse, time, session = parts
    return Batch(dense=dense, labels=labels, sparse=sparse, time=time, session=session)


_pytree.register_pytree_node(Batch, _flatten, _unflatten)
