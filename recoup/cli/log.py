"""`recoup log`: list and convert log sources, and carry a log through Kafka."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from recoup.log import LogConfig, LogSource

log = typer.Typer(
    help="Log sources: list them, look at one, convert one to canonical Parquet.\n\nExample: recoup log list",
    no_args_is_help=True,
)

Config = Annotated[
    Path, typer.Argument(help="TOML file with a 'log' table, whose 'kind' names the format; 'build' may be beside it.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override: key.path=value, such as log.path=data/train.txt.")
]

_KINDS = {
    "recbole": "folder of RecBole atomic files (.inter, .user, .item)",
    "kuairand": "folder of KuaiRand CSV files (log, user and video features)",
    "criteo": "Criteo Kaggle or Terabyte TSV, 40 fields without a header",
    "mind": "folder with MIND behaviors.tsv and news.tsv",
    "ebnerd": "folder with EB-NeRD behaviors.parquet and history.parquet",
    "avazu": "Avazu CSV, 24 fields with a header",
    "open_bandit": "folder with Open Bandit <campaign>.csv and item_context.csv",
    "parquet": "your row-per-sample Parquet: file, folder or Hive folder, with a schema",
    "delta": "your Delta table: one version, with a schema",
    "iceberg": "your Iceberg table: one snapshot, with a schema",
    "csv": "your CSV or TSV, with a schema and a column mapping",
    "jsonlines": "your JSON lines, with a schema and a column mapping",
    "landed": "folder written by 'recoup log land'",
    "synthetic": "drawn from a seed: recd-like unless set otherwise",
}


@log.command("list")
def list_sources(
    config: Annotated[Path | None, typer.Argument(help="TOML file with a 'log' table; none: list formats.")] = None,
    overrides: Overrides = None,
) -> None:
    """List the formats Recoup reads, or the files and columns of one log.

    Example: recoup log list recipes/kuairand.toml --set log.path=data/kuairand
    """
    if config is None:
        for kind, text in _KINDS.items():
            typer.echo(f"{kind:12} {text}")
        return
    source = _open(config, overrides)[1]
    facts = source.describe()
    for path in facts.get("files", []):
        typer.echo(f"file     {path}")
    typer.echo(f"bytes    {source.num_bytes if source.num_bytes is not None else 'none, drawn from a seed'}")
    schema = source.schema
    typer.echo(f"key      {schema.key} ({schema.key_type}), time {schema.time}")
    typer.echo(f"event id {schema.event_id or 'none: repeats are not removed'}")
    typer.echo(f"labels   {', '.join(schema.labels)}")
    typer.echo(f"dense    {', '.join(schema.dense_names) or 'none'}")
    for group in schema.groups:
        typer.echo(f"{'group ' + group.name if group.name else 'ungrouped'}: {', '.join(group.features)}")
    for name, tokens in facts.get("vocabularies", {}).items():
        typer.echo(f"words    {name}: {len(tokens)} ({', '.join(tokens[:5])}{', ...' if len(tokens) > 5 else ''})")


@log.command("convert")
def convert(
    config: Config,
    target: Annotated[Path, typer.Argument(help="Folder to write; it appears whole or not at all.")],
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Replace an existing folder.")] = False,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Go on after a kill.")] = False,
    part_samples: Annotated[int, typer.Option(min=1, help="Samples a Parquet file.")] = 1 << 20,
) -> None:
    """Write a log as canonical row-per-sample Parquet, in its own order.

    Example: recoup log convert recipes/kuairand.toml out/kuairand --set log.path=data/kuairand
    """
    from recoup.cli.progress import progress_bars
    from recoup.core import to_table
    from recoup.log.convert import ConvertOptions, convert_log

    settings, source = _open(config, overrides)
    options = ConvertOptions(overwrite=overwrite, resume=resume, part_samples=part_samples)
    with progress_bars() as progress:
        done = convert_log(source, to_table(settings), target, options, progress)
    typer.echo(f"{done.num_samples} samples, {done.num_parts} parts, {done.num_bytes} bytes in {target}")


@log.command("produce")
def produce_log(
    config: Annotated[Path, typer.Argument(help="TOML file with the tables 'log' and 'produce'.")],
    overrides: Overrides = None,
) -> None:
    """Send a log to a Kafka topic, keyed by session.

    Example: recoup log produce recipes/kafka.toml --set produce.topic.bootstrap=broker:9092
    """
    from recoup.cli.progress import progress_bars
    from recoup.core import load_config
    from recoup.log import open_log
    from recoup.log.kafka import ProduceRun, produce

    run = load_config(ProduceRun, config, overrides or ())
    with progress_bars() as progress:
        done = produce(open_log(run.log), run.produce, progress)
    typer.echo(f"{done.num_samples} samples, {done.num_bytes} bytes, {done.sent_bytes} bytes sent")


@log.command("land")
def land_log(
    config: Annotated[Path, typer.Argument(help="TOML file with a 'land' table.")],
    target: Annotated[Path, typer.Argument(help="Landing folder; an existing one is continued, never overwritten.")],
    overrides: Overrides = None,
) -> None:
    """Land a Kafka topic as hourly Parquet segments, exactly once; stop it with Ctrl-C or SIGTERM, or kill it.

    Example: recoup log land landing.toml landing --set land.until_end=true
    """
    import signal
    import threading

    from recoup.cli.progress import progress_bars
    from recoup.core import load_config
    from recoup.log.kafka import LandRun, land

    run = load_config(LandRun, config, overrides or ())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with progress_bars() as progress:
        done = land(run.land, target, progress, stop.is_set)
    typer.echo(f"{done.num_samples} samples, {done.num_dead} dead letters, {done.num_segments} segments in {target}")


def _open(config: Path, overrides: list[str] | None) -> "tuple[LogConfig, LogSource]":
    from recoup.core import load_config
    from recoup.log import open_log
    from recoup.table.recipe import TableRecipe

    run = load_config(TableRecipe, config, overrides or ())
    return run.log, open_log(run.log)
