"""``shoal demo``: six policies on a built-in mix of jobs, compared in a table and on a page."""

import os
from pathlib import Path

import click

from shoal.cli.show import json_option, print_json, print_summaries, progress_bars, warn

POLICIES = ("fifo", "srtf", "las", "tiresias", "max-min", "gandiva")
CLUSTER = "v100:4x4,p100:4x4,k80:4x4"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-out"), show_default=True, metavar="DIR")
@click.option("--seed", default=0, show_default=True)
@json_option
def demo(out: Path, seed: int, as_json: bool) -> None:
    """Compare six policies on a built-in 200-job mix on a mixed cluster, and write a page about it."""
    from shoal.app import Scenario
    from shoal.config import read_cluster
    from shoal.report.files import find_runs
    from shoal.report.html import write_page
    from shoal.sweep import WorkloadSource, sweep, tasks

    scenario = Scenario(cluster=read_cluster(CLUSTER), policy=POLICIES[0])
    source = WorkloadSource("demo")
    todo = tasks(scenario, POLICIES, [seed], source, out)
    jobs = len(source.load(seed).jobs)
    with progress_bars(list(POLICIES), jobs) as told:
        finished = sweep(todo, parallel=os.cpu_count() or 1, progress=told)
    page = out / "report.html"
    write_page(find_runs([d for task in todo if (d := task.directory()) is not None]), page)
    summaries = [f.outcome.summary for f in finished]
    if as_json:
        print_json({"page": str(page), "runs": summaries})
    else:
        print_summaries(f"{jobs} jobs on {CLUSTER} (48 GPUs)", summaries)
    warn(f"the page with the charts is {page}")
    warn(f"`shoal replay {out}/fifo-seed{seed}/journal.sqlite` derives every decision of a run again")
