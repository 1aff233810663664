"""``shoal repro``: the papers' tables and figures, compared with ours."""

from pathlib import Path
from typing import Any

import click

from shoal.cli.output import json_option, print_json, print_table, warn
from shoal.core.errors import InputError


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
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Number of processes, for the grounds.")
@click.option(
    "--draws",
    type=click.Choice(["dev", "held"]),
    default="dev",
    help="Draws of the grounds: for choosing settings, or held out for reporting.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Write the tables between `<!-- repro: NAME -->` and `<!-- end -->` of this page.",
)
@json_option
def run(names: tuple[str, ...], page: Path | None, as_json: bool, **options: Any) -> None:
    """Run reproductions by NAME; `afs-*` selects all names that begin with `afs-`."""
    from shoal.research.repro.context import ReproContext, ResultCache
    from shoal.research.repro.registry import chosen

    wanted = chosen(names)
    quick, cache = options["quick"], ResultCache(options["out"])
    context = ReproContext(options["data"], quick, cache, warn, options["jobs"], options["draws"])
    documents = []
    for one in wanted:
        tables = one.tables(context)
        if page is not None:
            write_block(page, one.name, "\n".join(table.markdown() for table in tables))
        for table in tables:
            if as_json:
                documents.append({"name": one.name, "quick": quick, **table.document()})
                continue
            headers = [column.name for column in table.columns]
            print_table(f"{one.paper}, {table.title}", headers, table.cells(), table.notes())
    if as_json:
        print_json(documents)


def write_block(page: Path, name: str, text: str) -> None:
    """Replace what a page holds between `<!-- repro: NAME -->` and `<!-- end -->`; raise `InputError` without them."""
    begin, end = f"<!-- repro: {name} -->\n", "<!-- end -->"
    before, mark, rest = page.read_text().partition(begin)
    _, close, after = rest.partition(end)
    if not (mark and close):
        raise InputError("page", str(page), f"has no lines `{begin.strip()}` and `{end}` for the tables")
    page.write_text(f"{before}{begin}{text}{end}{after}")
