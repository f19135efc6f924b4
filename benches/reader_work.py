"""The work of the reader bench, and the memory of a process that does it.

    python -m benches.reader_work TABLE

reads the table once and prints, as JSON, the process's resident memory after imports and at its peak. No TorchRec here:
a process that only reads does not need it.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from recoup.reader import Clamp, Hash, Log1p, Modulo, ReaderConfig, SessionReader, Truncate
from recoup.table import SessionTable, open_table

BATCH_SIZE = 4096


@dataclass(frozen=True, kw_only=True)
class Work:
    """The same work for both readers: which columns, and which transforms."""

    modulo: tuple[str, ...]
    hashed: tuple[str, ...]
    dense: tuple[str, ...]
    label: str
    last: int = 50
    modulo_size: int = 1_000_003
    hash_size: int = 1_000_000
    low: float = 0.0
    high: float = 100_000.0

    @property
    def sparse(self) -> tuple[str, ...]:
        return self.modulo + self.hashed


def work_of(table: SessionTable) -> Work:
    schema = table.schema
    return Work(
        modulo=tuple(f.name for f in schema.sparse if f.group),
        hashed=tuple(f.name for f in schema.sparse if not f.group),
        dense=schema.dense_names,
        label=schema.labels[0],
    )


def config_of(work: Work, **overrides: object) -> ReaderConfig:
    """Return the reader's configuration of the same work."""
    transforms = (
        Truncate(features=work.modulo, last=work.last),
        Modulo(features=work.modulo, size=work.modulo_size),
        Hash(features=work.hashed, size=work.hash_size),
        Clamp(features=work.dense, low=work.low, high=work.high),
        Log1p(features=work.dense),
    )
    return ReaderConfig(**{"batch_size": BATCH_SIZE, "transforms": transforms, **overrides})


def main() -> None:
    """Read the table named on the command line and report memory."""
    table = open_table(sys.argv[1])
    before = _resident_mib("VmRSS")
    for _batch in SessionReader(table, config_of(work_of(table))):
        pass
    print(json.dumps({"peak_mib": _resident_mib("VmHWM"), "imports_mib": before}))


def _resident_mib(field: str) -> float:
    status = Path(f"/proc/{os.getpid()}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024


if __name__ == "__main__":
    main()
