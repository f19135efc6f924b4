"""How much faster is a whole training step on unique rows than TorchRec's on a KeyedJaggedTensor?

    python -m benches.trainer [--quick] [--rows N]

The standard synthetic log (DESIGN section 10, "recd-like"), batches of 2,048 samples, made ready in memory before.
Model: 20 tables of dim 64 (user lists summed), bottom MLP 13-64-64, dot interaction of 21 vectors, top MLP
274-128-32-1; "sequence": the two histories pass an attention encoder instead of the sum ("RM1-like"). A step is
forward, backward, fused row-wise Adagrad and Adam, under DistributedModelParallel on one rank. The peer
(benches/kjt_model.py) is TorchRec's own DLRM parts on KJTs with the same plan and optimizers; `tuned` lends it our
way to look histories up (bags of one ID) where TorchRec's EmbeddingCollection is slow; `plain` is our own trainer on
batches without deduplication, so that repeats and kernels show apart. The losses of every step are asserted equal.
The full form adds "RM2-like": the pooled model whose embeddings dominate, in the sizes of DeepRecSys' RM2 (Gupta et
al., ISCA 2020, published configuration): 32 tables of dim 64 with 120 look-ups each, bottom MLP 256-128-64, top MLP
128-64-1. Here 24 of its lists are user-side (the log's three groups, three times the features, mean length 120) and 8
item-side; the interaction is the dot one, not RM2's concatenation.
Times are processor time of one thread, steps of all sides alternate, the lower quartile is taken
(less of what neighbours on the machine do).
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as View

from benches.kjt_model import KJTBatch, KJTTrainer
from recoup.jagged import plain_batch
from recoup.log import SyntheticLog, open_log
from recoup.log.synthetic import RECD_LIKE_GROUPS
from recoup.model import AttentionEncoder, DLRMConfig, EmbeddingTable
from recoup.reader import Hash, Log1p, ReaderConfig, SessionReader
from recoup.table import BuildConfig, SessionTable, build_table, open_table
from recoup.train import TrainConfig, Trainer

BATCH_SIZE = 2048
DIM = 64
TRAIN = TrainConfig(num_threads=1, table_lr=0.01)
"""Rates at which this model learns smoothly: rounding differences do not grow, so that losses stay comparable."""
LOSS_BOUND = 2e-3
"""Relative difference of losses over the compared steps: sums of float32 in another order, grown by training."""


def main() -> None:
    """Build, check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps, under 50 s")
    parser.add_argument("--rows", type=int, default=0, help="rows of a table (default 200,000; quick 100,000)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    num_rows = options.rows or (100_000 if options.quick else 200_000)
    num_steps = 7 if options.quick else 40
    with tempfile.TemporaryDirectory(prefix="recoup-bench-trainer-") as folder:
        result = bench(Path(folder), num_rows, num_steps, quick=options.quick)
    print(json.dumps(result))


def bench(folder: Path, num_rows: int, num_steps: int, *, quick: bool) -> dict[str, object]:
    """Return the result of the comparisons."""
    console = Console()
    num_samples = (num_steps + 4) * BATCH_SIZE
    log = SyntheticLog(num_samples=num_samples)
    table = make_table(folder / "table", log)
    flat_groups = tuple(replace(group, repeat=0.0, shift=False) for group in RECD_LIKE_GROUPS)
    flat = make_table(folder / "flat", replace(log, groups=flat_groups, num_samples=num_samples // 2))
    view = View(
        "model", "step", "ms (processor time)", "against ours", title="one training step, batch 2,048, 1 thread"
    )
    result: dict[str, object] = {"rows_per_table": num_rows, "batch_size": BATCH_SIZE, "dim": DIM, "threads": 1}
    cases = [
        ("sequence", table, model_config(table, num_rows, sequence=True), num_steps),
        ("pooled", table, model_config(table, num_rows, sequence=False), num_steps),
        ("no repeats", flat, model_config(flat, num_rows, sequence=False), num_steps),
    ]
    if not quick:
        wide = make_table(folder / "wide", rm2_log(num_samples=14 * BATCH_SIZE))
        rm2 = replace(model_config(wide, num_rows, sequence=False), bottom_mlp=(256, 128), top_mlp=(128, 64))
        cases.append(("RM2-like", wide, rm2, 10))
    for name, source, config, steps in cases:
        times = compare(source, config, steps)
        for side, ms in times.items():
            view.add_row(name, side, f"{ms:.1f}", f"{ms / times['ours']:.2f}")
        result[f"ms_{name.replace(' ', '_').replace('-', '_').lower()}"] = {
            side: round(ms, 2) for side, ms in times.items()
        }
        ratios = {side: round(ms / times["ours"], 3) for side, ms in times.items()}
        if name == "sequence":
            result |= {
                "ratio_vs_kjt": ratios["TorchRec KJT"],
                "ratio_vs_kjt_tuned": ratios["TorchRec KJT, tuned"],
                "ratio_of_repeats": ratios["ours, plain batches"],
            }
        elif name == "pooled":
            result |= {
                "ratio_vs_kjt_pooled": ratios["TorchRec KJT"],
                "ratio_of_repeats_pooled": ratios["ours, plain batches"],
            }
        elif name == "RM2-like":
            result["ratio_vs_kjt_rm2_like"] = ratios["TorchRec KJT"]
        else:
            result["ratio_no_repeats"] = ratios["TorchRec KJT"]
    console.print(view)
    return result


def rm2_log(num_samples: int) -> SyntheticLog:
    """Return the log with 24 user-side lists of 120 IDs and 8 item-side ones."""
    groups = tuple(
        replace(group, num_features=3 * group.num_features, mean_length=120.0, min_length=15, max_length=300)
        for group in RECD_LIKE_GROUPS
    )
    return SyntheticLog(num_samples=num_samples, groups=groups, num_item_features=8)


def make_table(path: Path, log: SyntheticLog) -> SessionTable:
    """Build a session table of the log."""
    build_table(open_log(log), path, BuildConfig())
    return open_table(path)


def model_config(table: SessionTable, num_rows: int, *, sequence: bool) -> DLRMConfig:
    """Return the model: one table a feature."""
    return DLRMConfig(
        tables=tuple(
            EmbeddingTable(name=f, num_embeddings=num_rows, embedding_dim=DIM, features=(f,))
            for f in table.schema.sparse_names
        ),
        bottom_mlp=(64,),
        top_mlp=(128, 32),
        sequences=tuple(AttentionEncoder(feature=f) for f in ("hist_0", "hist_1")) if sequence else (),
    )


def reader_config(table: SessionTable, num_rows: int, **overrides) -> ReaderConfig:
    """Return the reader: IDs hashed to the table's size, dense counts through log1p."""
    schema = table.schema
    return ReaderConfig(
        batch_size=BATCH_SIZE,
        transforms=(Hash(features=schema.sparse_names, size=num_rows), Log1p(features=schema.dense_names)),
        **overrides,
    )


def compare(table: SessionTable, config: DLRMConfig, num_steps: int) -> dict[str, float]:
    """Return the median processor time of a step in ms by side, after asserting equal losses."""
    num_rows = config.tables[0].num_embeddings
    ours = Trainer(config, TRAIN, table.schema)
    sides = {"ours": ours.step, "TorchRec KJT": KJTTrainer(ours).step}
    if config.sequences:
        sides["TorchRec KJT, tuned"] = KJTTrainer(ours, bags_of_one=True).step
    plain = Trainer(config, TRAIN, table.schema)
    sides["ours, plain batches"] = plain.step
    times: dict[str, list[float]] = {side: [] for side in sides}
    for i, batch in enumerate(SessionReader(table, reader_config(table, num_rows, drop_last=True))):
        if i == num_steps + 3:
            break
        kjt, copies = KJTBatch.of(batch, config), plain_batch(batch)
        given = {"ours": batch, "ours, plain batches": copies}
        losses: dict[str, float] = {}
        for side, step in sides.items():
            began = time.process_time()
            answer = step(given.get(side, kjt))
            times[side].append(1000 * (time.process_time() - began))
            losses[side] = answer if isinstance(answer, float) else answer.loss
        for side, loss in losses.items():
            assert abs(loss - losses["ours"]) <= LOSS_BOUND * abs(losses["ours"]), (i, side, losses)
    return {side: statistics.quantiles(ms[3:], n=4)[0] for side, ms in times.items()}


if __name__ == "__main__":
    main()
