"""``shoal advise``: what other policies would have changed on a Slurm cluster, from its own history."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import complete_policy
from shoal.cli.output import (
    duration,
    json_option,
    print_json,
    print_listing,
    progress_bars,
    rows_read,
    say,
    warn,
)
from shoal.cli.workload import columns_option, split_columns

if TYPE_CHECKING:
    from shoal.report.advice import AdviceRow, FigureInterval
    from shoal.scenario.advise import AdviceReport


policies_option = click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="Policy to simulate beside the baseline; repeatable.  [default: eight]",
    shell_complete=complete_policy,
)
"""Decorator for the option of the policies that ``print_advice`` compares."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="SACCT")
@click.option(
    "--cluster",
    metavar="SPEC",
    help="Cluster: TYPE:NODESxGPUS[,…] or a YAML file.  [default: derived from the history]",
)
@policies_option
@click.option("--speeds", metavar="KIND=SPEED,…", help="Relative speeds of the kinds.  [default: all equal]")
@click.option("--days", type=click.FloatRange(0.0, min_open=True), default=31.0, help="Use only the last days.")
@click.option(
    "--preemptible",
    type=click.Choice(["yes", "no"]),
    default="yes",
    help="Whether jobs may be stopped to make room: yes assumes that all save and resume.",
)
@click.option("--oracle", is_flag=True, help="Let policies know true run times instead of time limits.")
@columns_option
@click.option(
    "--html", "html_path", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with charts to FILE."
)
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="Number of processes.  [default: all cores]")
@json_option
def advise(
    file: Path,
    cluster: str | None,
    policies: tuple[str, ...],
    speeds: str | None,
    days: float,
    preemptible: str,
    oracle: bool,
    columns: str | None,
    html_path: Path | None,
    parallel: int | None,
    as_json: bool,
) -> None:
    """Simulate a Slurm cluster's own history (sacct output in any form) under other policies."""
    how = {"cluster": cluster, "speeds": speeds, "days": days, "preemptible": preemptible, "oracle": oracle}
    print_advice(file, policies, split_columns(columns), html_path, parallel, as_json, **how)


def print_advice(
    file: Path,
    policies: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    html_path: Path | None = None,
    parallel: int | None = None,
    as_json: bool = False,
    **how: Any,
) -> None:
    """Simulate the history in a file and print the comparison; ``how`` goes to ``scenario.advise``."""
    from shoal.scenario.advise import BASELINE, POLICIES
    from shoal.scenario.advise import advise as make
    from shoal.workload.importers.rows import Source
    from shoal.workload.importers.sacct import read_history

    with rows_read() as shown:
        history = read_history(Source(file, progress=shown), columns)
    if history.skipped:
        warn(f"skipped {len(history.skipped):,} odd lines, the first: {history.skipped[0]}")
    names = list(dict.fromkeys((BASELINE, *(policies or POLICIES))))
    with progress_bars(names, len(history.jobs)) as update:
        report = make(
            history,
            str(file),
            policies=names,
            parallel=parallel or os.cpu_count() or 1,
            progress=update,
            **how,
        )
    if html_path is not None:
        from shoal.report.advice_page import write_advice

        write_advice(html_path, report.facts(), report.assumptions, report.advice, report.waste, report.columns)
        warn(f"wrote {html_path}")
    if as_json:
        print_json(report.document())
    else:
        _print(report)


_HEADERS = (
    *("policy", "mean JCT>", "against the baseline>", "against the record>", "p95 JCT>", "mean wait>", "stretch>"),
    *("worst tenant>", "util>"),
)


def _print(report: "AdviceReport") -> None:
    advice = report.advice
    rows = [_cells(row, advice.best, advice.baseline) for row in (advice.record, *advice.policies)]
    notes = [
        f"The baseline is {advice.baseline}, simulated, in place of Slurm. {advice.intervals}",
        "JCT: from eligible to completed. Stretch: JCT over run time, the latter at least 10 min; worst tenant: the "
        "highest mean stretch of a tenant with 20 jobs or more. * marks a policy whose interval lies below all others.",
        *report.sentences(),
        *report.assumptions,
    ]
    title = f"{report.source}: {report.jobs:,} jobs on {report.cluster} ({report.cluster_basis})"
    print_listing(title, _HEADERS, rows)
    say("\n".join(fill(note, 118, initial_indent="- ", subsequent_indent="  ") for note in notes))


def _cells(row: "AdviceRow", best: Mapping[str, str], baseline: str) -> Sequence[str]:
    from shoal.report.advice_words import change_text

    figures = row.figures

    def change(changes: "Mapping[str, FigureInterval]") -> str:
        return change_text(changes["mean_jct"]) if changes else ""

    def time(name: str) -> str:
        return duration(figures[name].value) + ("*" if best.get(name) == row.name else "")

    return (
        row.name,
        time("mean_jct"),
        change(row.versus_baseline) if row.name != baseline else "",
        change(row.versus_record),
        time("tail_jct"),
        time("mean_wait"),
        f"{figures['mean_stretch'].value:.2f}",
        f"{figures['worst_tenant'].value:.2f}",
        f"{row.utilization:.1%}",
    )
