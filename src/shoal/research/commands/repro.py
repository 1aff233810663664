"""``shoal repro``: the papers' tables and figures, compared with ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.output import duration, json_option, print_json, print_table, say, warn

if TYPE_CHECKING:
    from shoal.research.repro.runner import ReproOutcome


@click.group()
def repro() -> None:
    """Reproduce the papers' tables and figures and show the differences."""


@repro.command("list", short_help="List the reproductions and their recorded verdicts.")
@json_option
def list_all(as_json: bool) -> None:
    """List the reproductions, with the verdict and the CPU time of the last full run that was recorded."""
    from shoal.research.repro.recorded import NEVER_RUN, recorded_runs
    from shoal.research.repro.registry import reproductions

    known, recorded = reproductions().values(), recorded_runs()
    runs = {one.name: recorded.get(one.name, NEVER_RUN) for one in known}
    if as_json:
        print_json(
            [
                {"name": r.name, "paper": r.paper, "what": r.what, "needs": r.needs or None}
                | {"verdicts": list(runs[r.name].verdicts), "cpu_seconds": runs[r.name].cpu}
                for r in known
            ]
        )
        return
    rows = [
        (r.name, r.paper, r.needs or "–", r.what, _verdict_kinds(runs[r.name].verdicts), duration(runs[r.name].cpu))
        for r in known
    ]
    print_table("Reproductions", ("name", "paper", "reads", "what", "last verdict", "CPU time"), rows, words=5)
    click.echo("What differs: docs/reproductions.md, or --json.")


def _verdict_kinds(verdicts: Sequence[str]) -> str:
    """Return the kinds of a reproduction's verdicts, each once, without what differs."""
    return "; ".join(dict.fromkeys(verdict.partition(":")[0] for verdict in verdicts)) or "–"


@repro.command(short_help="Run reproductions and print their tables.")
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
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    help="Number of processes: each runs a reproduction, or cells of a single one.",
)
@click.option(
    "--without", multiple=True, metavar="NAME", help="Leave out the reproductions that NAME selects; repeatable."
)
@click.option(
    "--draws",
    type=click.Choice(["dev", "held"]),
    default="dev",
    help="Draws of the grounds: for choosing settings, or held out for reporting.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    help="Write the tables between `<!-- repro: NAME -->` and `<!-- end -->` of this page; repeatable.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one self-contained page with all tables, verdicts and figures.",
)
@click.option(
    "--record",
    "record_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the verdicts into this file, beside those of other reproductions.",
)
@json_option
def run(names: tuple[str, ...], page: Sequence[Path], record_file: Path | None, as_json: bool, **options: Any) -> None:
    """Run reproductions by NAME; `afs-*` selects all names that begin with `afs-`.

    One that fails or lacks its data is reported at the end, with exit code 1, and does not stop the others.
    """
    from shoal.research.commands.repro_progress import shown_progress
    from shoal.research.repro.blocks import check_places, write_blocks
    from shoal.research.repro.page import write_figures_page
    from shoal.research.repro.recorded import longest_first, record
    from shoal.research.repro.registry import chosen, reproductions
    from shoal.research.repro.runner import ReproOutcome, RunSettings, run_reproductions

    left_out = {one.name for one in chosen(options["without"])}
    wanted = [one for one in chosen(names) if one.name not in left_out]
    settings = RunSettings(options["data"], options["out"], options["quick"], options["draws"], options["jobs"])
    check_places(page, wanted)
    settings.context(warn)  # a file that cannot be read is refused before anything runs
    outcomes: dict[str, ReproOutcome] = {}
    with shown_progress([one.name for one in wanted]) as progress:
        for outcome in run_reproductions(longest_first(wanted) if settings.jobs > 1 else wanted, settings, warn):
            outcomes[outcome.name] = outcome
            with progress.ended(outcome):
                if not as_json:
                    print_outcome(outcome, {one.name: one.paper for one in wanted}[outcome.name])
    ended = [outcomes[one.name] for one in wanted]
    for one in wanted:
        if outcomes[one.name].tables:
            write_blocks(page, one, outcomes[one.name].tables)
    if record_file is not None:
        record(ended, record_file, reproductions())
    if options["html"] is not None:
        write_figures_page(ended, options["html"], quick=settings.quick)
    if as_json:
        print_json([document for outcome in ended for document in documents(outcome, settings.quick)])
    failed = [outcome for outcome in ended if outcome.failure]
    for outcome in failed:
        warn(f"{outcome.name} failed: {outcome.failure}")
    if failed:
        raise SystemExit(1)


def print_outcome(outcome: "ReproOutcome", paper: str) -> None:
    """Print the tables of an outcome with their notes, and its verdict as a sentence of its own."""
    for table in outcome.tables:
        headers = [column.name for column in table.columns]
        print_table(f"{paper}, {table.title}", headers, table.cells(), table.notes())
    if outcome.verdicts:
        say(f"{outcome.name}: {'; '.join(outcome.verdicts)}\n")


def documents(outcome: "ReproOutcome", quick: bool) -> list[dict[str, Any]]:
    """Return an outcome as plain JSON: a document for each table, or one with the reason of a failure."""
    head = {"name": outcome.name, "quick": quick}
    if outcome.failure:
        return [{**head, "failure": outcome.failure}]
    return [{**head, **table.document()} for table in outcome.tables]
