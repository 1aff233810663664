"""``shoal bench``: the benchmarks of docs/benchmarks.md."""

from dataclasses import asdict
from pathlib import Path

import click

from shoal.cli.output import json_option, print_json, print_table, warn

_WITH_FIGURES = ("live-scale", "live-lists", "cells")
"""Benchmarks whose further figures are printed, too."""


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="SHOAL_DATA",
    help='Folder of public traces (or $SHOAL_DATA); benchmarks that need a missing trace print "no data".',
)
@json_option
def bench(names: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Run the benchmarks of docs/benchmarks.md: CPU seconds on one core, each benchmark in its own process."""
    from shoal.research.bench.registry import chosen, measure
    from shoal.research.bench.scale import growth_cell
    from shoal.research.bench.solve import cvxpy_cell

    results = []
    for one in chosen(names):
        warn(f"measuring {one.name}: {one.what}")
        results.append(measure(one, data))
    if as_json:
        print_json([{**asdict(r), "met": r.met} for r in results])
        return
    rows = [
        (
            r.what,
            "no data" if r.seconds is None else f"{r.seconds:.4g}",
            f"{r.budget_seconds:g}",
            "–" if r.peak_mb is None else f"{r.peak_mb:.0f}",
            "–" if r.budget_mb is None else f"{r.budget_mb:g}",
            {True: "yes", False: "NO", None: "–"}[r.met],
            growth_cell(r.more) if "steady_exponent" in r.more else cvxpy_cell(r.more),
        )
        for r in results
    ]
    print_table("Benchmarks", ("what", "CPU s", "budget", "peak MB", "budget", "met", "cvxpy, or growth"), rows)
    for r in results:
        if r.name.startswith(_WITH_FIGURES):
            print_table(r.name, ("figure", "value"), [(name, f"{value:,.4g}") for name, value in r.more.items()])
