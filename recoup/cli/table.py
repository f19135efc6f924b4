"""`recoup table`: build a session table from a log, look into it, check it, write it back as rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recoup.cli.table_suggest import suggest

if TYPE_CHECKING:
    from recoup.table.inspect import TableFacts
    from recoup.table.spark.engine import Mode

table = typer.Typer(
    help="Session tables: each session one row, each repeat once.\n\nExample: recoup table build run.toml data/table",
    no_args_is_help=True,
)
table.command("suggest")(suggest)

Folder = Annotated[str, typer.Argument(help="Folder of the session table, or its URL, such as s3://bucket/table.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override: key.path=value, such as build.sessions.gap=30m.")
]
AsJson = Annotated[bool, typer.Option("--json/--no-json", help="Print JSON instead of tables.")]


@table.command("build")
def build(
    config: Annotated[Path, typer.Argument(help="TOML file with a 'log' and a 'build' table.")],
    folder: Folder,
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Replace a complete table.")] = False,
    append: Annotated[bool, typer.Option("--append/--no-append", help="Add a later log to the table.")] = False,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Go on with a stopped build or append.")] = False,
    partition_by: Annotated[
        str | None, typer.Option(help="none, day or hour: parts of one each, by session start (build.writer).")
    ] = None,
    engine: Annotated[str, typer.Option(help="embedded (this process, spilling) or spark.")] = "embedded",
    master: Annotated[str, typer.Option(help="Spark's master, such as local[4] or spark://host:7077.")] = "local[*]",
) -> None:
    """Build a session table from a log; the folder holds the older complete table until the new one is committed.

    Example: recoup table build recipes/kuairand.toml out/table --set log.path=data/kuairand

    A later day: recoup table build run.toml out/table --set log.path=data/day2 --append

    On object storage: recoup table build run.toml s3://bucket/table (built in a local mirror, then put there)

    With --engine spark the log must be row-per-sample Parquet: recoup log convert writes it from any log.
    """
    from recoup.cli.progress import progress_bars
    from recoup.core import load_config
    from recoup.log import open_log
    from recoup.table import TableError, append_table, build_table, disk_needed, worked_on
    from recoup.table.recipe import TableRecipe

    given = [*(overrides or ()), *([] if partition_by is None else [f"build.writer.partition_by={partition_by}"])]
    settings = load_config(TableRecipe, config, given)
    if append and overwrite:
        raise TableError("expected --append or --overwrite, got both")
    if engine not in ("embedded", "spark"):
        raise TableError(f"expected --engine embedded or spark, got {engine!r}")
    with progress_bars() as progress, worked_on(folder, progress, replaces=overwrite) as local:
        if engine == "spark":
            mode = "append" if append else "overwrite" if overwrite else "create"
            manifest = _build_on_spark(settings, local, master, mode, progress)
        else:
            log = open_log(settings.log)
            typer.echo(
                f"needs at most {disk_needed(log) / 1e6:.0f} MB of disk beside the table while it runs", err=True
            )
            if append:
                manifest = append_table(log, local, settings.build, resume=resume, progress=progress)
            else:
                manifest = build_table(
                    log, local, settings.build, overwrite=overwrite, resume=resume, progress=progress
                )
    counts = manifest.counts
    typer.echo(
        f"{counts.samples} samples in {counts.sessions} sessions, {counts.rows} rows, {len(manifest.parts)} parts, "
        f"{sum(part.bytes for part in manifest.parts)} bytes; "
        f"{counts.repeated} repeated and {counts.late} late samples left out, {counts.sampled_out} sampled out"
    )


@table.command("compact")
def compact(
    folder: Folder,
    part_bytes: Annotated[int, typer.Option(help="Parts are merged up to this uncompressed size.")] = 1 << 30,
) -> None:
    """Merge small parts into large ones, as many appended days leave them; the same rows in the same order.

    Example: recoup table compact out/table
    """
    from recoup.cli.progress import progress_bars
    from recoup.table import WriterConfig, compact_table, open_table, worked_on

    with progress_bars() as progress, worked_on(folder, progress) as local:
        before = len(open_table(local).manifest.parts)
        manifest = compact_table(local, WriterConfig(part_bytes=part_bytes), progress=progress)
    typer.echo(f"'{folder}': {before} parts are now {len(manifest.parts)}")


def _build_on_spark(settings: Any, folder: Path, master: str, mode: "Mode", progress: Any) -> Any:  # noqa: ANN401
    from recoup.log import ParquetLog
    from recoup.table import TableError
    from recoup.table.spark import SparkBuild, build_table_on_spark

    if not isinstance(settings.log, ParquetLog):
        raise TableError(
            f"expected a 'parquet' log for Spark, got {settings.log.kind!r}: use 'recoup log convert' first"
        )
    spark = SparkBuild(master=master)
    return build_table_on_spark(settings.log, folder, settings.build, spark, mode=mode, progress=progress)


@table.command("inspect")
def inspect(folder: Folder, as_json: AsJson = False) -> None:
    """Show samples a session, dedup factors measured and by formula, and bytes by feature.

    Example: recoup table inspect out/table
    """
    import json
    from dataclasses import asdict

    from recoup.cli.progress import progress_bars
    from recoup.table import open_table
    from recoup.table.inspect import inspect_table

    with progress_bars() as progress:
        facts = inspect_table(open_table(folder), progress=progress)
    if as_json:
        typer.echo(json.dumps(asdict(facts)))
    else:
        _show(facts)


@table.command("verify")
def verify(folder: Folder) -> None:
    """Check files, checksums, counts, order, windows and inverses; exit with 1 if anything is wrong.

    Example: recoup table verify out/table
    """
    from recoup.cli.progress import progress_bars
    from recoup.table import open_table
    from recoup.table.verify import verify_table

    opened = open_table(folder)
    with progress_bars() as progress:
        problems = verify_table(opened, progress=progress)
    for problem in problems[:20]:
        typer.echo(f"error: {problem}", err=True)
    if problems:
        typer.echo(f"error: {len(problems)} problems in '{folder}': rebuild the table or restore its files", err=True)
        raise typer.Exit(1)
    typer.echo(f"'{folder}' is intact: {opened.num_samples} samples, {len(opened.manifest.parts)} parts")


@table.command("export")
def export(
    folder: Folder,
    target: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    by_session: Annotated[
        bool, typer.Option("--by-session/--by-time", help="Order: clustered by session, or by time as a log is.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Replace the file.")] = False,
) -> None:
    """Write the table's samples as ordinary row-per-sample Parquet.

    Example: recoup table export out/table out/rows.parquet
    """
    from recoup.cli.progress import progress_bars
    from recoup.table import TableError, open_table

    if target.exists() and not overwrite:
        raise TableError(f"expected no file '{target}', got one: use --overwrite, or another name")
    with progress_bars() as progress:
        size = open_table(folder).export_rows(target, order="session" if by_session else "time", progress=progress)
    typer.echo(f"'{target}': {size} bytes")


def _show(facts: "TableFacts") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"{facts.samples} samples, {facts.sessions} sessions (mean {facts.samples_per_session:.2f}, longest row "
        f"{facts.longest_session}), {facts.rows} rows, {facts.bytes} bytes"
    )
    groups = Table("group", "features", "d", "factor", "by formula", "with windows", "by formula")
    for group in facts.groups:
        figures: list[Any] = [group.repeat, group.measured_factor, group.predicted_factor]
        figures += [group.window_factor, group.predicted_window_factor]
        groups.add_row(group.name, ", ".join(group.features), *(f"{figure:.3f}" for figure in figures))
    console.print(groups)
    if facts.predictions:
        console.print(_foretold(facts))
    columns = Table("column", "bytes")
    for name, size in facts.bytes_by_feature.items():
        columns.add_row(name, str(size))
    console.print(columns)


def _foretold(facts: "TableFacts") -> Any:  # noqa: ANN401
    from rich.table import Table

    shown = Table("group", "d", "factor", "with windows", "bytes a sample", title="foretold / found")
    measured = {group.name: group for group in facts.groups}
    for one in facts.predictions:
        if (group := measured.get(one.name)) is None:  # the groups were edited after the proposal
            continue
        names = (group.name, *group.features)
        size = sum(facts.bytes_by_feature.get(name, 0) for name in names) / max(1, facts.samples)
        foretold = (one.repeat, one.factor, one.window_factor, one.bytes_per_sample)
        found = (group.repeat, group.measured_factor, group.window_factor, size)
        shown.add_row(one.name, *(f"{a:.3f} / {b:.3f}" for a, b in zip(foretold, found, strict=True)))
    return shown
