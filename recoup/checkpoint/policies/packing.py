"""Tensors of a policy's state as plain text: zlib and base64, so that they travel in a checkpoint's JSON."""

import base64
import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from recoup.core import StateError


def pack(tensor: Tensor) -> str:
    """Return a tensor's bytes as text."""
    return base64.b64encode(zlib.compress(tensor.detach().cpu().contiguous().numpy().tobytes(), 1)).decode()


def unpack(texts: Mapping[str, str], into: Mapping[str, Tensor], *, owner: str) -> None:
    """Set tensors, in place, from texts of `pack`.

    Raises:
        StateError: other tables, or a tensor of another size.
    """
    if set(texts) != set(into):
        raise StateError(f"{owner}: expected the state of tables {sorted(into)}, got {sorted(texts)}")
    for table, tensor in into.items():
        data = zlib.decompress(base64.b64decode(texts[table]))
        flat = np.frombuffer(data, dtype=tensor.cpu().numpy().dtype)
        if flat.size != tensor.numel():
            raise StateError(f"{owner}: expected {tensor.numel()} numbers of table {table!r}, got {flat.size}")
        tensor.copy_(torch.from_numpy(flat.copy()).view(tensor.shape))
