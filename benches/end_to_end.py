"""From file to updated weights: how many more samples a second of processor time, and how much smaller are batches?

    python -m benches.end_to_end [--quick] [--rows N]

The standard synthetic log (DESIGN section 10, "recd-like"), batches of 2,048, the "sequence" model of benches.trainer.
Recoup: session table -> SessionReader -> Trainer. The peer: the same samples as row-per-sample zstd Parquet, clustered
by session (its best case; `interleaved` is the ordinary log in time order) -> vectorised pyarrow and NumPy to KJTs
(benches/row_reader.py) -> TorchRec's own DLRM parts (benches/kjt_model.py). Same transforms, IDs, batches; the losses
of every step are asserted equal on the clustered file. Reading and training alternate in one thread of one process;
medians of processor time a batch, reading included. Memory is what one batch's tensors hold, at most.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table as View

from benches.kjt_model import KJTBatch, KJTTrainer
from benches.reader_work import Work, config_of, work_of
from benches.row_reader import read_rows
from benches.trainer import BATCH_SIZE, LOSS_BOUND, TRAIN, make_table, model_config
from recoup.jagged import Batch
from recoup.log import SyntheticLog
from recoup.reader import SessionReader
from recoup.train import Trainer


def main() -> None:
    """Build the files, check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer batches, under 50 s")
    parser.add_argument("--rows", type=int, default=0, help="rows of a table (default 200,000; quick 100,000)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    num_rows = options.rows or (100_000 if options.quick else 200_000)
    num_batches = 12 if options.quick else 40
    with tempfile.TemporaryDirectory(prefix="recoup-bench-end-to-end-") as folder:
        result = bench(Path(folder), num_rows, num_batches)
    print(json.dumps(result))


def bench(folder: Path, num_rows: int, num_batches: int) -> dict[str, object]:
    """Return times a batch, ratios and batch bytes."""
    table = make_table(folder / "table", SyntheticLog(num_samples=(num_batches + 1) * BATCH_SIZE))
    files = {}
    for name, order in (("clustered", "session"), ("interleaved", "time")):
        files[name] = folder / f"{name}.parquet"
        table.export_rows(files[name], order=order)
    found = work_of(table)
    work = Work(
        modulo=found.modulo,
        hashed=found.hashed,
        dense=found.dense,
        label=found.label,
        last=100,  # the log's longest list: nothing is cut, as in benches.trainer
        modulo_size=num_rows,
        hash_size=num_rows,
    )
    config = model_config(table, num_rows, sequence=True)
    ours = Trainer(config, TRAIN, table.schema)
    sides: dict[str, tuple[Iterator[object], Callable[[object], float]]] = {}
    for name, path in files.items():
        sides[name] = (kjt_batches(path, work), KJTTrainer(ours).step)
    reader = SessionReader(table, config_of(work, batch_size=BATCH_SIZE))
    sides["recoup"] = (iter(reader), lambda batch: ours.step(batch).loss)
    read: dict[str, list[float]] = {name: [] for name in sides}
    train: dict[str, list[float]] = {name: [] for name in sides}
    most_bytes = dict.fromkeys(sides, 0)
    for i in range(num_batches):
        losses = {}
        for name, (batches, step) in sides.items():
            began = time.process_time()
            batch = next(batches)
            middle = time.process_time()
            losses[name] = step(batch)
            ended = time.process_time()
            read[name].append(1000 * (middle - began))
            train[name].append(1000 * (ended - middle))
            most_bytes[name] = max(most_bytes[name], batch_bytes(batch))
        assert abs(losses["clustered"] - losses["recoup"]) <= LOSS_BOUND * losses["recoup"], (i, losses)
    return report(read, train, most_bytes, num_rows)


def report(read, train, most_bytes, num_rows) -> dict[str, object]:
    """Print the table and return the JSON object."""
    view = View("side", "read ms", "train ms", "samples/s", "batch MB", title="file to updated weights, 1 thread")
    total = {}
    for name in read:
        parts = [statistics.median(times[name][2:]) for times in (read, train)]
        total[name] = sum(parts)
        rate = BATCH_SIZE / sum(parts) * 1000
        view.add_row(name, *(f"{part:.1f}" for part in parts), f"{rate:,.0f}", f"{most_bytes[name] / 1e6:.2f}")
    Console().print(view)
    return {
        "ratio": round(total["clustered"] / total["recoup"], 3),
        "ratio_vs_interleaved": round(total["interleaved"] / total["recoup"], 3),
        "ratio_memory": round(most_bytes["clustered"] / most_bytes["recoup"], 3),
        "ms": {name: round(ms, 2) for name, ms in total.items()},
        "batch_bytes": most_bytes,
        "rows_per_table": num_rows,
        "batch_size": BATCH_SIZE,
        "threads": 1,
    }


def kjt_batches(path: Path, work: Work) -> Iterator[KJTBatch]:
    """Yield the file's batches as the baseline trains them."""
    for rows in read_rows(path, work, BATCH_SIZE, kernels=False):
        yield KJTBatch(dense=rows.dense, labels=rows.labels[:, 0], pooled=rows.sparse, sequences=rows.sparse)


def batch_bytes(batch: Batch | KJTBatch) -> int:
    """Return the bytes of the IDs and their layout, dense values and labels."""
    if isinstance(batch, KJTBatch):
        tensors = [batch.dense, batch.labels, batch.pooled.values(), batch.pooled.lengths()]
    else:
        rows = batch.sparse.rows.values()
        tensors = [batch.dense, batch.labels, *batch.sparse.inverse.values()]
        tensors += [tensor for row in rows for tensor in (row.values, row.start, row.length)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


if __name__ == "__main__":
    main()
