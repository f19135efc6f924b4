"""`recoup table suggest`: measure a log and propose its dedup groups, with what they will gain."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from recoup.table.suggest import Suggestion


def suggest(
    config: Annotated[Path, typer.Argument(help="TOML file with a 'log' and a 'build' table.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override: key.path=value.")] = None,
    write: Annotated[Path | None, typer.Option(help="TOML file to write: the same build with these groups.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Replace that file.")] = False,
    sample_mb: Annotated[int, typer.Option(help="Uncompressed size of the sample, MB.")] = 128,
    least_factor: Annotated[float, typer.Option(help="Samples a version below which a group is not worth it.")] = 1.5,
    as_json: Annotated[bool, typer.Option("--json/--no-json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure how often features repeat, shift and change together; propose dedup groups; foretell bytes and gains.

    Example: recoup table suggest recipes/kuairand.toml --write out/kuairand_groups.toml
    """
    import json
    from dataclasses import asdict, replace

    from recoup.cli.progress import progress_bars
    from recoup.core import load_config, to_toml
    from recoup.log import open_log
    from recoup.table import TableError
    from recoup.table.recipe import TableRecipe
    from recoup.table.suggest import SuggestConfig, suggest_groups

    if write is not None and write.exists() and not overwrite:
        raise TableError(f"expected no file '{write}', got one: use --overwrite, or another name")
    recipe = load_config(TableRecipe, config, overrides or ())
    settings = SuggestConfig(sample_bytes=sample_mb * 1_000_000, least_factor=least_factor)
    with progress_bars() as progress:
        found = suggest_groups(open_log(recipe.log), recipe.build, settings, progress=progress)
    if as_json:
        facts: dict[str, Any] = asdict(found)
        facts["co_change"] = [[*pair, share] for pair, share in found.co_change.items()]
        typer.echo(json.dumps(facts))
    else:
        _show(found, least_factor)
    if write is not None:
        proposed = replace(recipe, build=replace(recipe.build, groups=found.groups, predictions=found.predictions))
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(to_toml(proposed), encoding="utf-8")
        typer.echo(f"'{write}': build it with 'recoup table build {write} FOLDER'; then 'recoup table inspect FOLDER'")


def _show(found: "Suggestion", least_factor: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"{found.samples} samples looked at ({found.share:.3g} of the keys), {found.samples_per_session:.2f} a session"
    )
    features = Table("feature", "length", "d", "new IDs a change", "factor", "group")
    for one in found.features:
        shift = f"{one.new_ids:.2f}" + (" (shifts)" if one.repeat < 1 and one.new_ids < 0.75 * one.mean_length else "")
        group = one.group or f"none: below {least_factor:g}"
        features.add_row(one.name, f"{one.mean_length:.2f}", f"{one.repeat:.3f}", shift, f"{one.factor:.2f}", group)
    console.print(features)
    groups = Table("group", "features", "d", "factor", "with windows", "bytes a sample", "least co-change")
    for group, predicted in zip(found.groups, found.predictions, strict=True):
        pairs = [share for pair, share in found.co_change.items() if set(pair) <= set(group.features)]
        figures = [predicted.repeat, predicted.factor, predicted.window_factor, predicted.bytes_per_sample]
        least = f"{min(pairs):.3f}" if pairs else "-"
        groups.add_row(group.name, ", ".join(group.features), *(f"{figure:.3f}" for figure in figures), least)
    console.print(groups)
    console.print(
        f"the table: {found.bytes_per_sample:.1f} bytes a sample, {found.plain_bytes_per_sample:.1f} without groups; "
        f"a batch's lists {found.reader_factor:.2f}x smaller (reader), {found.trainer_factor:.2f}x fewer IDs looked up "
        "(trainer)"
    )
