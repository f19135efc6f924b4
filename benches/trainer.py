"""How much faster is a whole training step on unique rows than TorchRec's on a KeyedJaggedTensor?

    python -m benches.trainer [--quick] [--rows N]

The standard synthetic log (DESIGN section 10, "recd-like"), batches of 2,048 samples, made ready in memory before.
Model: 20 tables of dim 64 (user lists summed), bottom MLP 13-64-64, dot interaction of 21 vectors, top MLP
274-128-32-1; "sequence": the two histories pass an attention encoder instead of the sum ("RM1-like"). A step is
forward, backward, fused row-wise Adagrad and Adam, under DistributedModelParallel on one rank. The peer
(benches/kjt_model.py) is TorchRec's own DLRM parts on KJTs with the same plan and optimizers; `tuned` lends it our
way to look histories up (bags of one ID) where TorchRec's EmbeddingCollection is slow; `plain` is our own trainer on
batches without deduplication, so that repeats and kernels show apart. The losses of every step are asserted equal.
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
        result = bench(Path(folder), num_rows, num_steps)
    print(json.dumps(result))


def bench(folder: Path, num_rows: int, num_steps: int) -> dict[str, object]:
    """Return the result of the three comparisons."""
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
    for name, source, sequence in (("sequence", table, True), ("pooled", table, False), ("no repeats", flat, False)):
        times = compare(source, model_config(source, num_rows, sequence=sequence), num_steps)
        for side, ms in times.items():
            view.add_row(name, side, f"{ms:.1f}", f"{ms / times['ours']:.2f}")
        result[f"ms_{name.replace(' ', '_')}"] = {side: round(ms, 2) for side, ms in times.items()}
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
        else:
            result["ratio_no_repeats"] = ratios["TorchRec KJT"]
    console.print(view)
    return result


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
