"""How many samples a second does one core bring from file to ready batch, preprocessing included?

    python -m benches.reader [--quick] [--samples N]

The standard synthetic log (DESIGN section 10, "recd-like"): 8 user-side lists in 3 dedup groups, 12 item-side lists, 13
dense features. Work: user lists cut to their last 50 IDs and taken modulo, item lists hashed, dense clamped and log1p.
Recoup reads the session table; the peer (benches/row_reader.py) reads the same samples as row-per-sample Parquet, in
time order (interleaved) and clustered by session. Results are equal before anything is timed: batch by batch against
the clustered file, as multisets of samples against the interleaved one. Rates are samples a second of processor time
on one thread, the best of several alternating runs. Memory is measured in a process of its own.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from numba import njit
from rich.console import Console
from rich.table import Table as View

from benches.reader_work import BATCH_SIZE, Work, config_of, work_of
from benches.row_reader import ROW_GROUP_ROWS, RowBatch, read_rows
from recoup.jagged import Batch, to_kjt
from recoup.log import SyntheticLog, open_log
from recoup.reader import SampleRange, SessionReader
from recoup.reader.transforms.id_kernels import mix
from recoup.table import BuildConfig, SessionTable, build_table, open_table

ROUND_SECONDS = 0.5


def main() -> None:
    """Build the data, check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 samples, under 50 s")
    parser.add_argument("--samples", type=int, default=0, help="samples of the log (default 260,000)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    num_samples = options.samples or (100_000 if options.quick else 260_000)
    with tempfile.TemporaryDirectory(prefix="recoup-bench-reader-") as folder:
        _bench(Path(folder), num_samples, quick=options.quick)


def _bench(folder: Path, num_samples: int, *, quick: bool) -> None:
    console = Console()
    build_table(open_log(SyntheticLog(num_samples=num_samples)), folder / "table", BuildConfig())
    table = open_table(folder / "table")
    work = work_of(table)
    files = {name: _peer_file(table, folder, name) for name in ("time", "session")}

    def ours() -> Iterator[Batch]:
        return iter(SessionReader(table, config_of(work)))

    def peer(name: str, *, kernels: bool) -> Callable[[], Iterator[RowBatch]]:
        return lambda: read_rows(files[name], work, BATCH_SIZE, kernels=kernels)

    for kernels in (False, True):
        _assert_equal_batches(ours(), peer("session", kernels=kernels)(), work)
        _assert_same_samples(ours(), peer("time", kernels=kernels)(), work)
    rates = _rates(
        {
            "session table": ours,
            "interleaved": peer("time", kernels=False),
            "clustered": peer("session", kernels=False),
            "interleaved, our kernels": peer("time", kernels=True),
            "clustered, our kernels": peer("session", kernels=True),
            "session table, plain batches": lambda: iter(SessionReader(table, config_of(work, dedup=False))),
        },
        num_samples,
        rounds=3 if quick else 5,
    )
    exponent = _exponent(table, work)
    memory = _memory(folder / "table")
    view = View("reader", "samples/s a core", "us a sample", "session table is faster by", "file MB")
    sizes = {"session table": table.num_bytes} | {
        n: files[k].stat().st_size for n, k in (("interleaved", "time"), ("clustered", "session"))
    }
    for name, rate in rates.items():
        size = f"{sizes[name] / 1e6:.1f}" if name in sizes else ""
        view.add_row(name, f"{rate:,.0f}", f"{1e6 / rate:.2f}", f"{rates['session table'] / rate:.2f}", size)
    console.print(view)
    console.print(f"cost ~ samples^{exponent:.3f}; memory of a reading process {memory['peak_mib']:.0f} MiB")
    result = {
        "bench": "reader",
        "num_samples": num_samples,
        "batch_size": BATCH_SIZE,
        "samples_per_s": round(rates["session table"]),
        "ratio_vs_interleaved": round(rates["session table"] / rates["interleaved"], 2),
        "ratio_vs_clustered": round(rates["session table"] / rates["clustered"], 2),
        "ratio_vs_interleaved_our_kernels": round(rates["session table"] / rates["interleaved, our kernels"], 2),
        "ratio_vs_clustered_our_kernels": round(rates["session table"] / rates["clustered, our kernels"], 2),
        "exponent": round(exponent, 3),
        **{name: round(value) for name, value in memory.items()},
    }
    print(json.dumps(result))


def _peer_file(table: SessionTable, folder: Path, order: str) -> Path:
    """Write the table's samples as a peer would: large row groups, zstd, no dictionary on lists."""
    exported = folder / f"{order}-exported.parquet"
    table.export_rows(exported, order=order)
    path = folder / f"{order}.parquet"
    pq.write_table(
        pq.read_table(exported), path, row_group_size=ROW_GROUP_ROWS, compression="zstd", use_dictionary=False
    )
    exported.unlink()
    return path


def _rates(readers: dict[str, Callable[[], Iterator[object]]], num_samples: int, *, rounds: int) -> dict[str, float]:
    """Return samples a second of processor time, the best run of `rounds`.

    Readers take turns, half a second or one run each, so that noise falls on all alike.
    """
    best = dict.fromkeys(readers, 0.0)
    for _ in range(rounds):
        for name, start in readers.items():
            spent = 0.0
            while spent < ROUND_SECONDS:
                began = time.process_time()
                for _batch in start():
                    pass
                seconds = time.process_time() - began
                best[name] = max(best[name], num_samples / seconds)
                spent += seconds
    return best


def _exponent(table: SessionTable, work: Work) -> float:
    """Return x of cost ~ samples^x, between half of the table and all of it."""
    seconds, counts = [], []
    for fraction in (0.5, 1.0):
        reader = SessionReader(table, config_of(work, samples=SampleRange(to_fraction=fraction)))
        best = math.inf
        for _ in range(4):
            began = time.process_time()
            for _batch in reader:
                pass
            best = min(best, time.process_time() - began)
        seconds.append(best)
        counts.append(reader.report.num_samples)
    return math.log(seconds[1] / seconds[0]) / math.log(counts[1] / counts[0])


def _memory(table: Path) -> dict[str, float]:
    """Return the resident memory of a process that reads the table, and what of it was there after imports."""
    command = [sys.executable, "-m", "benches.reader_work", str(table)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]).stdout
    return json.loads(output.splitlines()[-1])


def _assert_equal_batches(ours: Iterator[Batch], theirs: Iterator[RowBatch], work: Work) -> None:
    for a, b in zip(ours, theirs, strict=True):
        mine = to_kjt(a.sparse, work.sparse)
        assert torch.equal(mine.values(), b.sparse.values())
        assert torch.equal(mine.lengths(), b.sparse.lengths().to(torch.int64))
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.time, b.time)
        torch.testing.assert_close(a.dense, b.dense, rtol=3e-7, atol=0)  # NumPy's log1p differs in the last place


def _assert_same_samples(ours: Iterator[Batch], theirs: Iterator[RowBatch], work: Work) -> None:
    mine = [_digests(to_kjt(a.sparse, work.sparse), a.labels, a.time) for a in ours]
    other = [_digests(b.sparse, b.labels, b.time) for b in theirs]
    assert np.array_equal(np.sort(np.concatenate(mine)), np.sort(np.concatenate(other)))


def _digests(kjt: object, labels: torch.Tensor, times: torch.Tensor) -> np.ndarray:
    """Return one 64-bit digest a sample, of its lists (in order, with their borders), label and time."""
    lengths = kjt.lengths().to(torch.int64).numpy().reshape(len(kjt.keys()), -1)
    digests = times.numpy().astype(np.uint64) * np.uint64(2) + labels.numpy()[:, 0].astype(np.uint64)
    _digest(kjt.values().numpy(), lengths, digests)
    return digests


@njit(cache=True)
def _digest(values: np.ndarray, lengths: np.ndarray, digests: np.ndarray) -> None:
    position = 0
    for f in range(lengths.shape[0]):
        for b in range(lengths.shape[1]):
            word = digests[b] + np.uint64(lengths[f, b])
            for _ in range(lengths[f, b]):
                word = mix(word ^ np.uint64(values[position]))
                position += 1
            digests[b] = mix(word)


if __name__ == "__main__":
    main()
