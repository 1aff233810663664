"""``python -m shoal.research.grounds``: run chosen grounds and policies while a policy is being developed."""

from pathlib import Path
from typing import Any

import click

from shoal.cli.output import print_table, warn
from shoal.policy.registry import POLICIES
from shoal.research.grounds.cells import BOUND, LIMIT
from shoal.research.grounds.runner import kept_cells, run_cells, selected, wanted_cells
from shoal.research.grounds.tables import tables
from shoal.research.repro.blocks import write_blocks
from shoal.research.repro.context import ResultCache
from shoal.research.repro.registry import reproductions


@click.command()
@click.option("--grounds", default="", help="Names, separated by commas; `gavel-*` selects by beginning.")
@click.option(
    "--policies", default="", help="Policies, separated by spaces; `bound` computes lower bounds.  [default: all]"
)
@click.option("--draws", type=click.Choice(["dev", "held"]), default="dev", help="For choosing settings, or held out.")
@click.option("--seeds", default=5, help="Number of draws.")
@click.option("--jobs", default=1, help="Number of processes.")
@click.option("--limit", default=LIMIT, help="CPU seconds of a cell.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Store results; a later call reuses them.")
@click.option("--data", type=click.Path(path_type=Path), envvar="SHOAL_DATA", help="Folder of public traces.")
@click.option("--judged", default="shoal", help="Policy to compare with the best other.")
@click.option(
    "--page", type=click.Path(path_type=Path, exists=True), help="Page whose block `grounds` gets the tables."
)
@click.option("--again", is_flag=True, help="Run the cells of the judged policy again.")
def main(**options: Any) -> None:
    """Run the cells without a stored result, then print the tables of all policies in the file of results."""
    data, draws, judged = options["data"], options["draws"], options["judged"]
    kept = ResultCache(options["out"])
    grounds = selected(filter(None, options["grounds"].split(",")), data)
    wanted = wanted_cells(grounds, options["policies"].split() or [*POLICIES, BOUND], draws, options["seeds"])
    settings = {"data": data, "jobs": options["jobs"], "limit": options["limit"], "announce": warn}
    if options["again"]:
        anew = ResultCache()
        for key, result in run_cells([key for key in wanted if key[1] == judged], anew, **settings).items():
            kept.put(dict(zip(("ground", "policy", "draw"), key, strict=True)), result)
    run_cells(wanted, kept, **settings)
    chosen = {(ground, draw) for ground, _, draw in wanted}
    results = {key: result for key, result in kept_cells(kept).items() if (key[0], key[2]) in chosen}
    found = tables(results, judged, draws)
    if options["page"]:
        write_blocks([options["page"]], reproductions()["grounds"], found)
    for one in found:
        print_table(one.title, [column.name for column in one.columns], one.cells(), one.notes())


if __name__ == "__main__":
    main()
