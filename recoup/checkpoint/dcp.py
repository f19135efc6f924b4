"""Exchange with torch's distributed checkpoint (DCP): export one of ours, import one into live tables.

Names in it: `tables.<table>.weight`, `tables.<table>.optimizer.<state>`, `dense.<name>`, and `extra` (JSON as uint8).
A checkpoint of another program is imported by saying its names: `names={"tables.items.weight": "ebc.items.weight"}`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from recoup.checkpoint.errors import CheckpointError, NoCheckpointError
from recoup.checkpoint.manifest import Manifest, TableFacts
from recoup.checkpoint.rows import put_rows
from recoup.checkpoint.snapshot import RowsCopy
from recoup.checkpoint.store import CheckpointStore
from recoup.checkpoint.views import TableView


def export_dcp(store: CheckpointStore, folder: Path, manifest: Manifest | None = None) -> Manifest:
    """Write a checkpoint as a DCP folder; it must not exist yet.

    Args:
        store: of the run.
        folder: to write; its parent exists.
        manifest: the checkpoint; None = the newest complete one.
    Returns:
        The checkpoint exported.
    Raises:
        NoCheckpointError: there is none.
        CheckpointError: the folder exists, or the checkpoint is damaged; nothing was written.
    Cost: memory of all tables.
    """
    if folder.exists():
        raise CheckpointError(f"expected no folder '{folder}' to export to, got one: name another")
    chosen = manifest or store.latest()
    if chosen is None:
        raise NoCheckpointError(f"expected a complete checkpoint of run {store.run_id!r} to export, got none")
    views = {name: _blank(name, facts) for name, facts in chosen.tables.items()}
    restored = store.restore(views, manifest=chosen)
    state = {f"tables.{name}.{part}": rows for name, view in views.items() for part, rows in view.parts().items()}
    state |= {f"dense.{name}": tensor for name, tensor in restored.dense.items()}
    state["extra"] = torch.frombuffer(bytearray(json.dumps(restored.extra).encode()), dtype=torch.uint8)
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return chosen


def import_dcp(
    folder: Path, views: Mapping[str, TableView], *, names: Mapping[str, str] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Set live rows to those of a DCP folder, and return its dense tensors and plain state; then save them as ours.

    Args:
        folder: written by `export_dcp` or any program that keeps whole tables under some names.
        views: live tables, or the ranges of them in memory here.
        names: our name -> the folder's, where they differ.
    Raises:
        CheckpointError: a table is missing or has another shape or dtype; no row was changed.
    Cost: memory of one table beside the live ones.
    """
    try:
        found = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    except Exception as err:  # DCP raises what it likes: this adds the folder
        raise CheckpointError(f"expected a DCP checkpoint in '{folder}', got: {err}") from err
    tensors = {name: meta for name, meta in found.items() if isinstance(meta, TensorStorageMetadata)}
    wanted = {
        f"tables.{name}.{part}": (view, part, rows)
        for name, view in views.items()
        for part, rows in view.parts().items()
    }
    keys = {ours: dict(names or {}).get(ours, ours) for ours in wanted}
    for ours, (view, _, rows) in wanted.items():
        _check(folder, keys[ours], tensors.get(keys[ours]), [view.num_rows_total, *rows.shape[1:]], rows.dtype)
    for ours, (view, part, rows) in wanted.items():
        whole = _read(folder, keys[ours], tensors)
        held = whole[view.first_row : view.first_row + rows.shape[0]]
        numbers = torch.arange(view.first_row, view.first_row + rows.shape[0])
        put_rows(_only(view, part), RowsCopy(rows=numbers, parts={"weight": held}))
    dense = {name.removeprefix("dense."): _read(folder, name, tensors) for name in tensors if name.startswith("dense.")}
    extra = json.loads(bytes(_read(folder, "extra", tensors).tolist())) if "extra" in tensors else {}
    return dense, extra


def _blank(name: str, facts: TableFacts) -> TableView:
    """Return an empty table in the shape of a checkpoint's."""
    states = {
        state: torch.zeros(facts.num_rows, *facts.optimizer_shape[state], dtype=getattr(torch, dtype))
        for state, dtype in facts.optimizer.items()
    }
    weight = torch.zeros(facts.num_rows, facts.dim, dtype=getattr(torch, facts.dtype))
    return TableView(name=name, weight=weight, optimizer=states, first_row=0, num_rows_total=facts.num_rows)


def _only(view: TableView, part: str) -> TableView:
    rows = view.parts()[part]
    return TableView(
        name=view.name, weight=rows, optimizer={}, first_row=view.first_row, num_rows_total=view.num_rows_total
    )


def _check(folder: Path, key: str, meta: TensorStorageMetadata | None, shape: list[int], dtype: torch.dtype) -> None:
    if meta is None:
        raise CheckpointError(
            f"DCP checkpoint '{folder}': expected a tensor {key!r}, got none: say its name in `names`"
        )
    if list(meta.size) != shape or meta.properties.dtype != dtype:
        raise CheckpointError(
            f"DCP folder '{folder}', {key!r}: expected {shape} {dtype}, got {list(meta.size)} {meta.properties.dtype}"
        )


def _read(folder: Path, key: str, tensors: Mapping[str, TensorStorageMetadata]) -> Tensor:
    into = torch.empty(tensors[key].size, dtype=tensors[key].properties.dtype)
    dcp.load({key: into}, checkpoint_id=folder, no_dist=True)
    return into
