"""Build a session table with Spark: shuffle by session key, sort, encode, range by start, write, commit.

    samples ──hash by key──> sort by key, time ──encoder──> rows ──range by start──> sort ──> parts ──> manifest

The encoder and the writer are the embedded engine's, so the table holds the same samples and the same sessions. A task
that is retried or run twice leaves a file that the manifest does not name; it is removed after the commit.
The table's folder, and the samples, must be on storage that driver and executors reach under one path.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from recoup.core import ConfigError, Progress, from_table, no_progress, to_table
from recoup.log import ParquetLog
from recoup.schema import Schema, sample_schema
from recoup.table.added import regrouped, with_histories
from recoup.table.append import check_same, longer
from recoup.table.border import Border
from recoup.table.build_config import BuildConfig
from recoup.table.errors import TableError
from recoup.table.layout import row_schema
from recoup.table.manifest import (
    MANIFEST,
    PARTS,
    Counts,
    Manifest,
    Part,
    committed_generation,
    read_manifest,
    write_manifest,
)
from recoup.table.session_table import open_table
from recoup.table.spark.session import spark_session
from recoup.table.spark.tasks import ROW_ORDER, encode_task, write_task
from recoup.table.strays import remove_strays

Mode: TypeAlias = Literal["create", "overwrite", "append"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkBuild:
    """Where and how wide Spark runs.

    Raises:
        ConfigError: a count is not positive.
    """

    master: str = "local[*]"
    shuffle_partitions: int = 64
    """Key partitions; each is sorted by Spark, which spills, so a skewed key costs time and not memory."""
    parts: int = 8
    """Time ranges, hence parts at least."""
    options: dict[str, str] = field(default_factory=dict)
    """Further Spark settings."""

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.shuffle_partitions < 1 or self.parts < 1:
            raise ConfigError(
                f"expected shuffle_partitions and parts >= 1, got {self.shuffle_partitions} and {self.parts}"
            )


def build_table_on_spark(
    source: ParquetLog,
    path: Path,
    config: BuildConfig,
    spark: SparkBuild,
    *,
    mode: Mode = "create",
    progress: Progress = no_progress,
) -> Manifest:
    """Build the table of `source` in the folder `path` with Spark, or append to it, and return its manifest.

    Args:
        source: canonical row-per-sample Parquet (`recoup log convert` writes it from any log), names as in the schema.
        path: folder of the table.
        config: as for the embedded engine; its memory is Spark's affair, and lateness needs an order of arrival that a
            shuffle does not keep, so it must not be set.
        spark: master and width.
        mode: "create" refuses a complete table; "overwrite" replaces it, and it stays whole until the new one is
            committed; "append" adds the samples that are later than the table's last one, as `append_table` does; a
            table with histories or means is appended to by the embedded engine, which reads their past.
        progress: called as ("spark", stages done, 2).
    Raises:
        TableError: a table is there already, or Spark failed: nothing was committed.
    """
    if config.sessions.lateness is not None:
        raise TableError("lateness: expected none with Spark, whose shuffle keeps no order of arrival: leave it out")
    border = _border(source, path, config) if mode == "append" else None
    generation = _generation(path, overwrite=mode != "create")
    plan = _plan(source, path.absolute(), config, generation)
    with spark_session(spark.master, spark.options) as session:
        try:
            reports, num_samples = _run(session, source, plan, spark, border, progress)
        except Exception as err:  # Spark raises its own tree; the table's folder is what the user has to know of
            reason = str(err).strip().splitlines()
            told = next((line for line in reason if "Error" in line and "recoup" in line), reason[0] if reason else "")
            raise TableError(f"the Spark build into '{path}' failed, nothing was committed: {told}") from err
    manifest = _manifest(source, config, plan, reports, num_samples)
    if border is not None:
        repeated = border.repeated()
        counts = replace(
            manifest.counts,
            repeated=manifest.counts.repeated + repeated,
            late=border.num_early - repeated,
        )
        described = json.loads(manifest.source)
        manifest = longer(read_manifest(path), generation, manifest.parts, counts, described)
    write_manifest(path, manifest)
    remove_strays(path, manifest)
    return manifest


def _plan(source: ParquetLog, path: Path, config: BuildConfig, generation: int) -> dict[str, Any]:
    schema = regrouped(with_histories(source.schema, config.histories, config.means), config.groups)
    return {
        "source": to_table(source.schema),
        "schema": to_table(schema),
        "sessions": to_table(config.sessions),
        "histories": [to_table(history) for history in config.histories],
        "means": [to_table(mean) for mean in config.means],
        "groups": [to_table(group) for group in config.groups],
        "writer": to_table(config.writer),
        "sample_sessions": config.sample_sessions,
        "seed": config.seed,
        "where": source.path,
        "path": str(path),
        "generation": generation,
    }


def _run(
    session: Any,  # noqa: ANN401
    source: ParquetLog,
    plan: dict[str, Any],
    spark: SparkBuild,
    border: Border | None,
    progress: Progress,
) -> tuple[list[dict[str, Any]], int]:
    from pyspark import StorageLevel
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = source.schema
    order = [name for name in (schema.key, schema.time, schema.event_id) if name]
    samples = session.read.parquet(source.path).select(*sample_schema(schema).names)
    if border is not None:
        early = samples.filter(samples[schema.time] < border.time).toArrow().cast(sample_schema(schema))
        for _ in border.joined(early.to_batches(), schema):
            pass  # all of them are kept back and counted
        samples = samples.filter(samples[schema.time] >= border.time)
    num_samples = samples.count()
    rows_type = from_arrow_schema(_nullable(row_schema(from_table(Schema, plan["schema"]))))
    encoded = (
        samples.repartition(spark.shuffle_partitions, schema.key)
        .sortWithinPartitions(*order)
        .mapInArrow(encode_task(plan), rows_type)
        .persist(StorageLevel.DISK_ONLY)  # the range partitioning below looks at it twice
    )
    encoded.count()
    progress("spark", 1, 2)
    ranges = encoded.repartitionByRange(spark.parts, ROW_ORDER[0]).sortWithinPartitions(*ROW_ORDER)
    found = ranges.mapInArrow(write_task(plan), "report string").collect()
    progress("spark", 2, 2)
    return [json.loads(row["report"]) for row in found], num_samples


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema as Spark declares results of Python functions: everything may be null."""
    fields = []
    for one in schema:
        kind = pa.list_(one.type.value_type) if pa.types.is_list(one.type) else one.type
        fields.append(pa.field(one.name, kind))
    return pa.schema(fields)


def _manifest(
    source: ParquetLog, config: BuildConfig, plan: dict[str, Any], reports: list[dict[str, Any]], num_samples: int
) -> Manifest:
    ordered = sorted(reports, key=lambda report: report["partition"])
    parts = [from_table(Part, part) for report in ordered for part in report["parts"]]
    full = tuple(part for part in parts if part.rows) or tuple(parts[:1])
    samples = sum(part.samples for part in full)
    sampled_out = sum(report["sampled_out"] for report in ordered)
    counts = Counts(
        samples=samples,
        sessions=sum(report["sessions"] for report in ordered),
        rows=sum(part.rows for part in full),
        repeated=num_samples - samples - sampled_out,
        sampled_out=sampled_out,
    )
    return Manifest(
        generation=plan["generation"],
        schema=from_table(Schema, plan["schema"]),
        sessions=config.sessions,
        histories=config.histories,
        means=config.means,
        predictions=config.predictions,
        counts=counts,
        parts=full,
        source=json.dumps({"kind": "parquet", "path": source.path, "engine": "spark"}, sort_keys=True),
    )


def _border(source: ParquetLog, path: Path, config: BuildConfig) -> Border:
    if config.histories or config.means:
        raise TableError(
            "append with Spark: expected a table without histories and means, whose past is in the table: append with "
            "--engine embedded"
        )
    table = open_table(path)
    check_same(table.manifest, regrouped(source.schema, config.groups), config)
    return Border(table, earlier=False)


def _generation(path: Path, *, overwrite: bool) -> int:
    if not (path / MANIFEST).exists():
        (path / PARTS).mkdir(parents=True, exist_ok=True)
        return 0
    if not overwrite:
        raise TableError(f"expected no table in '{path}', got a complete one: use --overwrite, or another folder")
    return committed_generation(path) + 1
