"""An entry: the rows of one shard in one save, as one safetensors file: row numbers, weights, optimizer rows together.

Names in the file: `<table>/rows`, `<table>/weight` (or `<table>/weight.codes|least|step`), `<table>/optimizer.<name>`.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from recoup.checkpoint.quantise import Bits, dequantise, quantise
from recoup.checkpoint.snapshot import RowsCopy


def encode_entry(copies: Mapping[str, RowsCopy], *, bits: Literal[0, 4, 8] = 0) -> bytes:
    """Return the file of some rows by table; `bits` = 0 keeps weights exact."""
    tensors: dict[str, Tensor] = {}
    for table, copy in copies.items():
        tensors[f"{table}/rows"] = copy.rows
        for name, part in copy.parts.items():
            if name == "weight" and bits:
                for piece, tensor in quantise(part, bits).items():
                    tensors[f"{table}/weight.{piece}"] = tensor
            else:
                tensors[f"{table}/{name}"] = part.contiguous()
    return save_tensors(tensors)


def decode_entry(
    data: bytes, tables: Mapping[str, Mapping[str, Any]], *, bits: Literal[0, 4, 8] = 0
) -> dict[str, RowsCopy]:
    """Return the rows by table. `tables` says each table's dim and dtype, for quantised weights."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_tensors(data).items():
        table, _, part = name.rpartition("/")
        found.setdefault(table, {})[part] = tensor
    result: dict[str, RowsCopy] = {}
    for table, parts in found.items():
        rows = parts.pop("rows")
        if "weight" not in parts:
            result[table] = RowsCopy(rows=rows, parts=_exact(parts, tables[table], 8 if bits == 8 else 4))
        else:
            result[table] = RowsCopy(rows=rows, parts=parts)
    return result


def _exact(parts: dict[str, Tensor], facts: Mapping[str, Any], bits: Bits) -> dict[str, Tensor]:
    pieces = {name.removeprefix("weight."): parts.pop(name) for name in ("weight.codes", "weight.least", "weight.step")}
    dtype = getattr(torch, facts["dtype"])
    return {"weight": dequantise(pieces, bits, int(facts["dim"]), dtype), **parts}
