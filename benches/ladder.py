"""The ladder: what each idea gains on top of the one before, from rows in random order to windows at rest.

    python -m benches.ladder [--quick] [--plot docs/ladder.png]

One recd-like log (synthetic), one model (attention over two histories), batches of 2,048, one thread. A rung says what
a batch costs from file to updated weights (processor time, medians) and what a sample takes on disk:

    random order      zstd rows in time order, vectorised pyarrow to KJTs, TorchRec's parts
    clustered         the same rows by session
    IKJT              the reader deduplicates the batch after preprocessing; the model still sees every repeat
    preprocessing     the reader deduplicates first and transforms unique rows
    look-up           the model looks unique rows up; histories are still encoded for every sample
    sequence compute  histories are encoded on unique rows
    at rest           the session table holds each version once: nothing is hashed
    windows           shifted histories share one buffer

Losses of all rungs that train are asserted equal, batch by batch, and so are the IDs of the rungs that read rows.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table as View
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benches.kjt_model import KJTBatch, KJTTrainer
from benches.reader_work import Work, config_of, work_of
from benches.row_reader import read_rows
from benches.trainer import BATCH_SIZE, LOSS_BOUND, TRAIN, make_table, model_config
from recoup.coding import HotCodes, hot_ids
from recoup.jagged import Batch, InverseKeyedJaggedTensor, JaggedRows, dedup, expand, pack_rows, to_kjt
from recoup.log import SyntheticLog
from recoup.reader import SessionReader
from recoup.reader.transforms import dense_kernels, id_kernels
from recoup.schema import DedupGroup
from recoup.table import SessionTable
from recoup.table.layout import length_column, start_column, values_column
from recoup.train import Trainer

RUNGS = (*("random order", "clustered", "IKJT", "preprocessing", "look-up", "sequence compute", "at rest", "windows"),)


def main() -> None:
    """Build the files, climb, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer batches, under 50 s")
    parser.add_argument("--plot", type=Path, help="write the ladder as a picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="recoup-bench-ladder-") as folder:
        found = climb(Path(folder), num_batches=10 if options.quick else 30)
    show(found)
    if options.plot:
        plot(found, options.plot)
    print(json.dumps(found))


def climb(folder: Path, num_batches: int) -> dict[str, dict[str, float]]:
    """Return, by rung, milliseconds a batch to read and to train, and bytes a sample at rest."""
    table = make_table(folder / "table", SyntheticLog(num_samples=(num_batches + 1) * BATCH_SIZE))
    files = {order: folder / f"{order}.parquet" for order in ("time", "session")}
    row_bytes = {order: table.export_rows(path, order=order) / table.num_samples for order, path in files.items()}
    groups = tuple(group for group in table.schema.groups if group.name)
    work = replace(work_of(table), last=100, modulo_size=100_000, hash_size=100_000)
    ours = Trainer(model_config(table, 100_000, sequence=True), TRAIN, table.schema)
    steps = {name: Trainer(ours.model_config, TRAIN, table.schema).step for name in ("look-up", "sequence compute")}
    kjt_step = KJTTrainer(ours).step
    sources: dict[str, Iterator[object]] = {
        "random order": (_of_kjt(rows) for rows in read_rows(files["time"], work, BATCH_SIZE, kernels=False)),
        "clustered": (_of_kjt(rows) for rows in read_rows(files["session"], work, BATCH_SIZE, kernels=False)),
        "IKJT": (_late(rows, groups) for rows in read_rows(files["session"], work, BATCH_SIZE, kernels=False)),
        "preprocessing": (_early(rows, work, groups) for rows in _raw(files["session"], work)),
        "at rest": iter(SessionReader(table, config_of(work, batch_size=BATCH_SIZE))),
    }
    read: dict[str, list[float]] = {name: [] for name in sources}
    train: dict[str, list[float]] = {name: [] for name in ("clustered", *steps, "at rest")}
    for number in range(num_batches):
        batches = {name: _timed(lambda source=source: next(source), read[name]) for name, source in sources.items()}
        _assert_equal_ids(batches, table)
        given: dict[str, tuple[Callable[[object], object], object]] = {
            # Rows in random order are other samples: their step costs what a clustered one costs.
            "clustered": (kjt_step, batches["clustered"]),
            "look-up": (steps["look-up"], _histories_expanded(batches["at rest"])),
            "sequence compute": (steps["sequence compute"], _packed(batches["at rest"])),
            "at rest": (ours.step, batches["at rest"]),
        }
        losses = {}
        for name, (step, batch) in given.items():
            losses[name] = _loss(_timed(lambda step=step, batch=batch: step(batch), train[name]))
        for name, loss in losses.items():
            assert abs(loss - losses["at rest"]) <= LOSS_BOUND * abs(loss), (number, name, losses)
    reads = {name: statistics.median(times[2:]) for name, times in read.items()}
    trains = {name: statistics.median(times[2:]) for name, times in train.items()}
    at_rest = table.num_bytes / table.num_samples
    unshared = at_rest + _window_gain(table)
    parts = [
        (reads["random order"], trains["clustered"], row_bytes["time"]),
        (reads["clustered"], trains["clustered"], row_bytes["session"]),
        (reads["IKJT"], trains["clustered"], row_bytes["session"]),
        (reads["preprocessing"], trains["clustered"], row_bytes["session"]),
        (reads["preprocessing"], trains["look-up"], row_bytes["session"]),
        (reads["preprocessing"], trains["sequence compute"], row_bytes["session"]),
        (reads["at rest"], trains["sequence compute"], unshared),
        (reads["at rest"], trains["at rest"], at_rest),
    ]
    return {
        rung: {"read_ms": round(r, 2), "train_ms": round(t, 2), "bytes_per_sample": round(b, 1)}
        for rung, (r, t, b) in zip(RUNGS, parts, strict=True)
    }


def _timed(work: Callable[[], object], times: list[float]) -> object:
    began = time.process_time()
    result = work()
    times.append(1000 * (time.process_time() - began))
    return result


def _loss(answer: object) -> float:
    return answer if isinstance(answer, float) else answer.loss


def _of_kjt(rows: object) -> KJTBatch:
    return KJTBatch(dense=rows.dense, labels=rows.labels[:, 0], pooled=rows.sparse, sequences=rows.sparse)


def _late(rows: object, groups: tuple[DedupGroup, ...]) -> InverseKeyedJaggedTensor:
    return dedup(rows.sparse, groups)


def _raw(path: Path, work: Work) -> Iterator[tuple[KeyedJaggedTensor, np.ndarray]]:
    """Yield the rows' lists and dense values as they are."""
    columns = [*work.sparse, *work.dense, work.label, "time"]
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for rows in file.iter_batches(BATCH_SIZE, columns=columns, use_threads=False):
            lists = [
                (rows.column(name).offsets.to_numpy(), rows.column(name).values.to_numpy()) for name in work.sparse
            ]
            values = np.concatenate([values[offsets[0] : offsets[-1]] for offsets, values in lists])
            lengths = np.concatenate([np.diff(offsets) for offsets, _ in lists])
            kjt = KeyedJaggedTensor(
                keys=list(work.sparse), values=torch.from_numpy(values), lengths=torch.from_numpy(lengths)
            )
            yield kjt, np.stack([rows.column(name).to_numpy() for name in work.dense])


def _early(
    rows: tuple[KeyedJaggedTensor, np.ndarray], work: Work, groups: tuple[DedupGroup, ...]
) -> InverseKeyedJaggedTensor:
    """Deduplicate, then transform unique rows."""
    kjt, dense_FB = rows
    dense_kernels.clamp_in_place(dense_FB.reshape(-1), np.float32(work.low), np.float32(work.high))
    dense_kernels.log1p_in_place(dense_FB.reshape(-1), False)
    unique = dedup(kjt, groups)
    changed = {}
    for key, held in unique.rows.items():
        skipped = (held.length - work.last).clamp_(min=0) if key in work.modulo else torch.zeros_like(held.length)
        values = held.values.clone()
        if key in work.modulo:
            id_kernels.modulo_in_place(values.numpy(), work.modulo_size)
        else:
            id_kernels.hash_in_place(values.numpy(), work.hash_size, 0)
        changed[key] = JaggedRows(values=values, start=held.start + skipped, length=held.length - skipped)
    return replace(unique, rows=changed)


def _assert_equal_ids(batches: dict[str, object], table: SessionTable) -> None:
    names = table.schema.sparse_names
    expected = to_kjt(batches["at rest"].sparse, names)
    for name in ("IKJT", "preprocessing"):
        found = to_kjt(batches[name], names)
        assert torch.equal(found.values(), expected.values()), name
        assert torch.equal(found.lengths().long(), expected.lengths().long()), name


def _packed(batch: Batch) -> Batch:
    """Return the batch with every unique row in a buffer of its own: no windows."""
    rows = {key: pack_rows(held) for key, held in batch.sparse.rows.items()}
    return replace(batch, sparse=replace(batch.sparse, rows=rows))


def _histories_expanded(batch: Batch) -> Batch:
    """Return the batch with the histories' repeats written out, and other groups as they are."""
    sparse = batch.sparse
    history = next(group for group in sparse.groups if "hist_0" in group.features)
    kept = [group for group in sparse.groups if group.name not in ("", history.name)]
    whole = expand(replace(sparse, groups=(history,), inverse={history.name: sparse.inverse[history.name]}))
    loose = next((group.features for group in sparse.groups if not group.name), ())
    groups = (*kept, DedupGroup(name="", features=(*loose, *history.features)))
    inverse = {group.name: sparse.inverse[group.name] for group in kept}
    return replace(batch, sparse=replace(sparse, groups=groups, rows={**sparse.rows, **whole.rows}, inverse=inverse))


def _window_gain(table: SessionTable) -> float:
    """Return the bytes a sample that versions of histories take more if each is stored whole: codes alone, zstd."""
    written = {"shared": 0, "whole": 0}
    for feature in ("hist_0", "hist_1"):
        columns = [values_column(feature), start_column(feature), length_column(feature)]
        shared, whole = [], []
        for rows in table.iter_rows(columns):
            values, starts, lengths = (rows.column(name) for name in columns)
            shared.append(values.flatten().to_numpy())
            first = (
                np.repeat(values.offsets.to_numpy()[:-1], np.diff(starts.offsets.to_numpy()))
                - values.offsets[0].as_py()
            )
            low, size = first + starts.flatten().to_numpy(), lengths.flatten().to_numpy().astype(np.int64)
            index = np.arange(size.sum()) + np.repeat(low - (np.cumsum(size) - size), size)
            whole.append(shared[-1][index])
        for name, parts in (("shared", shared), ("whole", whole)):
            file = pa.BufferOutputStream()
            ids = np.concatenate(parts)
            pq.write_table(
                pa.table({"ids": HotCodes(hot_ids(ids)).encode(ids)}),
                file,
                compression="zstd",
                compression_level=3,
                use_dictionary=False,
                column_encoding="BYTE_STREAM_SPLIT",
            )
            written[name] += file.getvalue().size
    return (written["whole"] - written["shared"]) / table.num_samples


def show(found: dict[str, dict[str, float]]) -> None:
    """Print the ladder."""
    view = View("rung", "bytes a sample", "read ms", "train ms", "samples/s", "times the first")
    first = sum(found[RUNGS[0]][name] for name in ("read_ms", "train_ms"))
    for rung, facts in found.items():
        whole = facts["read_ms"] + facts["train_ms"]
        rate = BATCH_SIZE / whole * 1000
        view.add_row(
            rung,
            f"{facts['bytes_per_sample']:.0f}",
            f"{facts['read_ms']:.1f}",
            f"{facts['train_ms']:.1f}",
            f"{rate:,.0f}",
            f"{first / whole:.2f}",
        )
    Console(width=120).print(view)


def plot(found: dict[str, dict[str, float]], path: Path) -> None:
    """Draw samples a second and bytes a sample by rung."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    rate, size = figure.subplots(1, 2, sharey=True)
    names = list(found)[::-1]
    rate.barh(names, [BATCH_SIZE / (found[n]["read_ms"] + found[n]["train_ms"]) for n in names], color="#4477aa")
    rate.set_xlabel("thousand samples a second, file to weights")
    size.barh(names, [found[n]["bytes_per_sample"] for n in names], color="#cc6677")
    size.set_xlabel("bytes a sample at rest")
    figure.suptitle("The ladder: recd-like log (synthetic), one thread", fontsize=10)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
