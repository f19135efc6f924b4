"""Append a later log to a table: new parts under a new manifest; the parts that are there stay as they are.

Guarantee: as a build: the folder holds the older table or the longer one, at every moment; a stopped append goes on
with `resume`. What belongs to the border is in `border`.
"""

import json
from dataclasses import fields, replace
from pathlib import Path

from recoup.core import Progress, no_progress
from recoup.log import LogSource
from recoup.schema import Schema
from recoup.table.added import regrouped, with_histories
from recoup.table.border import Border
from recoup.table.build_config import BuildConfig
from recoup.table.errors import TableError
from recoup.table.layout import row_schema
from recoup.table.manifest import Counts, Manifest, Part, write_manifest
from recoup.table.session_table import open_table
from recoup.table.strays import remove_strays
from recoup.table.work import BuildWork


def append_table(
    source: LogSource, path: Path, config: BuildConfig, *, resume: bool = False, progress: Progress = no_progress
) -> Manifest:
    """Append the samples of `source` that are later than the table in `path`, and return the new manifest.

    Args:
        source: the later log; of the table's schema.
        path: folder of a complete table.
        config: sessions, histories, means and groups as the table was built with; memory and layout are free.
        resume: go on with an append of the same log that was stopped.
        progress: as of `build_table`.
    Raises:
        TableError: there is no table, it was built otherwise, or the disk is full; or the past that histories need was
            sampled out of it. Nothing was committed.
        LogError: the log is damaged.
    Cost: of a build of the new samples alone; with histories or means, whose past is in the table, of all samples.
        Also a pass over the table's time column.
    """
    table = open_table(path)
    schema = regrouped(with_histories(source.schema, config.histories, config.means), config.groups)
    check_same(table.manifest, schema, config)
    if (config.histories or config.means) and table.manifest.counts.sampled_out:
        raise TableError(
            f"expected a table of all sessions to go on with its histories and means, got one of which "
            f"{table.manifest.counts.sampled_out} samples were sampled out ('{path}'): build it again from both logs"
        )
    border = Border(table, earlier=bool(config.histories or config.means))
    work = BuildWork(path, source, config, resume=resume, border=border)
    manifest = table.manifest
    if not work.is_committed:
        runs = work.encode(progress)
        parts = work.write(runs, row_schema(schema), progress)
        manifest = longer(table.manifest, work.generation, parts, work.counts(runs), source.describe())
        write_manifest(path, manifest)
    remove_strays(path, manifest)
    return manifest


def longer(
    manifest: Manifest, generation: int, parts: tuple[Part, ...], counts: Counts, source: dict[str, object]
) -> Manifest:
    """Return the manifest of a table with these parts appended."""
    totals = {one.name: getattr(manifest.counts, one.name) + getattr(counts, one.name) for one in fields(Counts)}
    kept = tuple(part for part in (*manifest.parts, *parts) if part.rows)
    return replace(
        manifest,
        generation=generation,
        counts=Counts(**totals),
        parts=kept or manifest.parts,
        source=json.dumps([*_sources(manifest.source), source], sort_keys=True, default=str),
    )


def check_same(manifest: Manifest, schema: Schema, config: BuildConfig) -> None:
    """Refuse to append what is of another schema, or built by other rules.

    Raises:
        TableError: says what differs.
    """
    pairs = {
        "schema": (manifest.schema, schema),
        "sessions": (manifest.sessions, config.sessions),
        "histories": (manifest.histories, config.histories),
        "means": (manifest.means, config.means),
    }
    for name, (held, given) in pairs.items():
        if held != given:
            raise TableError(
                f"expected the {name} that the table was built with, {held}, got {given}: append with the same "
                "configuration, or build a new table"
            )


def _sources(source: str) -> list[object]:
    held = json.loads(source) if source else []
    return held if isinstance(held, list) else [held]
