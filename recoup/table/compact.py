"""Merge small parts into large ones: what many appended days leave. The same rows in the same order, by partition.

Guarantee: the folder holds the older set of parts or the newer one, at every moment. Killed before the commit, nothing
has changed, and what was written is removed by the next build, append or compaction. A stopped append is dropped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from recoup.core import Progress, no_progress
from recoup.table.layout import row_schema
from recoup.table.manifest import Manifest, Part, write_manifest
from recoup.table.session_table import SessionTable, open_table
from recoup.table.strays import remove_strays
from recoup.table.writer import TableWriter, WriterConfig


def compact_table(path: Path, config: WriterConfig, *, progress: Progress = no_progress) -> Manifest:
    """Merge neighbouring parts of the table in `path` that together stay below `part_bytes`; return the manifest.

    Args:
        path: folder of a complete table.
        config: size of parts and row groups; `partition_by` is the table's own, parts of two partitions stay apart.
        progress: called as ("compact", parts done, parts).
    Raises:
        TableError: a part is missing or damaged; nothing was changed.
    Cost: reads and writes the parts that are merged, once; memory of a row group.
    """
    table = open_table(path)
    remove_strays(path, table.manifest)
    generation = table.manifest.generation + 1
    parts: list[Part] = []
    groups = list(mergeable(table.manifest.parts, config.part_bytes))
    for number, group in enumerate(groups):
        merged = group if len(group) == 1 else _merged(table, group, config, f"part-{generation:04d}-{number:05d}")
        parts += merged if len(merged) < len(group) else group  # an ID without a code may need a part of its own
        progress("compact", number + 1, len(groups))
    if tuple(parts) == table.manifest.parts:
        remove_strays(path, table.manifest)
        return table.manifest
    manifest = replace(table.manifest, generation=generation, parts=tuple(parts))
    write_manifest(path, manifest)
    remove_strays(path, manifest)
    return manifest


def mergeable(parts: Sequence[Part], part_bytes: int) -> Iterator[tuple[Part, ...]]:
    """Yield runs of neighbouring parts of one partition whose uncompressed bytes together stay within `part_bytes`."""
    run: list[Part] = []
    size = 0
    for part in parts:
        held = sum(group.bytes for group in part.row_groups)
        if run and (size + held > part_bytes or _partition(part) != _partition(run[0])):
            yield tuple(run)
            run.clear()
            size = 0
        run.append(part)
        size += held
    if run:
        yield tuple(run)


def _merged(table: SessionTable, group: tuple[Part, ...], config: WriterConfig, prefix: str) -> tuple[Part, ...]:
    partition = _partition(group[0])
    by = "none" if not partition else "day" if partition.startswith("day=") else "hour"
    writer = TableWriter(table.path, row_schema(table.schema), replace(config, partition_by=by), prefix=prefix)
    for rows in table.iter_rows(parts=group):
        writer.write(rows)
    return writer.close()


def _partition(part: Part) -> str:
    return part.name.rpartition("/")[0]
