"""``shoal report``: compare finished runs, or list what happened to the jobs of a live cluster."""

from collections.abc import Sequence
from pathlib import Path

import click

from shoal.cli.output import json_option, print_json, say, terminal, warn
from shoal.cli.replay import in_turn
from shoal.core.errors import InputError


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", "html_path", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with charts.")
@click.option("--baseline", metavar="POLICY", help="Compare with this policy; the first one by default.")
@json_option
def report(directories: tuple[Path, ...], html_path: Path | None, baseline: str | None, as_json: bool) -> None:
    """Compare finished runs in tables and a page with charts, or list what happened to each job of a live cluster."""
    from shoal.report.compare import compare
    from shoal.report.files import find_runs, is_home
    from shoal.report.tables import table

    homes = [directory for directory in directories if is_home(directory)]
    if homes:
        if len(homes) < len(directories) or html_path is not None or baseline is not None:
            hint = "is the home of a live cluster, reported job by job; name only such, without --html or --baseline"
            raise InputError("run", str(homes[0]), hint)
        _print_stories(homes, as_json)
        return
    runs = find_runs(directories)
    comparisons = compare(runs, baseline)
    if html_path is not None:
        from shoal.report.html import write_page

        write_page(runs, html_path, baseline)
        warn(f"wrote {html_path}")
    if as_json:
        print_json([c.as_dict() for c in comparisons])
        return
    for comparison in comparisons:
        terminal().print(table(comparison))


def _print_stories(homes: Sequence[Path], as_json: bool) -> None:
    from shoal.scenario.replay import policies_of, read_stories

    found = {home: read_stories(home) for home in homes}
    if as_json:
        rows = [
            {
                "home": str(home),
                "jobs": [story.document() for story in stories],
                "decides_otherwise": difference or None,
            }
            for home, (stories, difference) in found.items()
        ]
        print_json(rows)
        return
    for home, (stories, difference) in found.items():
        policy = in_turn(policies_of(home))
        count = f"{len(stories)} job{'s' * (len(stories) != 1)}"
        say(f"{home}: {count} under {policy}; times since the journal began")
        for story in stories:
            first, *rest = story.lines()
            say("\n    ".join([f"  {first}", *rest]))
        if difference:
            warn(f"{home}: the reasons for waiting end where they cannot be derived again: {difference}")
