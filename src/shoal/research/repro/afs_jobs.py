"""AFS's figures by job: completion times by length (figure 10), lengths (figure 14), and the traces (table 3).

The paper prints no values of figures 10 and 14; its text states their message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.topology import parse_cluster
from shoal.perf.afs_profiles import AFS_MODELS
from shoal.research.repro.afs import CLUSTER, FOLDER, TRACES, trace
from shoal.research.repro.context import ReproContext
from shoal.research.repro.paired import all_hold
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import REPRODUCES, Cell, Chart, Column, Line, Table, differs, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run

PAPER_JOBS = dict(zip(TRACES, (2465, 14791, 9033, 938, 51288, 1461, 2677, 5781, 956, 19070, 1401), strict=True))
"""Jobs of each trace in the paper's table 3."""

PAPER_MEAN_DAYS = 2.8
"""The longest mean completion time of a trace, §2.1."""

LENGTH_TRACES = (9, 3)
BASE = "tiresias"
COMPARED = ("max-min", "optimus", "afs-p")
SEEDS = 5
QUICK_JOBS = 250
BINS = 100
_TENTHS = 10


def measure_times(folder: Path, number: int, seed: int, policy: str, jobs: int | None = None) -> dict[str, list[float]]:
    """Return each job's completion time in seconds, in order of arrival."""
    workload = trace(folder, number, seed, jobs)
    scenario = Scenario(parse_cluster(CLUSTER), policy, placement="any", restart_cost="0")
    done = run(scenario, workload).jobs
    return {"jct": np.round(done.jct, 1).tolist()}


@dataclass(frozen=True, slots=True)
class LengthGains:
    """How many times shorter completion times are, by length: geometric means of ``BINS`` equal parts of the jobs."""

    trace: int
    policy: str
    gains: tuple[float, ...]

    def tenths(self) -> list[float]:
        """Return the gains of tenths of the jobs."""
        parts = np.array_split(np.log(self.gains), _TENTHS)
        return [float(np.exp(part.mean())) for part in parts]

    @property
    def unevenness(self) -> float:
        """The standard deviation of the logarithms of the tenths' gains."""
        return float(np.std(np.log(self.tenths())))


def gains_by_length(base: Floats, ours: Floats) -> Floats:
    """Return base ÷ ours by job, averaged geometrically over at most ``BINS`` equal parts of the jobs.

    Jobs are in order of ``base``, their completion times under Tiresias-L.
    """
    order = np.argsort(base, kind="stable")
    ratios = np.log(np.maximum(base, 1.0) / np.maximum(ours, 1.0))[order]
    return np.exp([part.mean() for part in np.array_split(ratios, min(BINS, len(ratios)))])


def length_gains(context: ReproContext) -> list[LengthGains]:
    """Return the gains over Tiresias-L of all policies on both traces, averaged over seeds."""
    seeds, jobs = (range(2), QUICK_JOBS) if context.quick else (range(SEEDS), None)
    found = []
    for number in LENGTH_TRACES:
        times: dict[tuple[str, int], dict[str, Floats]] = {}
        for policy in (BASE, *COMPARED):
            for seed in seeds:
                key = {"afs-10": number, "policy": policy, "seed": seed, "limit": jobs}
                label = f"trace {number}, {policy}, seed {seed}"
                row = context.run(key, label, measure_times, context.data / FOLDER, number, seed, policy, jobs)
                times[policy, seed] = {name: np.array(values) for name, values in row.items()}
        for policy in COMPARED:
            each = [gains_by_length(times[BASE, s]["jct"], times[policy, s]["jct"]) for s in seeds]
            found.append(LengthGains(number, policy, tuple(np.exp(np.log(each).mean(axis=0)).tolist())))
    return found


def length_table(found: Sequence[LengthGains]) -> Table:
    """Figure 10: gains over Tiresias-L by tenths of the jobs, shortest first."""
    rows: list[list[Cell]] = [[one.trace, one.policy, *one.tenths(), one.unevenness] for one in found]
    by_name = {(one.trace, one.policy): one for one in found}
    claims = {}
    for number in {one.trace for one in found}:
        even, uneven = by_name[number, "afs-p"], by_name[number, "max-min"]
        claims[
            f"AFS-P is more even than Max-Min on trace {number} ({even.unevenness:.2f}, {uneven.unevenness:.2f})"
        ] = even.unevenness < uneven.unevenness
    heavy = LENGTH_TRACES[-1]
    ends = [by_name[heavy, name].tenths()[-1] for name in ("max-min", "afs-p")]
    claims[f"Max-Min favours the longest tenth of trace {heavy} ({ends[0]:.2f}, AFS-P {ends[1]:.2f})"] = (
        ends[0] > ends[1]
    )
    charts = [
        Chart(
            f"figure 10, trace {number}",
            "jobs by completion time, %",
            "times shorter than Tiresias-L's",
            (),
            tuple(
                Line(one.policy, tuple((float(i), gain) for i, gain in enumerate(one.gains)))
                for one in found
                if one.trace == number
            ),
        )
        for number in LENGTH_TRACES
    ]
    tenths = [Column(f"{10 * i}–{10 * i + 10}%") for i in range(_TENTHS)]
    return table(
        "figure 10: completion times, times shorter than Tiresias-L's, by tenths of the jobs from short to long",
        [Column("trace", "d"), "policy", *tenths, "unevenness"],
        rows,
        "AFS-P gains more evenly than Max-Min, which favours the longest jobs when contention is heavy (trace 3)",
        "jobs are in order of their completion times under Tiresias-L: the paper does not say under which policy, and "
        "prints no values",
        verdict=all_hold(claims),
        charts=charts,
    )


def coverage_table(ours: Mapping[int, int]) -> Table:
    """Table 3: jobs by trace in the paper and in the public files."""
    rows: list[list[Cell]] = []
    for number, theirs in PAPER_JOBS.items():
        rows.append([str(number), theirs, ours[number], ours[number] - theirs, ours[number] / theirs])
    total, paper = sum(ours.values()), sum(PAPER_JOBS.values())
    rows.append(["all", paper, total, total - paper, total / paper])
    parts = [ours[number] / theirs for number, theirs in PAPER_JOBS.items()]
    if all(abs(part - 1.0) <= 0.01 for part in parts):
        verdict = REPRODUCES
    else:
        verdict = differs(f"{total / paper:.1%} of the jobs, {min(parts):.0%} to {max(parts):.0%} by trace")
    return table(
        "table 3: jobs of the Philly traces",
        ["trace", *(Column(name, ",d") for name in ("paper", "ours", "difference")), Column("of the paper's", ".1%")],
        rows,
        "11 virtual clusters of 137 days, all jobs with a finish time and a GPU count",
        "the public file begins in September, lacks some gang sizes and was filtered for another paper; the cluster's "
        "complete log, which AFS filtered itself, is needed for the rest; machines by trace are in the paper only",
        verdict=verdict,
    )


def sojourn_table(lengths: Mapping[int, Floats]) -> Table:
    """Figure 14: the distribution of run times by trace."""
    rows: list[list[Cell]] = []
    for number, seconds in lengths.items():
        minutes = seconds / 60.0
        quantiles = [float(q) for q in np.quantile(minutes, (0.1, 0.5, 0.9, 0.99))]
        mean = float(minutes.mean())
        rows.append([number, len(seconds), *quantiles, mean / 1440.0, mean / quantiles[1]])
    longest = max(float(str(row[6])) for row in rows)
    claims = {
        f"the longest mean is {PAPER_MEAN_DAYS} days (ours {longest:.2f})": abs(longest / PAPER_MEAN_DAYS - 1) <= 0.1,
        "every trace is heavy-tailed: its mean at least 3 times its median": all(float(str(r[7])) >= 3 for r in rows),
    }
    lines = tuple(
        Line(f"trace {number}", tuple((float(np.quantile(s, q)) / 60.0, q) for q in np.linspace(0.01, 0.99, 50)))
        for number, s in lengths.items()
    )
    quantiles_shown = [Column(f"{name}, min", ",.1f") for name in ("p10", "median", "p90", "p99")]
    return table(
        "figure 14: run times of the traces' jobs",
        [Column("trace", "d"), Column("jobs", ",d"), *quantiles_shown, "mean, days", Column("mean ÷ median", ".1f")],
        rows,
        "heavy-tailed; mean completion times of up to 2.8 days (§2.1)",
        "run times, without the queueing that the paper's sojourn times contain",
        verdict=all_hold(claims),
        charts=[Chart("figure 14: run times", "minutes", "fraction of jobs", (), lines, "steps")],
    )


def _run_times(folder: Path, number: int) -> Floats:
    jobs = trace(folder, number, 0).jobs
    return np.array([job.work / AFS_MODELS[job.model or ""].speedup(job.gpus) for job in jobs])


def _lengths(context: ReproContext) -> dict[int, Floats]:
    folder = context.data / FOLDER
    return {number: _run_times(folder, number) for number in TRACES}


def _figure_10(context: ReproContext) -> list[Table]:
    return [length_table(length_gains(context))]


def _figure_14(context: ReproContext) -> list[Table]:
    return [sojourn_table(_lengths(context))]


def _table_3(context: ReproContext) -> list[Table]:
    return [coverage_table({number: len(seconds) for number, seconds in _lengths(context).items()})]


_PAPER = "AFS (NSDI '21)"
REPRODUCTIONS = (
    Reproduction("afs-10", _PAPER, "completion times by length of jobs", _figure_10, FOLDER),
    Reproduction("afs-14", _PAPER, "run times of the traces", _figure_14, FOLDER),
    Reproduction("afs-table3", _PAPER, "jobs of the traces: the paper's and those at hand", _table_3, FOLDER),
)
