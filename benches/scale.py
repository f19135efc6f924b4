"""How fast, how linear and in how much memory does the embedded builder make a table?

The recd-like log, as row-per-sample Parquet in time order, becomes a session table at N, 2N and 4N samples, each in a
process of its own: `exponent` is the slope of log(seconds) over log(samples). The baseline is what a peer would do with
the same engine: DuckDB reads the same file and writes it sorted by session and time as
row-per-sample zstd Parquet. Both results hold the same samples; that is asserted first.

    python -m benches.scale [--quick] [--samples N] [--narrow]
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recoup.log import ParquetLog, SyntheticLog, open_log
from recoup.log.synthetic import SyntheticGroup, synthetic_schema
from recoup.schema import sample_schema
from recoup.table import BuildConfig, build_table, disk_needed, open_table

MEMORY_BYTES = 384_000_000
SORT_MEMORY_BYTES = (2_000_000_000, 8_000_000_000)
"""DuckDB cannot sort the log within 1 GiB resident; the first is where it is fastest, the second for larger logs."""
NARROW = (
    SyntheticGroup(name="user", prefix="u", num_features=1, repeat=0.95, mean_length=5, min_length=5, max_length=5),
    SyntheticGroup(
        name="history",
        prefix="hist",
        num_features=1,
        repeat=0.75,
        shift=True,
        mean_length=5,
        min_length=5,
        max_length=5,
    ),
)


def log_config(num_samples: int, *, narrow: bool) -> SyntheticLog:
    if narrow:
        return SyntheticLog(num_samples=num_samples, groups=NARROW, num_item_features=1, item_length=5.0, num_dense=0)
    return SyntheticLog(num_samples=num_samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples: under 50 s on 2 cores")
    parser.add_argument("--samples", type=int, help="samples of the largest log")
    parser.add_argument("--narrow", action="store_true", help="three sparse features of length 5 instead")
    parser.add_argument("--step", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(_step(*arguments.step)))
        return
    largest = arguments.samples or (240_000 if arguments.quick else 1_000_000)
    sizes = [largest // 4, largest // 2, largest]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_logs(folder, sizes, narrow=arguments.narrow)
        _run("build", folder, sizes[0])  # compiles the kernels, once a machine
        _remove(folder / f"table-{sizes[0]}")
        builds = []
        for size in sizes:
            builds.append(_run("build", folder, size))
            print(f"built {size} samples: {builds[-1]}", flush=True)
        sort = _run("sort", folder, largest)
        assert _digest_of_table(folder / f"table-{largest}") == _digest_of_rows(folder / f"sorted-{largest}.parquet")
        table_bytes = open_table(folder / f"table-{largest}").num_bytes
        sorted_bytes = (folder / f"sorted-{largest}.parquet").stat().st_size
    _report(sizes, builds, sort, {"table": table_bytes, "sorted": sorted_bytes})


def _report(sizes: list[int], builds: list[dict], sort: dict, sizes_on_disk: dict[str, int]) -> None:
    seconds = [build["seconds"] for build in builds]
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    print(f"{'':24}{'samples':>10}{'seconds':>10}{'samples/s':>12}{'peak MiB':>10}{'MB':>9}")
    for size, build in zip(sizes, builds, strict=True):
        rate = size / build["seconds"]
        print(f"{'recoup table build':24}{size:>10}{build['seconds']:>10.2f}{rate:>12.0f}{build['peak_mib']:>10.0f}")
    rate = sizes[-1] / sort["seconds"]
    megabytes = sizes_on_disk["sorted"] / 1e6
    print(
        f"{'DuckDB, sorted rows':24}{sizes[-1]:>10}{sort['seconds']:>10.2f}{rate:>12.0f}{sort['peak_mib']:>10.0f}"
        f"{megabytes:>9.1f}"
    )
    print(f"the table: {sizes_on_disk['table'] / 1e6:.1f} MB; the same samples in both (checked)")
    result = {
        "build_samples_per_s": round(sizes[-1] / seconds[-1]),
        "exponent": round(exponent, 3),
        "peak_mib": round(builds[-1]["peak_mib"]),
        "ratio_vs_duckdb_sort": round(sort["seconds"] / seconds[-1], 3),
        "samples": sizes[-1],
        "spill_mb": round(builds[-1]["disk"] / 1e6, 1),
        "spill_mb_stated": round(builds[-1]["disk_stated"] / 1e6, 1),
        "cpu_seconds": round(builds[-1]["cpu_seconds"], 2),
        "duckdb_cpu_seconds": round(sort["cpu_seconds"], 2),
        "duckdb_peak_mib": round(sort["peak_mib"]),
    }
    print(json.dumps(result))


def _write_logs(folder: Path, sizes: list[int], *, narrow: bool) -> None:
    """Write the log of each size; a smaller one is not the head of a larger, so that its sessions are whole."""
    for size in sizes:
        source = open_log(log_config(size, narrow=narrow))
        with pq.ParquetWriter(folder / f"log-{size}.parquet", sample_schema(source.schema), compression="zstd") as file:
            for batch in source.batches():
                file.write_batch(batch)
    (folder / "narrow").write_text(json.dumps(narrow))


def _run(step: str, folder: Path, size: int) -> dict:
    command = [sys.executable, "-m", "benches.scale", "--step", step, str(folder), str(size)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return json.loads(output.stdout.splitlines()[-1])


def _step(step: str, name: str, size: str) -> dict:
    folder = Path(name)
    log = folder / f"log-{size}.parquet"
    began, worked = time.perf_counter(), time.process_time()
    if step == "build":
        schema = synthetic_schema(log_config(1, narrow=json.loads((folder / "narrow").read_text())))
        source = open_log(ParquetLog(path=str(log), schema=schema))
        with _Watched(folder / f"table-{size}" / ".build") as watched:
            build_table(source, folder / f"table-{size}", BuildConfig(memory_bytes=MEMORY_BYTES))
    else:
        _sort(log, folder / f"sorted-{size}.parquet")
    took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}
    disk = {"disk": watched.peak, "disk_stated": disk_needed(source)} if step == "build" else {}
    return {**took, "peak_mib": _peak_mib(), **disk}


class _Watched:
    """The greatest size of a folder while it is looked at, twenty times a second."""

    def __init__(self, folder: Path) -> None:
        self.peak = 0
        self._folder = folder
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Watched":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            with contextlib.suppress(FileNotFoundError):  # a file may go while the folder is looked at
                self.peak = max(self.peak, sum(file.stat().st_size for file in self._folder.iterdir()))


def _sort(log: Path, target: Path) -> None:
    for memory in SORT_MEMORY_BYTES:
        try:
            _sort_within(memory, log, target)
        except duckdb.OutOfMemoryException:
            target.unlink(missing_ok=True)
        else:
            return
    raise MemoryError(f"DuckDB cannot sort '{log}' within {SORT_MEMORY_BYTES[-1]} bytes")


def _sort_within(memory: int, log: Path, target: Path) -> None:
    connection = duckdb.connect()
    connection.execute(f"SET memory_limit = '{memory // 1_000_000}MB'")
    connection.execute(f"SET temp_directory = '{target.with_suffix('.spill')}'")
    connection.execute("SET threads = 2")
    connection.execute(
        f"COPY (SELECT * FROM read_parquet('{log}') ORDER BY session_key, time) "
        f"TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
    )


def _digest_of_rows(path: Path) -> tuple:
    return _digest(duckdb.read_parquet(str(path)))


def _digest_of_table(path: Path) -> tuple:
    table = open_table(path)
    reader = pa.RecordBatchReader.from_batches(sample_schema(table.schema), table.iter_samples())
    return _digest(duckdb.from_arrow(reader))


def _digest(rows: duckdb.DuckDBPyRelation) -> tuple:
    columns = ", ".join(f'"{name}"' for name in sorted(rows.columns))
    return rows.aggregate(f"count(*), sum(hash({columns})::HUGEINT), bit_xor(hash({columns}))").fetchall()[0]


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def _remove(folder: Path) -> None:
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()


if __name__ == "__main__":
    main()
