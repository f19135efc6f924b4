"""The border check of jagged tensors: every contradiction is named before a look-up can read out of bounds.

Nothing here is called inside the training loop on batches our own reader made: those are right by construction.
"""

import numpy as np
from torch import Tensor

from recoup.jagged.errors import JaggedError
from recoup.jagged.ikjt import InverseKeyedJaggedTensor, JaggedRows
from recoup.jagged.kernels import first_bad_window


def check_lengths(lengths: Tensor, num_values: int, *, keys: int, stride: int) -> None:
    """Check the lengths of a KJT: `keys * stride` of them, none negative, their sum the number of values.

    Raises:
        JaggedError: the message states what was expected and where it fails.
    """
    if lengths.numel() != keys * stride:
        raise JaggedError(
            f"lengths: expected keys x batch = {keys} x {stride} = {keys * stride} entries, got {lengths.numel()}"
        )
    negative = (lengths < 0).nonzero()
    if negative.numel():
        position = int(negative[0, 0])
        raise JaggedError(f"lengths must not be negative, got {int(lengths[position])} at {position}")
    total = int(lengths.sum()) if lengths.numel() else 0
    if total != num_values:
        raise JaggedError(f"lengths: expected a sum of {num_values} (the number of values), got {total}")


def check_offsets(offsets: Tensor, num_values: int, *, segments: int) -> None:
    """Check offsets: `segments + 1` of them, from 0, never falling, the last one the number of values.

    Raises:
        JaggedError: the message names the offset that is wrong.
    """
    if offsets.numel() != segments + 1:
        raise JaggedError(f"offsets: expected {segments + 1} entries for {segments} lists, got {offsets.numel()}")
    if int(offsets[0]) != 0:
        raise JaggedError(f"offsets must start at 0, got {int(offsets[0])}")
    falls = (offsets[1:] < offsets[:-1]).nonzero()
    if falls.numel():
        i = int(falls[0, 0])
        raise JaggedError(f"offsets must not fall, got {int(offsets[i])} then {int(offsets[i + 1])} at {i + 1}")
    if int(offsets[-1]) != num_values:
        raise JaggedError(f"offsets must end at {num_values} (the number of values), got {int(offsets[-1])}")


def validate(ikjt: InverseKeyedJaggedTensor) -> None:
    """Check every feature and inverse of `ikjt`.

    Raises:
        JaggedError: a group without rows, rows that disagree, a window outside its buffer, an inverse out of range.
    Cost: O(U + B), and a copy to the host if the tensors are elsewhere.
    """
    for group in ikjt.groups:
        num_rows = ikjt.num_rows(group.name)
        for key in group.features:
            if key not in ikjt.rows:
                raise JaggedError(f"feature {key!r} of group {group.name!r}: expected rows, got none")
            _check_rows(key, ikjt.rows[key], num_rows)
        if group.name:
            _check_inverse(group.name, ikjt.inverse.get(group.name), num_rows, ikjt.num_samples)


def _check_rows(key: str, rows: JaggedRows, num_rows: int) -> None:
    for name in ("start", "length"):
        count = getattr(rows, name).numel()
        if count != num_rows:
            raise JaggedError(f"{name} of feature {key!r}: expected {num_rows} entries (its group's rows), got {count}")
    if rows.weights is not None and rows.weights.numel() != rows.values.numel():
        raise JaggedError(
            f"weights of feature {key!r}: expected {rows.values.numel()} (one an ID), got {rows.weights.numel()}"
        )
    start, length = rows.start.cpu().numpy(), rows.length.cpu().numpy()
    bad = first_bad_window(start, length, rows.values.numel())
    if bad >= 0:
        raise JaggedError(
            f"row {bad} of feature {key!r}: expected a window inside [0, {rows.values.numel()}), "
            f"got start {start[bad]} and length {length[bad]}"
        )


def _check_inverse(group: str, inverse: Tensor | None, num_rows: int, num_samples: int) -> None:
    if inverse is None:
        raise JaggedError(f"group {group!r}: expected inverse_indices, got none")
    if inverse.numel() != num_samples:
        raise JaggedError(f"inverse of group {group!r}: expected {num_samples} entries, got {inverse.numel()}")
    found = inverse.cpu().numpy()
    bad = np.flatnonzero((found < 0) | (found >= num_rows))
    if len(bad):
        raise JaggedError(
            f"inverse of group {group!r}: expected rows in [0, {num_rows}), got {found[bad[0]]} at sample {bad[0]}"
        )
