"""Comparisons of Blox (EuroSys '24) that its public repository allows.

Its repository (msr-fiddle/blox) holds results of Pollux by scheduling interval, of the Pollux authors' simulator and of
its own. Its runs of FIFO, LAS and SRTF draw jobs from Philly's ``cluster_job_log``, which is not obtainable; two traces
of its generator are in the data folder, and their arrivals are stretched here to other loads.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from shoal.core.topology import parse_cluster
from shoal.research.repro.context import ReproContext
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.pollux import EQUAL, Experiment, PolluxResult, PolluxVariant, cache_key, measure
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import REPRODUCES, Cell, Chart, Column, Line, Table, cannot_be_told, differs, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.files import read_workload
from shoal.workload.schema import Workload

PAPER = "Blox (EuroSys '24)"

AUTHORS: dict[int, tuple[float, ...]] = {
    30: (2092.8, 3315.3, 2185.8, 2666.4, 2616.5, 2456.0, 3560.1, 2929.0),
    60: (2107.6, 3366.3, 2168.0, 2701.3, 2673.2, 2446.9, 3611.7, 2946.3),
    120: (2146.7, 3388.5, 2212.5, 2746.0, 2740.2, 2523.8, 3684.4, 2978.8),
    240: (2289.3, 3526.2, 2394.3, 2919.7, 2853.9, 2700.1, 3822.6, 3138.2),
    480: (2689.2, 3954.8, 2791.6, 3248.0, 3252.8, 3148.8, 4248.4, 3573.6),
}
"""Average JCT in seconds by interval for workloads 1 to 8 in the Pollux authors' simulator, as run by Blox's authors:
``summary.json`` in ``pollux_sim_results/pollux_author`` and ``reproduce-period``."""

BLOX_120 = 2577.9
"""Blox's own simulator on workload 6 with intervals of 120 s (``2min_0_159_Pollux_load_1.0_job_stats.json``)."""

NEAR = 0.05
"""Relative difference of means up to which an interval counts as reproduced."""

SCHEDULERS = ("fifo", "las", "srtf", "tiresias", "optimus", "shoal")
LOADS = (2.0, 4.0, 6.0, 8.0)
"""Jobs an hour; the traces were made with 2 and 4."""

_CLUSTER = "v100:4x4"
_TRACES = (("traces/small/blox_load2_61.json", 2.0), ("traces/small/blox_multi_load4_200.json", 4.0))


@dataclass(frozen=True, slots=True)
class BloxRun:
    """Average and 99th-percentile JCT, and mean wait, in seconds."""

    mean: float
    tail: float
    wait: float


def _intervals(context: ReproContext) -> list[Table]:
    """Return the table of Pollux by interval, from the runs of pollux-8b."""
    numbers = (6,) if context.quick else tuple(range(1, 9))
    variants = {seconds: PolluxVariant(f"pollux:interval={seconds},when=interval") for seconds in AUTHORS}
    place = "pollux/workloads"
    experiment = Experiment("blox", "", (place,), numbers, tuple(variants.values()), "", EQUAL)
    cases = [(seconds, number) for seconds in variants for number in numbers]
    tasks = [
        Task(
            cache_key(experiment, place, number, variants[seconds]),
            f"{place} {number}, {variants[seconds]}",
            measure,
            (context.data, experiment, place, number, variants[seconds]),
        )
        for seconds, number in cases
    ]
    means = {case: PolluxResult(**one).mean for case, one in zip(cases, run_all(context, tasks), strict=True)}
    rows: list[list[Cell]] = []
    for seconds, theirs in AUTHORS.items():
        published = sum(theirs[number - 1] for number in numbers) / len(numbers)
        ours = sum(means[seconds, number] for number in numbers) / len(numbers)
        rows.append([f"{seconds} s", published, ours, ours / published - 1.0, theirs[5], means[seconds, 6]])
        rows[-1].append(BLOX_120 if seconds == 120 else None)
    far = [f"{row[0]}: {row[3]:+.1%}" for row in rows if abs(float(row[3] or 0.0)) > NEAR]
    points = [(float(str(row[0]).removesuffix(" s")), float(row[1] or 0), float(row[2] or 0)) for row in rows]
    chart = Chart(
        "average JCT by scheduling interval",
        "interval, s",
        "average JCT, s",
        (Line("Pollux", tuple((x, y) for x, y, _ in points)),),
        (Line("Pollux", tuple((x, y) for x, _, y in points)),),
    )
    columns = [Column("interval"), Column("authors' simulator, s", ",.0f"), Column("ours, s", ",.0f")]
    columns += [
        Column("difference", "+.1%"),
        Column("workload 6, authors'", ",.0f"),
        Column("workload 6, ours", ",.0f"),
    ]
    return [
        table(
            f"Pollux by scheduling interval: average JCT, {len(numbers)} workload{'s' if len(numbers) > 1 else ''}",
            [*columns, Column("workload 6, Blox", ",.0f")],
            rows,
            "in the table; Blox reports that its Pollux agrees with the authors'",
            "a first start is free here and costs 30 s there",
            verdict=differs("; ".join(far)) if far else REPRODUCES,
            charts=(chart,),
        )
    ]


def stretched(workload: Workload, factor: float) -> Workload:
    """Return the same jobs with all times between arrivals multiplied by a factor."""
    jobs = (msgspec.structs.replace(job, submitted=job.submitted * factor) for job in workload.jobs)
    return Workload(workload.name, tuple(jobs), workload.format, workload.source)


def load_run(file: Path, factor: float, policy: str) -> dict[str, float]:
    """Run a policy on a trace with stretched arrivals."""
    summary = run(Scenario(parse_cluster(_CLUSTER), policy), stretched(read_workload(file, "simple"), factor)).summary
    return asdict(BloxRun(summary["avg_jct"], summary["p99_jct"], summary["queueing"]["mean"]))


def _loads(context: ReproContext) -> list[Table]:
    tables = []
    for name, made in _TRACES[: 1 if context.quick else 2]:
        cases = [(policy, load) for policy in SCHEDULERS for load in LOADS]
        tasks = [
            Task(
                {"blox": name, "load": load, "policy": policy, "cluster": _CLUSTER},
                f"{name}, {load:g} jobs an hour, {policy}",
                load_run,
                (context.data / name, made / load, policy),
            )
            for policy, load in cases
        ]
        found = dict(zip(cases, (BloxRun(**one) for one in run_all(context, tasks)), strict=True))
        tables.append(_load_table(name, found))
    return tables


def _load_table(name: str, found: dict[tuple[str, float], BloxRun]) -> Table:
    rows: list[Sequence[Cell]] = [
        [policy, *(found[policy, load].mean for load in LOADS), *(found[policy, load].wait for load in LOADS)]
        for policy in SCHEDULERS
    ]
    columns = [Column(f"JCT, {load:g} jobs an hour", ",.0f") for load in LOADS]
    columns += [Column(f"wait, {load:g}", ",.0f") for load in LOADS]
    lines = tuple(Line(p, tuple((load, found[p, load].mean / 3600) for load in LOADS)) for p in SCHEDULERS)
    return table(
        f"average JCT and mean wait in seconds by load: {Path(name).name}, {_CLUSTER}",
        ["policy", *columns],
        rows,
        "average JCT and responsiveness of FIFO, Tiresias and Optimus by load on jobs drawn from Philly",
        "arrivals of one public trace of Blox's generator are stretched; a restart is free",
        verdict=cannot_be_told("the log that Blox draws its jobs from is not obtainable, and it prints no values"),
        charts=(Chart("average JCT by load", "jobs an hour", "average JCT, h", (), lines),),
    )


REPRODUCTIONS = (
    Reproduction(
        "blox-pollux", PAPER, "Pollux by interval beside its authors' simulator and Blox's", _intervals, "pollux"
    ),
    Reproduction("blox-loads", PAPER, "FIFO, LAS, SRTF, Tiresias, Optimus and shoal by load", _loads, "traces/small"),
)
