"""Do sessions in one batch cost quality, and does the IID guard mend it? KuaiRand-Pure, the log's own users and clicks.

Three orders of the same training samples (the first 80 % by time), the same model, five seeds: chronological (every
sample by its time), clustered (whole users shuffled: all of a user's samples side by side), guarded (the same shuffle,
at most `--guard` samples of a user in a batch). The test part (the last 20 %) is the same for all.

    python -m benches.iid [--quick]
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from rich.console import Console

from recoup.log import KuaiRandLog, LogSource, open_log
from recoup.model import DLRMConfig, EmbeddingTable
from recoup.reader import Log1p, Modulo, ReaderConfig, SessionReader
from recoup.report import summary_table
from recoup.schema import Schema
from recoup.table import BuildConfig, SessionRule, SessionTable, build_table, open_table
from recoup.train import TrainConfig, Trainer

DATA = Path(__file__).parents[2] / "shared" / "data" / "kuairand"
FEATURES = {"user_id": 30_000, "user_active_degree": 16, "video_id": 8_000, "author_id": 8_000, "tag": 70, "tab": 16}
DENSE = ("follow_user_num", "fans_user_num", "register_days", "video_duration")
BATCH = 1024


@dataclass(frozen=True, slots=True)
class Part:
    """The samples of a log whose time lies on one side of a moment."""

    log: LogSource
    before: int
    after: int

    @property
    def schema(self) -> Schema:
        return self.log.schema

    @property
    def num_bytes(self) -> int | None:
        return self.log.num_bytes

    def describe(self) -> dict[str, Any]:
        return {**self.log.describe(), "before": self.before, "after": self.after}

    def batches(self, columns: Sequence[str] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in self.log.batches(columns, **options):
            time = batch.column(self.schema.time).to_numpy()
            yield batch.filter(pa.array((time >= self.after) & (time < self.before)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--guard", type=int, default=2, help="samples of a user in a batch")
    args = parser.parse_args()
    if not DATA.is_dir():
        print(json.dumps({"skipped": f"no KuaiRand data at '{DATA}'"}))
        sys.exit(0)
    seeds = range(2 if args.quick else 5)
    with tempfile.TemporaryDirectory() as name:
        tables = build(Path(name))
        aucs: dict[str, list[float]] = {}
        sessions: dict[str, float] = {}
        for order in ("chronological", "clustered", "guarded"):
            for seed in seeds:
                auc, mean = train(tables, order, seed, args.guard)
                aucs.setdefault(order, []).append(auc)
                sessions[order] = mean
    rows = [(order, statistics.mean(v), error(v), sessions[order]) for order, v in aucs.items()]
    title, columns = "Order of training samples (KuaiRand-Pure)", ("order", "AUC", "std. error", "users a batch")
    note = f"{len(seeds)} seeds, one epoch, batch {BATCH}; guard: {args.guard} samples of a user in a batch"
    Console().print(summary_table(title, columns, rows, note).rich())
    result: dict[str, Any] = {f"auc_{order}": statistics.mean(v) for order, v in aucs.items()}
    result |= {f"auc_{order}_error": error(v) for order, v in aucs.items()}
    result |= {"users_per_batch": sessions, "num_seeds": len(seeds), "guard": args.guard}
    print(json.dumps(result))


def build(folder: Path) -> dict[str, SessionTable]:
    """Return the training samples one a row, by time; the same a user a row; and the test samples."""
    log = open_log(KuaiRandLog(path=str(DATA)))
    times = np.concatenate([batch.column(0).to_numpy() for batch in log.batches([log.schema.time])])
    cut = int(np.quantile(times, 0.8))
    everything, nothing = 2**62, -(2**62)
    alone = BuildConfig(sessions=SessionRule(gap=timedelta(milliseconds=1), max_session_samples=1))
    by_user = BuildConfig(sessions=SessionRule())
    build_table(Part(log, cut, nothing), folder / "chronological", alone)
    build_table(Part(log, cut, nothing), folder / "by_user", by_user)
    build_table(Part(log, everything, cut), folder / "test", by_user)
    tables = {name: open_table(folder / name) for name in ("chronological", "by_user", "test")}
    assert tables["chronological"].num_samples == tables["by_user"].num_samples, "the same training samples"
    return tables


def train(tables: dict[str, SessionTable], order: str, seed: int, guard: int) -> tuple[float, float]:
    """Return test AUC and mean users a batch."""
    table = tables["chronological" if order == "chronological" else "by_user"]
    transforms = (*(Modulo(features=(f,), size=n) for f, n in FEATURES.items()), Log1p(features=DENSE))
    config = ReaderConfig(
        batch_size=BATCH,
        shuffle="chronological" if order == "chronological" else "full",
        window_sessions=1 << 20,
        max_samples_per_session_per_batch=guard if order == "guarded" else 0,
        seed=seed,
        features=tuple(FEATURES),
        dense=DENSE,
        transforms=transforms,
    )
    embeddings = tuple(
        EmbeddingTable(name=f"t_{f}", num_embeddings=n, embedding_dim=8, features=(f,), init_range=0.01)
        for f, n in FEATURES.items()
    )
    model = DLRMConfig(tables=embeddings, bottom_mlp=(32,), top_mlp=(64,), interaction="dot_concat", label="is_click")
    reader = SessionReader(table, config)
    schema = replace(
        table.schema,
        sparse=tuple(table.schema.sparse_feature(f) for f in table.schema.sparse_names if f in FEATURES),
        dense=tuple(d for d in table.schema.dense if d.name in DENSE),
    )
    trainer = Trainer(model, TrainConfig(seed=seed, table_lr=0.03, dense_lr=2e-3), schema)
    for batch in reader:
        trainer.step(batch)
    test = SessionReader(tables["test"], replace(config, shuffle="chronological", max_samples_per_session_per_batch=0))
    return trainer.evaluate(test).auc, reader.report.sessions_per_batch


def error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
