"""How many bytes does a log take: as rows in time order, as rows clustered by session, as a session table?

Rows are what a peer would write: zstd Parquet of the same level, and for every column the smallest of plain, dictionary
and split bytes over the whole file (the table chooses by column too). `ratio_vs_interleaved` is rows in time order over
the table (RecD's claim is 3.71x); it is the product of what clustering alone gains and of `ratio_vs_clustered`, what
encoding each repeat once gains on top. All three hold the same samples; that is asserted first.

    python -m benches.storage [--quick] [--samples N]
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from recoup.log import KuaiRandLog, SyntheticLog, open_log
from recoup.log.source import LogSource
from recoup.schema import Schema, sample_schema
from recoup.table import BuildConfig, HistoryFeature, SessionRule, SessionTable, build_table, open_table

KUAIRAND = Path(__file__).parents[1].parent / "shared" / "data" / "kuairand"
LEVEL = 3
ROW_GROUP = 65_536  # larger ones compress no better


@dataclass(frozen=True)
class Sizes:
    """Bytes of the same samples in three forms, and how many columns of the rows were smallest in which encoding."""

    samples: int
    interleaved: int
    clustered: int
    table: int
    encodings: dict[str, dict[str, int]]

    @property
    def ratio_vs_interleaved(self) -> float:
        return self.interleaved / self.table

    @property
    def ratio_vs_clustered(self) -> float:
        return self.clustered / self.table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples: under 50 s on 2 cores")
    parser.add_argument("--samples", type=int, help="samples of the recd-like log")
    arguments = parser.parse_args()
    num_samples = arguments.samples or (
        300_000 if arguments.quick else 1_000_000
    )  # fewer could not interleave as the standard says
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        source = open_log(SyntheticLog(num_samples=num_samples))
        sizes = measure(source, BuildConfig(), Path(name) / "recd")
        show("recd-like (synthetic)", sizes)
        result |= {
            "ratio_vs_interleaved": round(sizes.ratio_vs_interleaved, 3),
            "ratio_vs_clustered": round(sizes.ratio_vs_clustered, 3),
            "ratio_clustered_vs_interleaved": round(sizes.interleaved / sizes.clustered, 3),
            "samples": sizes.samples,
            "table_bytes": sizes.table,
        }
        if KUAIRAND.is_dir():
            for gap, title in ((timedelta(minutes=30), "gap_30m"), (None, "user")):
                source, config = kuairand(gap, quick=arguments.quick)
                sizes = measure(source, config, Path(name) / f"kuairand_{title}")
                show(f"KuaiRand, histories frozen daily, sessions: {title}", sizes)
                result |= {
                    f"kuairand_{title}_ratio_vs_interleaved": round(sizes.ratio_vs_interleaved, 3),
                    f"kuairand_{title}_ratio_vs_clustered": round(sizes.ratio_vs_clustered, 3),
                }
        else:
            print("KuaiRand: left out, no data at ../shared/data/kuairand")
    print(json.dumps(result))


def kuairand(gap: timedelta | None, *, quick: bool) -> tuple[LogSource, BuildConfig]:
    """Return the real log with three daily-frozen histories; quick: every fourth session."""
    histories = tuple(
        HistoryFeature(name=name, source="video_id", last=50, freeze="day", label=label)
        for name, label in (("seen", ""), ("clicked", "is_click"), ("long_viewed", "long_view"))
    )
    config = BuildConfig(sessions=SessionRule(gap=gap), histories=histories, sample_sessions=0.25 if quick else 1.0)
    return open_log(KuaiRandLog(path=str(KUAIRAND))), config


def measure(source: LogSource, config: BuildConfig, folder: Path) -> Sizes:
    """Build the table, write its samples as rows in both orders, check that all three are equal, and weigh them."""
    folder.mkdir()
    build_table(source, folder / "table", config)
    table = open_table(folder / "table")
    if config.histories or config.sample_sessions < 1.0:  # the log does not hold these samples: take the table's
        table.export_rows(folder / "time.parquet", order="time")
        with pq.ParquetFile(folder / "time.parquet", pre_buffer=False) as file:
            interleaved = write_rows(file.iter_batches(8192), table, folder)
    else:
        interleaved = write_rows(source.batches(), table, folder)
    clustered = write_rows(table.iter_samples(), table, folder)
    assert interleaved.digest == clustered.digest, "the same samples"
    encodings = {"time": interleaved.encodings, "session": clustered.encodings}
    return Sizes(table.num_samples, interleaved.bytes, clustered.bytes, table.num_bytes, encodings)


@dataclass(frozen=True)
class Rows:
    """What samples take as rows, each column in its smallest encoding; and a digest of their multiset."""

    bytes: int
    encodings: dict[str, int]
    digest: int


def write_rows(batches: Iterable[pa.RecordBatch], table: SessionTable, folder: Path) -> Rows:
    """Write the samples in each encoding, side by side; weigh the file that has every column in its smallest one."""
    schema = sample_schema(table.schema)
    split = {_leaf(field): "BYTE_STREAM_SPLIT" for field in schema if not pa.types.is_string(field.type)}
    options: dict[str, dict[str, object]] = {
        "plain": {"use_dictionary": False},
        "dictionary": {"use_dictionary": True},
        "split": {"use_dictionary": False, "column_encoding": split},
    }
    paths = {name: folder / f"{name}.parquet" for name in options}
    writers = [
        pq.ParquetWriter(paths[name], schema, compression="zstd", compression_level=LEVEL, **chosen)
        for name, chosen in options.items()
    ]
    digest = 0
    with ThreadPoolExecutor(2) as pool:
        for rows in _row_groups(batches, schema):
            list(pool.map(lambda writer, rows=rows: writer.write_table(rows, row_group_size=ROW_GROUP), writers))
            digest += sum(sample_digests(batch, table.schema) for batch in rows.to_batches())
    for writer in writers:
        writer.close()
    sizes = {name: column_bytes(path) for name, path in paths.items()}
    best = [min(sizes, key=lambda name, i=i: sizes[name][i]) for i in range(len(sizes["plain"]))]
    footer = min(path.stat().st_size - int(sizes[name].sum()) for name, path in paths.items())
    num_bytes = footer + sum(int(sizes[name][i]) for i, name in enumerate(best))
    return Rows(num_bytes, {name: best.count(name) for name in options}, digest % 2**64)


def _leaf(field: pa.Field) -> str:
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


def column_bytes(path: Path) -> np.ndarray:
    """Return the compressed bytes of each column of a file."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return np.array(
        [sum(group.column(i).total_compressed_size for group in groups) for i in range(metadata.num_columns)]
    )


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch.cast(schema))
        if sum(b.num_rows for b in waiting) >= ROW_GROUP:
            yield pa.Table.from_batches(waiting)
            waiting = []
    yield pa.Table.from_batches(waiting, schema)


def sample_digests(batch: pa.RecordBatch, schema: Schema) -> int:
    """Return the sum of a 64-bit digest of every sample: of its numbers and of its lists with their borders."""
    digests = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in (schema.time, *schema.labels, *schema.dense_names):
        column = batch.column(name).to_numpy(zero_copy_only=False)
        _mix(column.astype(np.float64).view(np.int64), np.arange(batch.num_rows + 1), digests)
    for name in schema.sparse_names:
        column = batch.column(name)
        _mix(column.values.to_numpy(), column.offsets.to_numpy().astype(np.int64), digests)
    return int(digests.sum())


@njit(cache=True)
def _mix(values: np.ndarray, offsets: np.ndarray, digests: np.ndarray) -> None:
    for i in range(digests.shape[0]):
        word = digests[i] * np.uint64(0x9E3779B97F4A7C15) + np.uint64(offsets[i + 1] - offsets[i])
        for j in range(offsets[i], offsets[i + 1]):
            word = (word ^ np.uint64(values[j])) * np.uint64(0xFF51AFD7ED558CCD)
            word ^= word >> np.uint64(32)
        digests[i] = word


def show(title: str, sizes: Sizes) -> None:
    print(f"{title}: {sizes.samples} samples")
    for name, size in (
        ("rows in time order", sizes.interleaved),
        ("rows clustered by session", sizes.clustered),
        ("session table", sizes.table),
    ):
        per_sample = size / max(1, sizes.samples)
        print(
            f"  {name:28}{size / 1e6:>10.2f} MB{per_sample:>10.1f} bytes a sample{size / sizes.table:>8.2f}x the table"
        )
    print(f"  columns of the rows by smallest encoding: {sizes.encodings}")


if __name__ == "__main__":
    main()
