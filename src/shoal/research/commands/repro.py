"""``shoal repro``: the papers' tables and figures, compared with ours."""

from pathlib import Path

import click

from shoal.cli.output import json_option, print_json, print_table, warn


@click.group()
def repro() -> None:
    """Reproduce the papers' tables and figures and show the differences."""


@repro.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List the reproductions."""
    from shoal.research.repro.registry import reproductions

    known = reproductions().values()
    if as_json:
        print_json([{"name": r.name, "paper": r.paper, "what": r.what, "needs": r.needs or None} for r in known])
        return
    rows = [(r.name, r.paper, r.needs or "–", r.what) for r in known]
    print_table("Reproductions", ("name", "paper", "reads", "what"), rows, words=4)


@repro.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--quick", is_flag=True, help="Run a small part of the experiment, about a minute.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="SHOAL_DATA",
    help="Folder of public traces (or $SHOAL_DATA).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Store results in this file; a later call reuses them.",
)
@json_option
def run(names: tuple[str, ...], quick: bool, data: Path | None, out: Path | None, as_json: bool) -> None:
    """Run reproductions by NAME; `afs-*` selects all names that begin with `afs-`."""
    from shoal.research.repro.context import ReproContext, ResultCache
    from shoal.research.repro.registry import chosen

    wanted = chosen(names)
    context = ReproContext(data, quick, ResultCache(out), warn)
    documents = []
    for one in wanted:
        for table in one.tables(context):
            if as_json:
                documents.append({"name": one.name, "quick": quick, **table.document()})
                continue
            headers = [column.name for column in table.columns]
            print_table(f"{one.paper}, {table.title}", headers, table.cells(), table.notes())
    if as_json:
        print_json(documents)
