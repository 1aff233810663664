"""``shoal simulate``: run policies × seeds on a workload."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.completion import complete_policy
from shoal.cli.output import (
    json_option,
    print_json,
    print_summaries,
    progress_bars,
    warn,
    warn_skipped,
    warn_unfinished,
)
from shoal.cli.workload import reading_options
from shoal.core.errors import InputError
from shoal.core.job import MOST_LOST

if TYPE_CHECKING:
    from shoal.scenario.sweep import Finished

_SOURCES = "Workload file, or a generator's name (`shoal workload generate` lists them)."


@click.command()
@click.option("--workload", "workload_name", required=True, metavar="FILE|NAME", help=_SOURCES)
@click.option(
    "--cluster",
    required=True,
    metavar="SPEC",
    help="Cluster: TYPE:NODESxGPUS[,…], e.g. v100:2x4,k80:1x8, or a YAML file.",
)
@click.option(
    "--policy",
    "policies",
    required=True,
    multiple=True,
    metavar="P",
    help="Policy, as name or name:key=value,… (see `shoal policies`); repeatable.",
    shell_complete=complete_policy,
)
@click.option("--seed", default=0, help="First seed of noise, faults, generators and policies.")
@click.option("--seeds", default=1, help="Number of seeds, counting up from --seed.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Take only the first N jobs, or generate N.")
@click.option(
    "--round", "round_seconds", type=float, metavar="SECONDS", help="Length of a round, for policies with rounds."
)
@click.option(
    "--knowledge",
    metavar="K",
    help="Speeds a policy may see: oracle, profiled, estimated or online.  [default: each policy's own]",
)
@click.option(
    "--placement",
    default="packed",
    help="How nodes are chosen: any, packed (fewest), rack (fewest of one rack) or network (no shared machines).",
)
@click.option(
    "--restart-cost",
    default="job",
    help="Time lost per restart: SECONDS, job (as the workload says), or checkpoint:GB_PER_S.",
)
@click.option("--noise", default=0.0, help="Standard deviation σ of the logarithm of true speeds around the profile's.")
@click.option(
    "--faults", metavar="SPEC", help="Faults: key=value,… (node_mtbf, gpu_mtbf, …) or a YAML file with a script."
)
@click.option("--throughputs", metavar="FILE", help="File of speeds that extend or replace the built-in catalogue.")
@click.option(
    "--profiles", multiple=True, metavar="DIR", help="Folder of measured profiles, Pollux's or Sia's; repeatable."
)
@click.option(
    "--measurement-noise",
    default=0.0,
    help="Standard deviation σ of the logarithm of measured speeds around the true ones.",
)
@click.option(
    "--quotas",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML or JSON file of tenants' quotas: TENANT: {gpus: N, guaranteed: N}.",
)
@click.option(
    "--history",
    metavar="FILE",
    help="Predict undeclared lengths from the runs in this file too: a journal, sacct output or a trace.",
)
@click.option(
    "--most-lost",
    default=MOST_LOST,
    metavar="SECONDS",
    help="Do not stop a job to make room if more of its run than this would be lost.",
)
@click.option("--cloud", metavar="RULE", help="Rent and return nodes by a rule: goodput, throughput or value.")
@reading_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for journals and results; a run found there is not repeated.",
)
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="Number of processes.  [default: all cores]")
@click.option("--per-job", is_flag=True, help="With --json: add a row per job.")
@json_option
def simulate(
    workload_name: str,
    format_name: str | None,
    policies: tuple[str, ...],
    seed: int,
    seeds: int,
    jobs: int | None,
    round_seconds: float | None,
    window_text: str | None,
    skip_bad: bool,
    out: Path | None,
    parallel: int | None,
    per_job: bool,
    as_json: bool,
    quotas: Path | None,
    **scenario: Any,
) -> None:
    """Run policies on a workload in the simulator and compare them."""
    from shoal.scenario.backend import check
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.specs import read_cluster, read_quotas
    from shoal.scenario.sweep import sweep, tasks
    from shoal.scenario.workload_source import WorkloadSource
    from shoal.workload.files import parse_window

    if seeds < 1:
        raise InputError("seeds", seeds, "must be at least 1")
    cluster = read_cluster(scenario.pop("cluster"))
    limits = read_quotas(quotas) if quotas is not None else ()
    base = Scenario(cluster=cluster, policy=policies[0], round=round_seconds, quotas=limits, **scenario)
    window = parse_window(window_text) if window_text else None
    source = WorkloadSource(workload_name, format_name, jobs, window, skip_bad)
    todo = tasks(base, list(dict.fromkeys(policies)), range(seed, seed + seeds), source, out)
    for task in todo:
        task.scenario.make_policy()  # finds a misspelt policy before the first run
    first = source.load(seed)
    check(base, first)
    warn_skipped(first)
    names = [f"{t.scenario.policy} seed {t.scenario.seed}" for t in todo]
    with progress_bars(names, len(first.jobs)) as update:
        finished = sweep(todo, parallel=parallel or os.cpu_count() or 1, progress=update)
    resumed = sum(f.resumed for f in finished)
    if resumed:
        warn(f"{resumed} of {len(finished)} runs were already in {out}")
    where = f"{cluster.describe()} ({cluster.total_gpus:,} GPUs)"
    _print(finished, f"{first.name}: {len(first.jobs):,} jobs on {where}", as_json, per_job)


def _print(finished: "Sequence[Finished]", title: str, as_json: bool, per_job: bool) -> None:
    summaries = [f.outcome.summary for f in finished]
    for summary in summaries:
        warn_unfinished(summary)
    if as_json:
        rows = [{"jobs": f.outcome.jobs.rows()} if per_job else {} for f in finished]
        print_json([{**s, **r} for s, r in zip(summaries, rows, strict=True)])
        return
    knowledge = " and ".join(dict.fromkeys(str(summary["knowledge"]) for summary in summaries))
    print_summaries(f"{title}, knowledge {knowledge}", summaries)
