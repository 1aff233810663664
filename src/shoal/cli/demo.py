"""``shoal demo``: train small jobs on virtual nodes under two policies, or simulate six policies."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.output import (
    duration,
    json_option,
    listing,
    print_json,
    print_summaries,
    print_table,
    progress_bars,
    warn,
)

if TYPE_CHECKING:
    from shoal.demo.cluster import DemoResult
    from shoal.wire.messages import JobRow

LIVE_POLICIES = ("fifo", "shoal")
POLICIES = ("fifo", "srtf", "las", "tiresias", "max-min", "shoal")
CLUSTER = "v100:4x4,p100:4x4,k80:4x4"

_REPORT_SECONDS = 5.0


@click.command()
@click.option("--simulate", "simulated", is_flag=True, help="Compare six policies in the simulator instead.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo-out"),
    metavar="DIR",
    help="Folder for the page and the journals.",
)
@click.option("--seed", default=0, help="Seed of --simulate.")
@json_option
def demo(simulated: bool, out: Path, seed: int, as_json: bool) -> None:
    """Start a cluster on this machine, train eight small models on it under two policies, and compare.

    Takes about half a minute, stops the cluster and writes a page with charts to --out. With --simulate, compare six
    policies on a built-in 200-job mix on a mixed cluster in the simulator instead.
    """
    if simulated:
        _simulate(out, seed, as_json)
    else:
        _train(out, as_json)


def _train(out: Path, as_json: bool) -> None:
    from shoal.demo.cluster import CLUSTER, JOBS, run_demo
    from shoal.report.run_page import write_page
    from shoal.scenario.replay import reason_changes

    warn(f"{len(JOBS)} training jobs on virtual nodes {CLUSTER}, under {' and then under '.join(LIVE_POLICIES)}")
    results = []
    for policy in LIVE_POLICIES:
        with _Screen() as screen:
            results.append(run_demo(policy, out, screen.show))
    page = out / "report.html"
    write_page([each.run for each in results], page, reasons=reason_changes)
    if as_json:
        print_json({"page": str(page), "runs": [_figures(each) for each in results]})
        return
    rows = [
        (
            each.policy,
            f"{each.completed}/{len(each.rows)}",
            duration(each.jct),
            duration(each.simulated_jct),
            duration(each.waited),
            duration(each.makespan),
            duration(each.simulated_makespan),
            str(each.restarts),
        )
        for each in results
    ]
    headers = ("policy", "done", "avg JCT", "simulated", "avg wait", "makespan", "simulated", "restarts")
    notes = ["simulated: the same jobs under the same policy in the simulator, half a second a restart."]
    print_table(f"{len(JOBS)} training jobs on {CLUSTER}, real processes", headers, rows, notes)
    warn("`shoal up` gives you such a cluster and `shoal web` its page; `shoal demo --simulate` compares six policies")
    _name_page(page)
    warn(f"open it in a browser: {page.resolve().as_uri()}")


def _name_page(page: Path) -> None:
    warn(f"the page with the charts is {page}")


def _figures(each: "DemoResult") -> dict[str, Any]:
    return {
        "policy": each.policy,
        "jobs": len(each.rows),
        "completed": each.completed,
        "avg_jct": each.jct,
        "avg_wait": each.waited,
        "makespan": each.makespan,
        "restarts": each.restarts,
        "simulated": {"avg_jct": each.simulated_jct, "makespan": each.simulated_makespan},
    }


class _Screen:
    """The live queue: redrawn in place on a terminal, a line every 5 s elsewhere."""

    def __init__(self) -> None:
        self._live: Any = None
        self._reported = float("-inf")

    def __enter__(self) -> "_Screen":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.__exit__(*exception)

    def show(self, policy: str, now: float, rows: "Sequence[JobRow]") -> None:
        """Show the queue ``now`` seconds after the beginning."""
        if self._live is not None:
            self._live.update(_queue(policy, now, rows), refresh=True)
        elif now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            running = [row for row in rows if row.gpus_held]
            held = sum(row.gpus_held for row in running)
            ended = sum(row.ended is not None for row in rows)
            waiting = [row for row in rows if row.ended is None and not row.gpus_held]
            reason = f"; {waiting[0].id} {waiting[0].reason}" if waiting else ""
            warn(f"{policy} {now:4.0f} s: {len(running)} on {held} GPUs, {len(waiting)} wait, {ended} done{reason}")


def _queue(policy: str, now: float, rows: "Sequence[JobRow]") -> Any:
    from rich.console import Group

    cells = [
        (row.id, row.state, f"{row.gpus_held}/{row.gpus_wanted}", f"{_fraction(row):.0%}", row.reason) for row in rows
    ]
    return Group(f"{policy}, {now:.0f} s", listing(("job", "state", "GPUs>", "done>", "reason"), cells))


def _fraction(row: "JobRow") -> float:
    return min(1.0, row.done / row.work) if row.work else 0.0


def _simulate(out: Path, seed: int, as_json: bool) -> None:
    from shoal.report.files import find_runs
    from shoal.report.run_page import write_page
    from shoal.scenario.replay import reason_changes
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.specs import read_cluster
    from shoal.scenario.sweep import sweep, tasks
    from shoal.scenario.workload_source import WorkloadSource

    scenario = Scenario(cluster=read_cluster(CLUSTER), policy=POLICIES[0])
    source = WorkloadSource("demo")
    todo = tasks(scenario, POLICIES, [seed], source, out)
    jobs = len(source.load(seed).jobs)
    with progress_bars(list(POLICIES), jobs) as update:
        finished = sweep(todo, parallel=os.cpu_count() or 1, progress=update)
    page = out / "report.html"
    runs = find_runs([d for task in todo if (d := task.directory()) is not None])
    write_page(runs, page, reasons=reason_changes)
    summaries = [f.outcome.summary for f in finished]
    if as_json:
        print_json({"page": str(page), "runs": summaries})
    else:
        print_summaries(f"{jobs} jobs on {CLUSTER} (48 GPUs)", summaries)
    _name_page(page)
    warn(f"`shoal replay {out}/fifo-seed{seed}/journal.sqlite` derives every decision of a run again")
