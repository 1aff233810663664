"""``shoal simulate``: policies × seeds on a workload."""

import os
from pathlib import Path
from typing import Any

import click

from shoal.cli.output import (
    json_option,
    print_json,
    print_summaries,
    progress_bars,
    tell_skipped,
    tell_unfinished,
    warn,
)
from shoal.core.errors import InputError

_SOURCES = "A workload file, or a generator's name (see `shoal workload generate --help`)."


@click.command()
@click.option("--workload", "workload_name", required=True, metavar="FILE|NAME", help=_SOURCES)
@click.option("--format", "format_name", metavar="F", help="The file's format; recognised where possible.")
@click.option("--cluster", required=True, metavar="SPEC", help="TYPE:NODESxGPUS[,…] or a YAML file.")
@click.option("--policy", "policies", required=True, multiple=True, metavar="P", help="name:key=value,…; repeatable.")
@click.option("--seed", default=0, show_default=True, help="Seed of noise, faults, generators and policies.")
@click.option("--seeds", default=1, show_default=True, help="Run this many seeds, counting up from --seed.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Only the first N jobs, or generate N.")
@click.option("--round", "round_seconds", type=float, metavar="SECONDS", help="Round length of policies with rounds.")
@click.option("--knowledge", metavar="K", help="oracle, profiled, estimated or online; each policy's own by default.")
@click.option("--placement", default="packed", show_default=True, help="any, packed, rack or network.")
@click.option("--restart-cost", default="job", show_default=True, help="SECONDS, job, or checkpoint:GB_PER_S.")
@click.option("--noise", default=0.0, show_default=True, help="Spread σ of true speed around the profile.")
@click.option("--faults", metavar="SPEC", help="key=value,… (node_mtbf, gpu_mtbf, …) or a YAML file with a script.")
@click.option("--throughputs", metavar="FILE", help="Speeds that extend or replace the built-in catalogue.")
@click.option("--profiles", multiple=True, metavar="DIR", help="Measured profiles, Pollux's or Sia's; repeatable.")
@click.option("--measurement-noise", default=0.0, show_default=True, help="Spread σ of what jobs' agents measure.")
@click.option("--cloud", metavar="RULE", help="Rent nodes as jobs are worth it: by goodput, throughput or value.")
@click.option("--window", "window_text", metavar="A:B", help="Only jobs submitted in [A, B) seconds.")
@click.option("--skip-bad", is_flag=True, help="Pass over broken rows and say how many.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep journals and results; resumable.")
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="Processes at a time; all cores by default.")
@click.option("--per-job", is_flag=True, help="With --json: a row for every job.")
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
    **scenario: Any,
) -> None:
    """Run policies on a workload in the simulator and compare them."""
    from shoal.scenario.backend import check
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.source import WorkloadSource
    from shoal.scenario.specs import read_cluster
    from shoal.scenario.sweep import sweep, tasks
    from shoal.workload.files import parse_window

    if seeds < 1:
        raise InputError("seeds", seeds, "must be at least 1")
    cluster = read_cluster(scenario.pop("cluster"))
    base = Scenario(cluster=cluster, policy=policies[0], round=round_seconds, **scenario)
    window = parse_window(window_text) if window_text else None
    source = WorkloadSource(workload_name, format_name, jobs, window, skip_bad)
    todo = tasks(base, list(dict.fromkeys(policies)), range(seed, seed + seeds), source, out)
    for task in todo:
        task.scenario.make_policy()  # a misspelt policy is found before the first one runs
    first = source.load(seed)
    check(base, first)
    tell_skipped(first)
    names = [f"{t.scenario.policy} seed {t.scenario.seed}" for t in todo]
    with progress_bars(names, len(first.jobs)) as told:
        finished = sweep(todo, parallel=parallel or os.cpu_count() or 1, progress=told)
    summaries = [f.outcome.summary for f in finished]
    resumed = sum(f.resumed for f in finished)
    if resumed:
        warn(f"{resumed} of {len(finished)} runs were already in {out}")
    for summary in summaries:
        tell_unfinished(summary)
    if as_json:
        rows = [{"jobs": f.outcome.jobs.rows()} if per_job else {} for f in finished]
        print_json([{**s, **r} for s, r in zip(summaries, rows, strict=True)])
        return
    where = f"{cluster.describe()} ({cluster.total_gpus:,} GPUs)"
    knowledge = " and ".join(dict.fromkeys(str(summary["knowledge"]) for summary in summaries))
    print_summaries(f"{first.name}: {len(first.jobs):,} jobs on {where}, knowledge {knowledge}", summaries)
