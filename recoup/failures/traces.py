"""Failure traces: who fails when, drawn from a distribution or read from a recording.

Data in: a trace's configuration, the number of shards, a seed. Data out: failures in time order, without end for a
distribution. The same seed gives the same failures whatever else is drawn; no clock is read.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from recoup.core import ConfigError, generator, parse_duration
from recoup.failures.errors import FailureTraceError


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Some shards fail at one moment."""

    seconds: float
    """Since the start of the job, on the trace's (wall or virtual) clock."""
    shards: tuple[int, ...]
    """Which fail, ascending; never empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExponentialTrace:
    """Failures without memory: the times between them are exponential with mean `mtbf`."""

    mtbf: timedelta
    shards_at_once: int = 1
    """Distinct shards that each failure takes, drawn evenly."""
    kind: Literal["exponential"] = "exponential"

    def __post_init__(self) -> None:
        """Check the values."""
        _check(self.mtbf, 1.0, self.shards_at_once)


@dataclass(frozen=True, kw_only=True, slots=True)
class GammaTrace:
    """Times between failures are gamma with mean `mtbf`; shape below 1 = clustered, above 1 = regular."""

    mtbf: timedelta
    shape: float
    shards_at_once: int = 1
    kind: Literal["gamma"] = "gamma"

    def __post_init__(self) -> None:
        """Check the values."""
        _check(self.mtbf, self.shape, self.shards_at_once)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTrace:
    """A CSV file with the columns `time` (seconds since the start, or a duration such as 3h20m) and `shards` (0;3)."""

    path: Path
    kind: Literal["recorded"] = "recorded"


Trace: TypeAlias = ExponentialTrace | GammaTrace | RecordedTrace


def draw_failures(trace: Trace, num_shards: int, seed: int) -> Iterator[Failure]:
    """Yield the failures of `trace` in time order.

    Raises:
        ConfigError: a failure takes more shards than there are.
        FailureTraceError: a recording is missing, damaged, or names a shard that the job does not have.
    """
    if isinstance(trace, RecordedTrace):
        yield from read_trace(trace.path, num_shards)
        return
    if trace.shards_at_once > num_shards:
        raise ConfigError(f"shards_at_once must be at most {num_shards} shards, got {trace.shards_at_once}")
    shape = trace.shape if isinstance(trace, GammaTrace) else 1.0
    scale = trace.mtbf.total_seconds() / shape
    times, choices = generator(seed, "failures", "times"), generator(seed, "failures", "shards")
    now = 0.0
    while True:
        for gap in times.gamma(shape, scale, size=256).tolist():
            now += gap
            chosen = choices.choice(num_shards, size=trace.shards_at_once, replace=False)
            yield Failure(seconds=now, shards=tuple(sorted(chosen.tolist())))


def read_trace(path: Path, num_shards: int | None = None) -> list[Failure]:
    """Read a recorded trace.

    Args:
        path: CSV file with a header; extra columns are ignored; times must not decrease.
        num_shards: refuse shards at or above this; None = any.
    Raises:
        FailureTraceError: with the file and line.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not {"time", "shards"} <= set(reader.fieldnames or ()):
                raise FailureTraceError(f"{path}: expected the columns time and shards, got {reader.fieldnames}")
            failures = [_read_row(path, reader.line_num, row, num_shards) for row in reader]
    except OSError as err:
        raise FailureTraceError(f"expected a failure trace at {path}, got {err.strerror}") from err
    for before, after in pairwise(failures):
        if after.seconds < before.seconds:
            raise FailureTraceError(f"{path}: times must not decrease, got {before.seconds} then {after.seconds}")
    return failures


def write_trace(path: Path, failures: list[Failure]) -> None:
    """Write `failures` in the form that `read_trace` reads back equal."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "shards"])
        writer.writerows([repr(f.seconds), ";".join(map(str, f.shards))] for f in failures)


def _read_row(path: Path, line: int, row: dict[str, str], num_shards: int | None) -> Failure:
    where = f"{path} line {line}"
    try:
        text = (row["time"] or "").strip()
        seconds = float(text) if text[-1:].isdigit() or text.endswith(".") else parse_duration(text).total_seconds()
        shards = tuple(sorted({int(part) for part in (row["shards"] or "").split(";")}))
    except (ConfigError, ValueError) as err:
        raise FailureTraceError(f"{where}: expected a time and shards such as 3h20m,0;3, got {dict(row)}") from err
    if not (np.isfinite(seconds) and seconds >= 0):
        raise FailureTraceError(f"{where}: expected a time of at least 0, got {seconds}")
    if shards[0] < 0 or (num_shards is not None and shards[-1] >= num_shards):
        raise FailureTraceError(f"{where}: expected shards 0 to {(num_shards or 0) - 1}, got {list(shards)}")
    return Failure(seconds=seconds, shards=shards)


def _check(mtbf: timedelta, shape: float, shards_at_once: int) -> None:
    if mtbf <= timedelta(0):
        raise ConfigError(f"mtbf must be longer than 0, got {mtbf}")
    if not shape > 0:
        raise ConfigError(f"the shape of a gamma trace lies above 0, got {shape}")
    if shards_at_once < 1:
        raise ConfigError(f"shards_at_once must be at least 1, got {shards_at_once}")
