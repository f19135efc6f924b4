"""One training batch: dense features and labels of B samples, and their sparse features as an IKJT.

Legend: B samples, Fd dense features, L labels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from recoup.jagged.ikjt import InverseKeyedJaggedTensor


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
