"""``shoal workload``: make, bring in and look at workloads."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.output import json_option, print_json, tell_skipped, warn

if TYPE_CHECKING:
    from shoal.workload.schema import Workload


@click.group(invoke_without_command=True)
@click.pass_context
def workload(ctx: click.Context) -> None:
    """Generate, import or describe workloads."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@workload.command()
@click.argument("name", required=False)
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="How many; each generator has a number of its own.")
@click.option("--seed", default=0, show_default=True)
@click.option("--set", "options", multiple=True, metavar="KEY=VALUE", help="An option of the generator; repeatable.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help=".jsonl, .jsonl.gz or .parquet.")
@json_option
def generate(
    name: str | None, jobs: int | None, seed: int, options: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    """Make a workload; without a name, list what can be made."""
    from shoal.core.errors import InputError
    from shoal.workload.files import write_workload
    from shoal.workload.generators.registry import generate as make

    if name is None:
        _list_generators(as_json)
        return
    given: dict[str, str] = {}
    for pair in options:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError("set", pair, "write KEY=VALUE")
        given[key] = value
    made = make(name, jobs=jobs, seed=seed, **given)
    if out is not None:
        write_workload(made, out)
        warn(f"wrote {len(made.jobs):,} jobs to {out}")
    _describe(made, as_json)


def _list_generators(as_json: bool) -> None:
    from shoal.workload.generators.registry import GENERATORS

    if as_json:
        names = ("jobs", "summary", "paper")
        print_json(
            {g.name: {**{n: getattr(g, n) for n in names}, "options": g.defaults()} for g in GENERATORS.values()}
        )
        return
    for generator in GENERATORS.values():
        click.echo(f"{generator.name}: {generator.summary} ({generator.paper}); {generator.jobs} jobs")
        for key, value in generator.defaults().items():
            click.echo(f"    --set {key}={value:g}" if isinstance(value, float) else f"    --set {key}={value}")


def _describe(made: "Workload", as_json: bool) -> None:
    from shoal.workload.describe import describe as look

    description = look(made)
    if as_json:
        print_json(description.as_dict())
    else:
        click.echo("\n".join(description.lines()))


@workload.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "format_name", metavar="F", help="The file's format; recognised where possible.")
@click.option("--window", "window_text", metavar="A:B", help="Only jobs submitted in [A, B) seconds.")
@click.option("--skip-bad", is_flag=True, help="Pass over broken rows and say how many.")
@click.option("--models", type=click.Choice(["afs"]), help="Let jobs that name no model train one of AFS's nine each.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the models.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help=".jsonl[.gz] or .parquet.")
@json_option
def import_(
    file: Path,
    format_name: str | None,
    window_text: str | None,
    skip_bad: bool,
    models: str | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Read a workload of any known format and write it in Shoal's own."""
    from shoal.workload.files import write_workload
    from shoal.workload.generators.afs import with_models

    made = _read(file, format_name, window_text, skip_bad)
    if models is not None:
        made = with_models(made, seed)
    write_workload(made, out)
    warn(f"wrote {len(made.jobs):,} jobs to {out}")
    _describe(made, as_json)


@workload.command()
@click.argument("file", metavar="FILE|NAME")
@click.option("--format", "format_name", metavar="F", help="The file's format; recognised where possible.")
@click.option("--window", "window_text", metavar="A:B", help="Only jobs submitted in [A, B) seconds.")
@click.option("--skip-bad", is_flag=True, help="Pass over broken rows and say how many.")
@json_option
def describe(file: str, format_name: str | None, window_text: str | None, skip_bad: bool, as_json: bool) -> None:
    """Print counts, spans, GPU-hours and a histogram of sizes, of a file or of what a generator makes."""
    from shoal.workload.generators.registry import GENERATORS
    from shoal.workload.generators.registry import generate as make

    if file in GENERATORS and not Path(file).exists():
        _describe(make(file), as_json)
    else:
        _describe(_read(Path(file), format_name, window_text, skip_bad), as_json)


def _read(file: Path, format_name: str | None, window_text: str | None, skip_bad: bool) -> "Workload":
    from shoal.workload.files import parse_window, read_workload

    window = parse_window(window_text) if window_text else None
    made = read_workload(file, format_name, skip_bad=skip_bad, window=window)
    tell_skipped(made)
    return made
