"""Write any log as canonical row-per-sample Parquet: a folder of parts that appears whole or not at all.

Parts are written into a hidden folder beside the target and the folder is renamed at the end. A killed conversion can
be resumed: finished parts are kept, the source is streamed again past them. The settings are stored beside the parts
(`_conversion.json`), so a resume with other settings is refused.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recoup.core import Progress, no_progress, sync_folder, temporary_path, write_json_atomic
from recoup.log.errors import LogError
from recoup.log.source import LogSource
from recoup.schema import sample_schema

SETTINGS_FILE = "_conversion.json"
ROW_GROUP_SAMPLES = 1 << 15
"""Rows of a row group: 90 MB of recd-like IDs."""
PART_SAMPLES = 1 << 20
"""Rows of a part unless asked otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Converted:
    """What a conversion wrote."""

    num_samples: int
    num_parts: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """How to write, and what to do about an existing target."""

    overwrite: bool = False
    """Replace an existing target once the new one is complete."""
    resume: bool = False
    """Go on after the finished parts of a killed conversion; a complete target with the same settings is left alone."""
    part_samples: int = PART_SAMPLES


def convert_log(
    source: LogSource,
    settings: Mapping[str, Any],
    target: Path,
    options: ConvertOptions,
    progress: Progress = no_progress,
) -> Converted:
    """Write `source` to the folder `target` as `part-00000.parquet`, ... of `sample_schema`.

    Args:
        source: the log.
        settings: the plain configuration of the source, stored and compared on resume.
        target: the folder; it appears complete or not at all.
        options: overwrite or resume, and the size of a part.
        progress: see `LogSource.batches`.
    Raises:
        LogError: the target exists without `overwrite` or `resume`, or was made with other settings.
    """
    wanted = json.loads(json.dumps({"log": dict(settings), "part_samples": options.part_samples}))
    building = target.with_name(f".{target.name}.building")
    if target.exists() and not options.overwrite:
        if not options.resume:
            raise LogError(f"expected a new folder, got an existing '{target}': give --overwrite or --resume")
        _same_settings(target, wanted)
        return _measure(target)
    if building.exists():
        if options.resume:
            _same_settings(building, wanted)
        else:
            shutil.rmtree(building)
    building.mkdir(parents=True, exist_ok=True)
    write_json_atomic(building / SETTINGS_FILE, wanted)
    _write_parts(source, building, options.part_samples, progress)
    if target.exists():
        aside = target.with_name(f".{target.name}.replaced.{os.getpid()}")
        target.rename(aside)
        building.rename(target)
        shutil.rmtree(aside)
    else:
        building.rename(target)
    sync_folder(target.parent)
    return _measure(target)


def _write_parts(source: LogSource, folder: Path, part_samples: int, progress: Progress) -> None:
    for stale in folder.glob(".*.tmp"):
        stale.unlink()
    done = len(list(folder.glob("part-*.parquet")))
    schema = sample_schema(source.schema)
    batches = _skip(source, done * part_samples, progress)
    for number, part in enumerate(_parts(batches, part_samples), start=done):
        path = folder / f"part-{number:05d}.parquet"
        temporary = temporary_path(path)
        with pq.ParquetWriter(temporary, schema, compression="zstd", write_page_checksum=True) as writer:
            for group in _row_groups(part):
                writer.write_table(group)
        _flush(temporary)
        temporary.replace(path)
    if not list(folder.glob("part-*.parquet")):
        pq.write_table(schema.empty_table(), folder / "part-00000.parquet")


def _skip(source: LogSource, samples: int, progress: Progress) -> Iterator[pa.RecordBatch]:
    """Yield the batches after the first `samples` samples."""
    for batch in source.batches(progress=progress):
        if samples >= batch.num_rows:
            samples -= batch.num_rows
        else:
            yield batch.slice(samples)
            samples = 0


def _parts(batches: Iterator[pa.RecordBatch], part_samples: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """Cut a stream into parts of `part_samples` rows, the last perhaps shorter; consume each before the next."""
    rest: list[pa.RecordBatch] = []

    def one_part() -> Iterator[pa.RecordBatch]:
        missing = part_samples
        while missing:
            batch = rest.pop() if rest else next(batches, None)
            if batch is None:
                return
            if batch.num_rows > missing:
                rest.append(batch.slice(missing))
                batch = batch.slice(0, missing)
            missing -= batch.num_rows
            yield batch

    while True:
        first = rest.pop() if rest else next(batches, None)
        if first is None:
            return
        rest.append(first)
        yield one_part()


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= ROW_GROUP_SAMPLES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _same_settings(folder: Path, wanted: dict[str, Any]) -> None:
    try:
        found = json.loads((folder / SETTINGS_FILE).read_text())
    except (OSError, ValueError):
        raise LogError(
            f"expected the settings of a conversion in '{folder / SETTINGS_FILE}', got none: give --overwrite"
        ) from None
    if found != wanted:
        before, now = ({**value.get("log", {}), "part_samples": value.get("part_samples")} for value in (found, wanted))
        key = next(name for name in sorted({*before, *now}) if before.get(name) != now.get(name))
        raise LogError(
            f"expected the settings '{folder}' was made with, {key} = {before.get(key)!r}, got {now.get(key)!r}: "
            "give --overwrite, or --resume with the same settings"
        )


def _measure(folder: Path) -> Converted:
    files = sorted(folder.glob("part-*.parquet"))
    return Converted(
        num_samples=sum(pq.read_metadata(file).num_rows for file in files),
        num_parts=len(files),
        num_bytes=sum(file.stat().st_size for file in files),
    )
