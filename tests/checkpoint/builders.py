"""Small tables, their plans and stores, and obvious copies of them."""

import torch

from recoup.checkpoint import CheckpointStore, SaveRequest, ShardPlan, TableView

SIZES = {"users": 97, "items": 40, "tiny": 3}
DIMS = {"users": 4, "items": 5, "tiny": 2}
PLANS = {"table": ShardPlan.by_table, "range": ShardPlan.by_range, "hash": ShardPlan.by_hash}


def make_views(*, seed=0, dtype=torch.float32, optimizer_dtype=torch.float32, part=(0, 1)):
    """Return views of every table, or of range `part[0]` of `part[1]` of each."""
    generator = torch.Generator().manual_seed(seed)
    rank, world = part
    views = {}
    for name, total in SIZES.items():
        first, last = (-(-total * k // world) for k in (rank, rank + 1))
        weight = torch.randn(total, DIMS[name], generator=generator).to(dtype)
        momentum = torch.rand(total, generator=generator).to(optimizer_dtype)
        views[name] = TableView(
            name=name,
            weight=weight[first:last].clone(),
            optimizer={"momentum1": momentum[first:last].clone()},
            first_row=first,
            num_rows_total=total,
        )
    return views


def contents(views):
    """Return copies of every part of every table."""
    return {name: {part: rows.clone() for part, rows in view.parts().items()} for name, view in views.items()}


def same(views, copies):
    """Whether every part of every table equals its copy, bit for bit."""
    return all(
        torch.equal(rows, copies[name][part]) for name, view in views.items() for part, rows in view.parts().items()
    )


def step(views, seed, rows=None):
    """Change rows (all, or those given by table) as a training step would."""
    generator = torch.Generator().manual_seed(seed)
    for name, view in views.items():
        for part in view.parts().values():
            chosen = torch.arange(part.shape[0]) if rows is None else rows.get(name, torch.zeros(0, dtype=torch.int64))
            part[chosen] = torch.rand(len(chosen), *part.shape[1:], generator=generator).to(part.dtype)


def make_store(folder, *, kind="range", shards=3, run_id="run", **overrides):
    """Return a store in a folder or under a URL."""
    return CheckpointStore(str(folder), run_id, PLANS[kind](SIZES, shards), **overrides)


def request(views, number, **overrides):
    """Return a request with a dense tensor and plain state that tell the step."""
    dense = {"w": torch.full((3,), float(number)), "count": torch.tensor(number)}
    return SaveRequest(**{"step": number, "views": views, "dense": dense, "extra": {"at": number}, **overrides})


def some_rows(seed, share=0.2):
    """Return rows of two of the tables."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randperm(SIZES[name], generator=generator)[: int(SIZES[name] * share)]
        for name in ("users", "items")
    }
