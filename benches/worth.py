"""From which factor on is a dedup group worth it? Look-up, pooling and expansion on unique rows against plain.

    python -m benches.worth [--quick]

Batches of 2,048 samples, four features of one group, dim 64, lists of 1, 5 and 40 IDs. Each row serves `factor` samples
on average: chances of a change are drawn, so that rows repeat as often as factor says. A step of the trainer with the
smallest model (no MLP, only look-ups, pooling, expansion, their backward and the update), deduplicated and plain,
alternates in one thread; equal losses are asserted. The threshold of a list length is where the ratio of lower
quartiles of processor time crosses 1, by interpolation; the rule that `recoup table suggest` uses must lie at or above
all of them.
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as View

from recoup.jagged import Batch, InverseKeyedJaggedTensor, JaggedRows, plain_batch
from recoup.model import DLRMConfig, EmbeddingTable
from recoup.schema import Schema, SparseFeature
from recoup.train import TrainConfig, Trainer

BATCH_SIZE, DIM, NUM_ROWS = 2048, 64, 100_000
FEATURES = ("a", "b", "c", "d")
FACTORS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
SCHEMA = Schema(
    key="user", labels=("y",), dense=(), sparse=tuple(SparseFeature(name=name, group="g") for name in FEATURES)
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, under 50 s")
    num_steps = 12 if parser.parse_args().quick else 60
    torch.set_num_threads(1)
    ratios = {length: {f: ratio(length, f, num_steps) for f in FACTORS} for length in (1, 5, 40)}
    view = View("factor", *(f"{length} IDs" for length in ratios), title="plain over deduplicated, whole look-up path")
    for f in FACTORS:
        view.add_row(f"{f:.2f}", *(f"{ratios[length][f]:.2f}" for length in ratios))
    Console().print(view)
    print(
        json.dumps(
            {
                "least_factor": {str(length): round(crossing(found), 2) for length, found in ratios.items()},
                "ratios": {str(k): {str(f): round(r, 3) for f, r in v.items()} for k, v in ratios.items()},
                "batch_size": BATCH_SIZE,
                "dim": DIM,
                "rows_per_table": NUM_ROWS,
            }
        )
    )


def ratio(length: int, factor: float, num_steps: int) -> float:
    """Return the time of a plain step over that of a deduplicated one, after asserting equal losses."""
    tables = tuple(
        EmbeddingTable(name=name, num_embeddings=NUM_ROWS, embedding_dim=DIM, features=(name,)) for name in FEATURES
    )
    model = DLRMConfig(tables=tables, top_mlp=())
    config = TrainConfig(num_threads=1, table_lr=0.01)
    unique, plain = (Trainer(model, config, SCHEMA) for _ in range(2))
    rng = np.random.default_rng(int(100 * factor) + length)
    times: dict[str, list[float]] = {"unique": [], "plain": []}
    for _ in range(num_steps + 3):
        batch = draw(rng, length, factor)
        losses = {}
        for side, trainer, given in (("unique", unique, batch), ("plain", plain, plain_batch(batch))):
            began = time.process_time()
            losses[side] = trainer.step(given).loss
            times[side].append(time.process_time() - began)
        assert abs(losses["unique"] - losses["plain"]) <= 1e-3 * losses["plain"], losses
    quartile = {side: statistics.quantiles(seconds[3:], n=4)[0] for side, seconds in times.items()}
    return quartile["plain"] / quartile["unique"]


def draw(rng: np.random.Generator, length: int, factor: float) -> Batch:
    """Return a batch whose rows serve `factor` samples each on average, repeats in a row."""
    changes = rng.random(BATCH_SIZE) < 1 / factor
    changes[0] = True
    inverse = torch.from_numpy(np.cumsum(changes) - 1)
    num_rows = int(changes.sum())
    rows = {}
    for name in FEATURES:
        lengths = torch.full((num_rows,), length)
        values = torch.from_numpy(rng.integers(0, NUM_ROWS, num_rows * length))
        rows[name] = JaggedRows(values=values, start=torch.cumsum(lengths, 0) - lengths, length=lengths)
    sparse = InverseKeyedJaggedTensor(groups=SCHEMA.groups, rows=rows, inverse={"g": inverse}, num_samples=BATCH_SIZE)
    nothing = torch.zeros(BATCH_SIZE, dtype=torch.int64)
    labels = torch.from_numpy(rng.integers(0, 2, (BATCH_SIZE, 1)).astype(np.float32))
    return Batch(dense=torch.zeros(BATCH_SIZE, 0), labels=labels, sparse=sparse, time=nothing, session=nothing)


def crossing(ratios: dict[float, float]) -> float:
    """Return the factor from which on the ratio stays at 1 or more, interpolated; infinity if it does nowhere."""
    factors = sorted(ratios)
    below = [f for f in factors if ratios[f] < 1]
    if not below:
        return factors[0]
    last = below[-1]
    if last == factors[-1]:
        return float("inf")
    after = factors[factors.index(last) + 1]
    return last + (after - last) * (1 - ratios[last]) / (ratios[after] - ratios[last])


if __name__ == "__main__":
    main()
