"""``shoal whatif``: simulate the live cluster onward with other policies, more nodes or one more job."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.client import cluster_options
from shoal.cli.completion import complete_policy
from shoal.cli.live_tables import count
from shoal.cli.output import print_json, print_listing
from shoal.cli.submit import read
from shoal.core.errors import InputError
from shoal.core.units import span
from shoal.wire.messages import WhatIf

if TYPE_CHECKING:
    from shoal.wire.client import Client
    from shoal.wire.messages import Submission

_TIMEOUT_SECONDS = 600.0
_MOST_JOBS = 20
AS_IT_IS = "as it is"
"""Label of the run without changes."""


@click.command()
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="Policy to try, name:key=value,…; repeatable.",
    shell_complete=complete_policy,
)
@click.option("--add", metavar="SPEC", help="Nodes to add: TYPE:NODESxGPUS[,…].")
@click.option("--job", "file", metavar="FILE", help="Job to add: a job file or an #SBATCH script.")
@click.option("--seeds", type=int, default=5, metavar="K", help="Simulations per case, for the intervals.")
@cluster_options
def whatif(
    policies: tuple[str, ...], add: str | None, file: str | None, seeds: int, client: "Client", as_json: bool
) -> None:
    """Simulate the live cluster from now on, with and without the changes, and compare."""
    if not 1 <= seeds <= 20:
        raise InputError("seeds", seeds, "must be from 1 to 20")
    if len(policies) > 8:
        raise InputError("policy", policies, "at most 8 at a time")
    question = WhatIf(list(policies), add, _one_job(file) if file else None, seeds)
    with _spinner():
        answer: dict[str, Any] = client.post("/v1/whatif", question, dict[str, Any], timeout=_TIMEOUT_SECONDS)
    if as_json:
        print_json(answer)
        return
    _print_runs(answer.get("runs", []), seeds)
    _print_jobs(answer.get("jobs", []))


def _one_job(file: str) -> "Submission":
    jobs = read(file, {}).jobs
    if len(jobs) > 1:
        raise InputError("job", file, f"holds {len(jobs)} jobs; ask about one at a time")
    return jobs[0]


@contextmanager
def _spinner() -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("simulating the cluster from now on"):
        yield


def _print_runs(runs: Sequence[Mapping[str, Any]], seeds: int) -> None:
    base = next((run for run in runs if run.get("label") == AS_IT_IS), runs[0] if runs else {})
    rows = []
    for run in runs:
        cells = [str(run["label"]), f"{run['jobs']:,}"]
        for measure in ("avg_jct", "avg_wait", "makespan"):
            cells.append(_interval(run.get(measure)))
            cells.append("" if run is base else _difference(run.get(measure), base.get(measure)))
        rows.append(cells)
    if not rows:
        return
    title = f"from now until all is done, {count(seeds, 'seed')}"
    headers = ("", "jobs>", "average JCT>", ">", "average wait>", ">", "makespan>", ">")
    notes = [f"Changes are against “{base['label']}”; in brackets the interval over the seeds."]
    print_listing(title, headers, rows, notes)


def _print_jobs(ends: Sequence[Mapping[str, Any]]) -> None:
    labels = list(dict.fromkeys(str(end["label"]) for end in ends))
    jobs: dict[str, dict[str, str]] = {}
    for end in ends:
        jobs.setdefault(str(end["id"]), {})[str(end["label"])] = _interval(end.get("end"))
    if not jobs:
        return
    rows = [(job, *(cases.get(label, "–") for label in labels)) for job, cases in list(jobs.items())[:_MOST_JOBS]]
    more = len(jobs) - len(rows)
    notes = [f"… and {count(more, 'job')} more; --json has them all"] if more else []
    print_listing("expected end, from now", ("job", *(f"{label}>" for label in labels)), rows, notes)


def _interval(figure: Mapping[str, float] | None) -> str:
    """A mean and its interval, in the mean's unit: ``4.1 h (3.8–4.5)``."""
    if not figure or figure.get("mean") is None:
        return "–"
    mean = span(figure["mean"])
    low, high = figure.get("low"), figure.get("high")
    if low is None or high is None or low == high:
        return mean
    number, _, unit = mean.partition(" ")
    scale = figure["mean"] / float(number) if float(number) else 1.0
    digits = len(number.partition(".")[2])
    return f"{mean} ({low / scale:.{digits}f}–{high / scale:.{digits}f})" if unit else mean


def _difference(figure: Mapping[str, float] | None, base: Mapping[str, float] | None) -> str:
    if not figure or not base or figure.get("mean") is None or not base.get("mean"):
        return ""
    change = figure["mean"] / base["mean"] - 1.0
    return f"{change:+.0%}".replace("-", "−")
