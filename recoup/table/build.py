"""Build a session table from a log: bucket by key, sort, encode, order by session start, commit.

Guarantee: the folder holds the older complete table or the newer one, at every moment; the manifest is the commit.
A build that was killed goes on with `resume`: the spool and the finished runs are not made again,
nor finished parts.
"""

import json
from pathlib import Path

from recoup.core import Progress, no_progress
from recoup.log import LogSource
from recoup.table.added import regrouped, with_histories
from recoup.table.build_config import BuildConfig
from recoup.table.errors import TableError
from recoup.table.layout import row_schema
from recoup.table.manifest import MANIFEST, WORK, Manifest, read_manifest, write_manifest
from recoup.table.strays import remove_strays
from recoup.table.work import STATE, BuildWork


def build_table(
    source: LogSource,
    path: Path,
    config: BuildConfig,
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress = no_progress,
) -> Manifest:
    """Build the table of `source` in the folder `path` and return its manifest.

    Args:
        source: the log, streamed once.
        path: folder of the table; created.
        config: sessions, histories, memory.
        overwrite: replace a complete table that is already there; it stays whole until the new one is committed.
        resume: go on with a build of the same log and configuration that was stopped, whatever it finished is kept;
            without one, a complete table is returned as it is.
        progress: called as ("read log", ...), ("encode sessions", buckets), ("write table", samples).
    Raises:
        TableError: a table is already there, a build to resume is of another log, or the disk is full.
        LogError: the log is damaged.
    Cost: linear: every sample is spooled once, sorted within its bucket, encoded, written. Disk: `disk_needed`,
        freed at the end.
    """
    if not _starts(path, overwrite=overwrite, resume=resume):
        return read_manifest(path)
    work = BuildWork(path, source, config, resume=resume)
    if work.is_committed:
        manifest = read_manifest(path)
    else:
        runs = work.encode(progress)
        schema = regrouped(with_histories(source.schema, config.histories, config.means), config.groups)
        manifest = Manifest(
            generation=work.generation,
            schema=schema,
            sessions=config.sessions,
            histories=config.histories,
            means=config.means,
            predictions=config.predictions,
            counts=work.counts(runs),
            parts=work.write(runs, row_schema(schema), progress),
            source=json.dumps(source.describe(), sort_keys=True, default=str),
        )
        write_manifest(path, manifest)
    remove_strays(path, manifest)
    return manifest


def _starts(path: Path, *, overwrite: bool, resume: bool) -> bool:
    """Return whether there is something to build: no complete table, one to replace, or a stopped build."""
    if not (path / MANIFEST).exists():
        path.mkdir(parents=True, exist_ok=True)
        return True
    if overwrite or resume:
        return overwrite or (path / WORK / STATE).exists()
    raise TableError(
        f"expected no table in '{path}', got a complete one: use --overwrite to replace it or --resume to keep it"
    )
