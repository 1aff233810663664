"""Themis's measurements and worked example: figures 1 to 4 and 8 (the workload), table 1 (distance), table 3 (bids)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

import numpy as np

from shoal.core.topology import Locality, parse_cluster
from shoal.perf.app_valuation import Work, ideal_seconds
from shoal.perf.catalog import catalog
from shoal.policy.themis.agent import AppAgent
from shoal.policy.themis.locality import GUESSED
from shoal.policy.themis.protocol import GpuOffer
from shoal.report.compare import half_width
from shoal.report.history import read_history
from shoal.report.step_functions import Steps
from shoal.research.repro.context import ReproContext
from shoal.research.repro.paired import all_hold
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.generators.registry import generate
from shoal.workload.generators.themis import CLUSTER

SEEDS = 5
TRIALS = 700

PAPER_WORKLOAD = {
    "apps of one job": 0.10,
    "jobs of an app, median": 75.0,
    "jobs of an app, most": 100.0,
    "GPU-days of an app, median": 11.5,
    "GPU-hours of a task, median": 3.75,
    "GPUs asked for, average": 50.0,
}
"""Figures 1 to 4, as far as §2.2 prints numbers; those of apps' jobs are of apps with more than one."""

PAPER_SPEEDS = {"VGG16": (103.6, 80.4), "Inception-v3": (242.0, 243.0)}
"""Table 1: images per second of 4 P100 GPUs on one server and across two."""

PAPER_BIDS = {1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5, 16: 0.34}
"""Table 3: ρ by number of GPUs."""


@dataclass(frozen=True, slots=True)
class WorkloadFigures:
    """The figures of one generated workload, in the order of ``PAPER_WORKLOAD``."""

    single: float
    jobs: float
    most: float
    app_days: float
    task_hours: float
    demand: float


def measure_workload(seed: int, trials: int = TRIALS) -> WorkloadFigures:
    """Generate a workload and run it under Themis, which decides the jobs of its searches."""
    workload = generate("themis", jobs=trials, seed=seed)
    trials_by_app: dict[str, int] = {}
    for job in workload.jobs:
        trials_by_app[job.tenant] = trials_by_app.get(job.tenant, 0) + 1
    many = [count for count in trials_by_app.values() if count > 1]
    done = run(Scenario(parse_cluster(CLUSTER), "themis", seed=seed), workload)
    assert done.journal is not None
    history, jobs = read_history(done.journal.raw()), done.jobs
    app_seconds: dict[str, float] = {}
    for tenant, seconds in zip(jobs.tenant, jobs.gpu_seconds.tolist(), strict=True):
        app_seconds[tenant] = app_seconds.get(tenant, 0.0) + seconds
    demand = Steps.of(history.submitted, history.live_until, history.gpus.astype(np.float64))
    average = demand.mean(np.array([history.begin]), np.array([history.end]))
    return WorkloadFigures(
        1.0 - len(many) / len(trials_by_app),
        float(median(many)),
        float(max(many)),
        median(app_seconds.values()) / 86400.0,
        float(np.median(jobs.gpu_seconds / jobs.gpus)) / 3600.0,
        float(average[0]),
    )


def workload_table(found: Sequence[WorkloadFigures]) -> Table:
    """Figures 1 to 4 and 8: the generated workload beside the paper's numbers."""
    rows: list[list[Cell]] = []
    claims: dict[str, bool] = {}
    for at, (name, theirs) in enumerate(PAPER_WORKLOAD.items()):
        values = [float(tuple(asdict(one).values())[at]) for one in found]
        ours = fmean(values)
        rows.append([name, theirs, ours, half_width(values), ours / theirs - 1.0])
        claims[f"{name}: {theirs:g} (ours {ours:.3g})"] = abs(ours / theirs - 1.0) <= 0.25
    return table(
        "figures 1 to 4 and 8: the workload",
        ["figure", Column("paper", ".3g"), Column("ours", ".3g"), Column("±", ".2g"), Column("difference", "+.0%")],
        rows,
        "85 apps of a tuning framework; not public, and scaled down by an unknown factor for the evaluation",
        "generated apps (workload 2), smaller and shorter, as the module of the generator says",
        verdict=all_hold(claims),
    )


def distance_table(ours: Mapping[str, tuple[float, float]]) -> Table:
    """Table 1: speeds of 4 GPUs near and apart."""
    rows: list[list[Cell]] = []
    claims: dict[str, bool] = {}
    for model, theirs in PAPER_SPEEDS.items():
        ratios = [pair[1] / pair[0] for pair in (theirs, ours[model])]
        rows.append([model, *theirs, ratios[0], *ours[model], ratios[1]])
        claims[f"{model}: {ratios[0]:.3f} of its speed across servers (ours {ratios[1]:.3f})"] = (
            abs(ratios[1] - ratios[0]) <= 0.01
        )
    heads = ("one server", "two servers")
    columns = [*(Column(f"paper, {head}", ".1f") for head in heads), Column("ratio", ".3f")]
    columns += [*(Column(f"ours, {head}", ".1f") for head in heads), Column("our ratio", ".3f")]
    return table(
        "table 1: images per second of 4 P100",
        ["model", *columns],
        rows,
        "VGG16 is slower across servers, Inception-v3 is not",
        "our speeds are the catalogue's, which are taken from this table",
        verdict=all_hold(claims),
    )


def catalogue_speeds() -> dict[str, tuple[float, float]]:
    """Return images per second of 4 GPUs on one and on two servers, by the catalogue."""
    found: dict[str, tuple[float, float]] = {}
    for kind in catalog().types():
        if kind.model in PAPER_SPEEDS and kind.model not in found:
            profile = catalog().profile(kind.model)
            near, apart = (
                profile.rate("p100", 4, where, kind.batch_size) for where in (Locality.SAME_NODE, Locality.CROSS_NODE)
            )
            found[kind.model] = near, apart
    return found


def example_bids() -> dict[int, float]:
    """Return ρ by number of GPUs in the bid of §4.3.3's example: 4 jobs, 3 phases, 10,000 GPU-seconds, 4 apps."""
    first = tuple(Work.linear(8.0 * seconds, 1, 8) for seconds in (80, 100, 100, 120))
    ahead = ((Work.linear(16.0 * 100, 1, 8),) * 2, (Work.linear(36.0 * 100, 1, 8),))
    ideal = ideal_seconds(10_000.0, demand=32, cluster=16, contention=4.0)
    agent = AppAgent(0, 0.0, ideal, first, 0, 16, GUESSED, 16, 16, ahead)
    return {row.gpus: row.rho for row in agent.bid(GpuOffer(0, ((0, "r0", 16),), 600.0)).rows}


def bid_table(ours: Mapping[int, float]) -> Table:
    """Table 3: the bids of the worked example."""
    rows: list[list[Cell]] = [[gpus, theirs, ours[gpus], ours[gpus] - theirs] for gpus, theirs in PAPER_BIDS.items()]
    claims = {f"ρ with {n} GPUs is {v:g} (ours {ours[n]:.3f})": abs(ours[n] - v) < 0.005 for n, v in PAPER_BIDS.items()}
    return table(
        "table 3: bids of the worked example",
        [Column("GPUs", "d"), "paper", Column("ours", ".3f"), Column("difference", "+.3f")],
        rows,
        "ρ of 4, 2, 1, 0.5 and 0.34",
        verdict=all_hold(claims),
    )


def _workload(context: ReproContext) -> list[Table]:
    seeds, trials = (range(2), TRIALS // 5) if context.quick else (range(SEEDS), TRIALS)
    found = []
    for seed in seeds:
        key = {"themis-workload": seed, "trials": trials}
        row = context.run(key, f"workload, seed {seed}", _measured, seed, trials)
        found.append(WorkloadFigures(**row))
    return [workload_table(found)]


def _measured(seed: int, trials: int) -> dict[str, float]:
    return asdict(measure_workload(seed, trials))


def _distance(_: ReproContext) -> list[Table]:
    return [distance_table(catalogue_speeds())]


def _bids(_: ReproContext) -> list[Table]:
    return [bid_table(example_bids())]


_PAPER = "Themis (NSDI '20)"
REPRODUCTIONS = (
    Reproduction("themis-2", _PAPER, "the workload: figures 1 to 4 and 8", _workload),
    Reproduction("themis-table1", _PAPER, "speeds near and across servers", _distance),
    Reproduction("themis-table3", _PAPER, "bids of the worked example", _bids),
)
