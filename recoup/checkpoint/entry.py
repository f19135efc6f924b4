"""An entry: the rows of one shard in one save, as one safetensors file: row numbers, weights, optimizer rows together.

Names in the file: `<table>/rows`, `<table>/weight` (or `<table>/weight.codes|least|step`), `<table>/optimizer.<name>`.
Its metadata says whose it is: run, shard, kind, step; a file of another run or shard is refused.
"""

import json
import math
from collections.abc import Mapping

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from recoup.checkpoint.errors import CheckpointError, DamagedError
from recoup.checkpoint.manifest import TableFacts
from recoup.checkpoint.quantise import Bits, dequantise, quantise
from recoup.checkpoint.snapshot import RowsCopy


def entry_owner(run_id: str, shard: int, kind: str, step: int) -> dict[str, str]:
    """Return the metadata of an entry's file."""
    return {"run_id": run_id, "shard": str(shard), "kind": kind, "step": str(step)}


def encode_entry(copies: Mapping[str, RowsCopy], owner: Mapping[str, str], *, bits: int = 0) -> bytes:
    """Return the file of some rows by table; `bits` = 0 keeps weights exact.

    Raises:
        CheckpointError: a row holds NaN or infinity.
    """
    tensors: dict[str, Tensor] = {}
    listed: set[int] = set()
    for table, copy in copies.items():
        # Tables of one size share a cached list of row numbers; safetensors refuses tensors that share memory.
        tensors[f"{table}/rows"] = copy.rows.clone() if copy.rows.data_ptr() in listed else copy.rows
        listed.add(copy.rows.data_ptr())
        for name, part in copy.parts.items():
            check_finite(f"{name} of table {table!r}", part, copy.rows)
            if name == "weight" and bits:
                for piece, tensor in quantise(part, 8 if bits == 8 else 4).items():
                    tensors[f"{table}/weight.{piece}"] = tensor
            else:
                tensors[f"{table}/{name}"] = part.contiguous()
    return save_tensors(tensors, metadata={"owner": json.dumps(dict(owner))})


def decode_entry(data: bytes, tables: Mapping[str, TableFacts], *, bits: int = 0) -> dict[str, RowsCopy]:
    """Return the rows by table. `tables` says each table's dim and dtype, for quantised weights.

    Raises:
        DamagedError: it is not such a file (its checksum was right all the same).
    """
    try:
        tensors = load_tensors(data)
    except Exception as err:  # safetensors raises its own class: this adds what it means
        raise DamagedError(f"expected a safetensors file of rows, got {len(data)} bytes of something else") from err
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        table, _, part = name.rpartition("/")
        found.setdefault(table, {})[part] = tensor
    result: dict[str, RowsCopy] = {}
    for table, parts in found.items():
        rows = parts.pop("rows")
        exact = parts if "weight" in parts else _exact(parts, tables[table], 8 if bits == 8 else 4)
        result[table] = RowsCopy(rows=rows, parts=exact)
    return result


def _extremes(tensor: Tensor) -> tuple[float, float]:
    """Return the least and greatest number; NaN wins. No copy, and one thread only: this runs beside training."""
    if tensor.dtype in (torch.float32, torch.float64):
        numbers = tensor.numpy()
        with np.errstate(invalid="ignore"):
            return float(numbers.min()), float(numbers.max())
    least, greatest = torch.aminmax(tensor)
    return float(least), float(greatest)


def check_owner(data: bytes, owner: Mapping[str, str], name: str) -> None:
    """Refuse a file that says it is another run's or shard's, or of another kind or step.

    Raises:
        DamagedError: says both sides; or it is no safetensors file.
    """
    try:
        size = int.from_bytes(data[:8], "little")
        found = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["owner"])
    except (ValueError, KeyError, TypeError) as err:
        raise DamagedError(f"'{name}': expected a safetensors file with its owner, got none") from err
    if found != dict(owner):
        raise DamagedError(f"'{name}': expected rows of {dict(owner)}, got {found}: it is another's")


def check_finite(what: str, tensor: Tensor, rows: Tensor | None = None) -> None:
    """Refuse NaN and infinity: they must never reach a checkpoint.

    Raises:
        CheckpointError: names the tensor and, if `rows` says its numbers, the row.
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    if all(math.isfinite(value) for value in _extremes(tensor)):
        return
    place = int((~torch.isfinite(tensor.reshape(tensor.shape[0] if tensor.dim() else 1, -1)).all(dim=1)).nonzero()[0])
    where = f", row {int(rows[place])}" if rows is not None else ""
    raise CheckpointError(f"expected finite numbers, got NaN or infinity in {what}{where}: nothing was saved")


def _exact(parts: dict[str, Tensor], facts: TableFacts, bits: Bits) -> dict[str, Tensor]:
    pieces = {name: parts.pop(f"weight.{name}") for name in ("codes", "least", "step")}
    return {"weight": dequantise(pieces, bits, facts.dim, getattr(torch, facts.dtype)), **parts}
