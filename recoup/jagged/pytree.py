"""Batches as pytrees: `torch.utils._pytree.tree_map` reaches every tensor of a batch and nothing else.

Groups and the number of samples are structure; an absent `weights` is structure too, not a leaf. Importing
`recoup.jagged` registers our own three classes: a batch that torch meets before that would be one opaque leaf.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from torch.utils import _pytree

from recoup.jagged.batch import Batch
from recoup.jagged.ikjt import InverseKeyedJaggedTensor, JaggedRows

_Flat: TypeAlias = tuple[list[Any], Any]


def register() -> None:
    """Make JaggedRows, InverseKeyedJaggedTensor and Batch pytree nodes."""
    _pytree.register_pytree_node(JaggedRows, _flatten_rows, _rows)
    _pytree.register_pytree_node(InverseKeyedJaggedTensor, _flatten_ikjt, _ikjt)
    _pytree.register_pytree_node(Batch, _flatten_batch, _batch)


def _flatten_rows(rows: JaggedRows) -> _Flat:
    weights = [] if rows.weights is None else [rows.weights]
    return [rows.values, rows.start, rows.length, *weights], None


def _rows(parts: Iterable[Any], context: Any) -> JaggedRows:  # noqa: ANN401 -- torch's signature
    del context
    values, start, length, *weights = parts
    return JaggedRows(values=values, start=start, length=length, weights=weights[0] if weights else None)


def _flatten_ikjt(ikjt: InverseKeyedJaggedTensor) -> _Flat:
    return [dict(ikjt.rows), dict(ikjt.inverse)], (ikjt.groups, ikjt.num_samples)


def _ikjt(parts: Iterable[Any], context: Any) -> InverseKeyedJaggedTensor:  # noqa: ANN401 -- torch's signature
    rows, inverse = parts
    groups, num_samples = context
    return InverseKeyedJaggedTensor(groups=groups, rows=rows, inverse=inverse, num_samples=num_samples)


def _flatten_batch(batch: Batch) -> _Flat:
    return [batch.dense, batch.labels, batch.sparse, batch.time, batch.session], None


def _batch(parts: Iterable[Any], context: Any) -> Batch:  # noqa: ANN401 -- torch's signature
    del context
    dense, labels, sparse, time, session = parts
    return Batch(dense=dense, labels=labels, sparse=sparse, time=time, session=session)
