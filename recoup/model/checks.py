"""Border checks of a batch against the model: features present, IDs inside their tables, dense values finite.

The message is the same whether the batch is deduplicated or not: it counts samples, not rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from recoup.jagged import Batch, InverseKeyedJaggedTensor, JaggedRows, pack_rows
from recoup.model.errors import ModelError
from recoup.schema import DedupGroup, Schema


def check_finite(batch: Batch, dense: Sequence[str], labels: Sequence[str]) -> None:
    """Refuse NaN and infinities in dense features and labels, and labels other than 0 and 1.

    Raises:
        ModelError: names the sample, the column and the value.
    """
    for values, names, kind in ((batch.dense, dense, "dense feature"), (batch.labels, labels, "label")):
        # A sum is finite only if every term is: one pass, no mask. A finite sum that overflows is looked at below.
        if values.numel() and not bool(torch.isfinite(values.sum())):
            bad = (~torch.isfinite(values)).nonzero()
            if bad.numel():
                row, column = (int(x) for x in bad[0])
                raise ModelError(
                    f"expected finite values, got {float(values[row, column])} "
                    f"({kind} '{names[column]}', sample {row} of the batch): clean the log or fill it in the reader"
                )


def with_missing(sparse: InverseKeyedJaggedTensor, features: Sequence[str], schema: Schema) -> InverseKeyedJaggedTensor:
    """Return `sparse` with empty lists for absent features that the schema declares `missing = "empty"`.

    Raises:
        ModelError: an absent feature whose absence is an error.
    """
    absent = [feature for feature in features if feature not in sparse.rows]
    if not absent:
        return sparse
    rows: dict[str, JaggedRows] = dict(sparse.rows)
    for feature in absent:
        if schema.sparse_feature(feature).missing != "empty":
            raise ModelError(
                f"expected feature {feature!r}, got a batch of {list(sparse.keys)}: "
                'add it to the table, or declare missing = "empty" in the schema'
            )
    groups = list(sparse.groups)
    for feature in absent:
        home = schema.sparse_feature(feature).group
        place = next((i for i, group in enumerate(groups) if group.name == home), None)
        known = home if place is not None else ""
        num_rows = sparse.num_rows(home) if place is not None else sparse.num_samples
        rows[feature] = _empty_rows(num_rows, sparse)
        groups = _with_feature(groups, known, feature)
    return replace(sparse, groups=tuple(groups), rows=rows)


def check_ids(sparse: InverseKeyedJaggedTensor, sizes: Mapping[str, int]) -> None:
    """Refuse IDs outside 0 .. size - 1.

    Raises:
        ModelError: names the feature, the first sample that holds such an ID, the ID and the table's size.
    Cost: one pass over the IDs; on a GPU one synchronisation a feature.
    """
    for feature, size in sizes.items():
        values = sparse.rows[feature].values
        if values.numel() == 0:
            continue
        low, high = (int(bound) for bound in torch.aminmax(values))
        if low < 0 or high >= size:
            _refuse_first(sparse, feature, size)


def _refuse_first(sparse: InverseKeyedJaggedTensor, feature: str, size: int) -> None:
    packed = pack_rows(sparse.rows[feature], sparse.inverse.get(sparse.group_of(feature).name))
    bad = ((packed.values < 0) | (packed.values >= size)).nonzero()
    if bad.numel() == 0:
        return  # an ID of the buffer that no row reads: it is never looked up
    position = int(bad[0])
    sample = int(torch.searchsorted(packed.start + packed.length, position, right=True))
    raise ModelError(
        f"expected IDs 0 .. {size - 1}, got {int(packed.values[position])} (feature '{feature}', sample {sample} of "
        f"the batch, table of {size} rows): map IDs with a transform such as modulo, or enlarge the table"
    )


def _empty_rows(num_rows: int, sparse: InverseKeyedJaggedTensor) -> JaggedRows:
    device = _device(sparse)
    zeros = torch.zeros(num_rows, dtype=torch.int64, device=device)
    return JaggedRows(values=torch.zeros(0, dtype=torch.int64, device=device), start=zeros, length=zeros)


def _device(sparse: InverseKeyedJaggedTensor) -> torch.device:
    tensors: list[Tensor] = [*sparse.inverse.values(), *(rows.values for rows in sparse.rows.values())]
    return tensors[0].device if tensors else torch.device("cpu")


def _with_feature(groups: list[DedupGroup], name: str, feature: str) -> list[DedupGroup]:
    if all(group.name != name for group in groups):
        return [*groups, DedupGroup(name=name, features=(feature,))]
    return [replace(group, features=(*group.features, feature)) if group.name == name else group for group in groups]
