"""The InverseKeyedJaggedTensor (RecD): each distinct row of a dedup group once, and where every sample finds it.

Legend: B samples, U unique rows of a group, N IDs in a feature's buffer.

A feature's rows are *windows* on one buffer: row u is `values[start[u] : start[u] + length[u]]`. Exact repeats share a
row; shifted history lists share the buffer. Features outside every group are the group "" with U = B, no inverse.
Both classes are pytree nodes: their tensors are leaves; groups and B are structure, and so are absent weights.
Source: RecD (arXiv 2211.05239), section on IKJT. Differs: windows in place of offsets; weights; per-group inverse.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from recoup.schema import DedupGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class JaggedRows:
    """U rows of one feature as windows on its buffer."""

    values: Tensor
    """int64 [N]."""
    start: Tensor
    """int64 [U]."""
    length: Tensor
    """int64 [U]."""
    weights: Tensor | None = None
    """float32 [N], parallel to `values`."""

    @property
    def num_rows(self) -> int:
        """U."""
        return self.length.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class InverseKeyedJaggedTensor:
    """Sparse features of B samples, grouped.

    `rows[key]` has U_g rows for every key of group g; `inverse[g]` is int64 [B] (sample -> row).
    The group "" has no entry in `inverse`: its row b is sample b.
    """

    groups: tuple[DedupGroup, ...]
    rows: Mapping[str, JaggedRows]
    inverse: Mapping[str, Tensor]
    num_samples: int

    @property
    def keys(self) -> tuple[str, ...]:
        """Features in group order."""
        return tuple(key for group in self.groups for key in group.features)

    def group_of(self, key: str) -> DedupGroup:
        """Return the group that holds `key`."""
        return next(group for group in self.groups if key in group.features)

    def num_rows(self, group: str) -> int:
        """Return U of the group (B for the group "")."""
        inverse = self.inverse.get(group)
        if inverse is None:
            return self.num_samples
        features = next(g.features for g in self.groups if g.name == group)
        return self.rows[features[0]].num_rows

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "InverseKeyedJaggedTensor":
        """Return the same on `device`."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return self._map(move)

    def pin_memory(self) -> "InverseKeyedJaggedTensor":
        """Return the same in page-locked memory."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "InverseKeyedJaggedTensor":
        rows = {
            key: JaggedRows(
                values=function(r.values),
                start=function(r.start),
                length=function(r.length),
                weights=None if r.weights is None else function(r.weights),
            )
            for key, r in self.rows.items()
        }
        inverse = {name: function(tensor) for name, tensor in self.inverse.items()}
        return InverseKeyedJaggedTensor(groups=self.groups, rows=rows, inverse=inverse, num_samples=self.num_samples)


def keys_of(groups: Sequence[DedupGroup]) -> tuple[str, ...]:
    """Return all features of `groups`, in order."""
    return tuple(key for group in groups for key in group.features)


def _flatten_rows(rows: JaggedRows) -> tuple[list[Any], None]:
    weights = [] if rows.weights is None else [rows.weights]
    return [rows.values, rows.start, rows.length, *weights], None


def _unflatten_rows(parts: Iterable[Any], context: Any) -> JaggedRows:  # noqa: ANN401 -- torch's signature
    del context
    values, start, length, *weights = parts
    return JaggedRows(values=values, start=start, length=length, weights=weights[0] if weights else None)


def _flatten(ikjt: InverseKeyedJaggedTensor) -> tuple[list[Any], tuple[tuple[DedupGroup, ...], int]]:
    return [dict(ikjt.rows), dict(ikjt.inverse)], (ikjt.groups, ikjt.num_samples)


def _unflatten(parts: Iterable[Any], context: Any) -> InverseKeyedJaggedTensor:  # noqa: ANN401 -- torch's signature
    rows, inverse = parts
    groups, num_samples = context
    return InverseKeyedJaggedTensor(groups=groups, rows=rows, inverse=inverse, num_samples=num_samples)


_pytree.register_pytree_node(JaggedRows, _flatten_rows, _unflatten_rows)
_pytree.register_pytree_node(InverseKeyedJaggedTensor, _flatten, _unflatten)
