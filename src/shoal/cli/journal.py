"""``shoal journal``: repair of journals."""

import dataclasses
from pathlib import Path

import click

from shoal.cli.output import json_option, print_json


@click.group(invoke_without_command=True)
@click.pass_context
def journal(ctx: click.Context) -> None:
    """Repair journals."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@journal.command(short_help="Save the undamaged records in a new file.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The new file.  [default: salvaged.sqlite beside PATH]")
@json_option
def salvage(path: Path, out: Path | None, as_json: bool) -> None:
    """Write the undamaged records of a journal to a new file, and report what was lost; PATH is not changed.

    To use it, stop the control plane, move PATH away and the new file to its place.
    """
    from shoal.store.salvage import salvage as save

    target = out or path.with_name("salvaged.sqlite")
    found = save(path, target)
    if as_json:
        print_json({"journal": str(path), "out": str(target), **dataclasses.asdict(found)})
        return
    click.echo(f"{target}: {found.records:,} records, up to t = {found.until:,.1f} s")
    if found.cut is None:
        click.echo("nothing was lost: the journal is whole")
        return
    click.echo(f"{path}: {found.cut}")
    job = "" if found.last_job is None else f", the last about job {found.last_job}"
    click.echo(f"lost: {found.lost_records:,} records or more, {found.lost_seconds:,.1f} s{job}")
