"""``shoal workload``: generate, import and describe workloads."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.output import json_option, print_json, rows_read, say, warn, warn_skipped

if TYPE_CHECKING:
    from shoal.workload.schema import Workload


@click.group(invoke_without_command=True)
@click.pass_context
def workload(ctx: click.Context) -> None:
    """Generate, import or describe workloads."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_READING = (
    click.option("--format", "format_name", metavar="F", help="Format of the file.  [default: detected]"),
    click.option("--window", "window_text", metavar="A:B", help="Take only jobs submitted in [A, B) seconds."),
    click.option("--skip-bad", is_flag=True, help="Skip broken rows and report their number."),
)


def reading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a workload file is read."""
    for option in reversed(_READING):
        command = option(command)
    return command


def columns_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--columns`."""
    text = "Names of the columns of sacct output without a header, separated by commas."
    return click.option("--columns", metavar="A,B,…", help=text)(command)


def split_columns(text: str | None) -> tuple[str, ...] | None:
    """The names in `--columns`."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


@workload.command()
@click.argument("name", required=False)
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Number of jobs.  [default: the generator's own]")
@click.option("--seed", default=0, help="Seed of the generator.")
@click.option("--set", "options", multiple=True, metavar="KEY=VALUE", help="Option of the generator; repeatable.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write: .jsonl, .jsonl.gz or .parquet."
)
@json_option
def generate(
    name: str | None, jobs: int | None, seed: int, options: tuple[str, ...], out: Path | None, as_json: bool
) -> None:
    """Generate workload NAME; without a name, list the generators."""
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
    from shoal.workload.describe import describe as describe_workload

    description = describe_workload(made)
    if as_json:
        print_json(description.as_dict())
    else:
        say("\n".join(description.lines()))


@workload.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@reading_options
@columns_option
@click.option(
    "--models", type=click.Choice(["afs"]), help="For jobs that name no model, draw one of the nine of the AFS paper."
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the drawn models.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="File to write: .jsonl, .jsonl.gz or .parquet.",
)
@json_option
def import_(
    file: Path,
    format_name: str | None,
    window_text: str | None,
    skip_bad: bool,
    columns: str | None,
    models: str | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Read a workload of any known format and write it in Shoal's own."""
    from shoal.workload.files import write_workload
    from shoal.workload.generators.afs import with_models

    made = _read(file, format_name or ("sacct" if columns else None), window_text, skip_bad, columns)
    if models is not None:
        made = with_models(made, seed)
    write_workload(made, out)
    warn(f"wrote {len(made.jobs):,} jobs to {out}")
    _describe(made, as_json)


@workload.command(short_help="Print statistics of a workload.")
@click.argument("file", metavar="FILE|NAME")
@reading_options
@json_option
def describe(file: str, format_name: str | None, window_text: str | None, skip_bad: bool, as_json: bool) -> None:
    """Print counts, spans, GPU-hours and a histogram of sizes of a file or a generator's workload."""
    from shoal.workload.generators.registry import GENERATORS
    from shoal.workload.generators.registry import generate as make

    if file in GENERATORS and not Path(file).exists():
        _describe(make(file), as_json)
    else:
        _describe(_read(Path(file), format_name, window_text, skip_bad), as_json)


def _read(
    file: Path, format_name: str | None, window_text: str | None, skip_bad: bool, columns: str | None = None
) -> "Workload":
    from shoal.workload.files import parse_window, read_workload

    window = parse_window(window_text) if window_text else None
    names = split_columns(columns)
    with rows_read() as progress:
        made = read_workload(file, format_name, skip_bad=skip_bad, window=window, columns=names, progress=progress)
    warn_skipped(made)
    return made
