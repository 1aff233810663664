"""Themis's figure 18: completion times of an app that lies in its bids, and of the others.

``lie_effects`` runs one lying app among honest ones. A lie overstates the cost of distance; understating it is not
tested. A quick run uses two seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import fmean, stdev

import numpy as np

from shoal.core.topology import parse_cluster
from shoal.perf.catalog import catalog
from shoal.research.repro.context import ReproContext
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Chart, Column, Line, Table, table
from shoal.research.repro.themis import SEEDS
from shoal.research.repro.themis_verdicts import by_lies
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.generators.gavel import whole_steps
from shoal.workload.generators.registry import generate
from shoal.workload.schema import Job, Workload

LIES = (0.2, 0.34, 0.5, 1.0)
"""Relative overstatement of the cost of distance; in the paper the liar begins to lose at 0.34."""

HONEST = ("", 0.0)
"""No liar and no lie."""

_NETWORK = "VGG16"


@dataclass(frozen=True, slots=True)
class Contest:
    """An experiment with lies: a cluster, its apps, those that may lie, and Themis's options.

    ``make_workload`` returns the apps of a seed; ``liars`` those that lie, one per run.
    """

    name: str
    cluster: str
    make_workload: Callable[[int], Workload]
    liars: Callable[[Workload], Sequence[str]]
    policy: str


@dataclass(frozen=True, slots=True)
class LieEffect:
    """Effect of a lie: completion time of the liar and mean completion time of the others, relative to the honest run.

    Below 1 the lie pays. Effects of the same ``seed`` share one honest run.
    """

    liar: float
    others: float
    seed: int


def identical_apps(seed: int) -> Workload:
    """Return eight identical apps, each with four trials on gangs of four: twice the GPUs of figure 18's cluster.

    The apps are the same for every seed, which affects only how payments are rounded and assigned.
    """
    kind = next(t for t in catalog().types() if t.model == _NETWORK)
    work = whole_steps(kind, "p100", 4, 2 * 3600.0)
    jobs = tuple(
        Job(
            id=f"app-{app}-{trial}",
            submitted=0.0,
            gpus=4,
            work=work,
            min_gpus=1,
            max_gpus=16,
            tenant=f"app-{app}",
            app=f"app-{app}",
            model=kind.model,
            batch_size=kind.batch_size,
            search="halving:eta=2",
            loss=0.1 + 0.1 * trial,
            pace=20.0,
        )
        for app in range(8)
        for trial in range(4)
    )
    return Workload(f"eight apps alike, seed {seed}", jobs)


def _generated(seed: int) -> Workload:
    return generate("themis", jobs=80, seed=seed)


def _all_apps(workload: Workload) -> Sequence[str]:
    return tuple(dict.fromkeys(job.app for job in workload.jobs if job.app))


def _network_intensive(workload: Workload) -> Sequence[str]:
    searching = [job.app for job in workload.jobs if job.model == _NETWORK and job.search != "single" and job.app]
    # The last to arrive find the cluster full.
    return tuple(dict.fromkeys(searching))[-3:]


def contests() -> tuple[Contest, ...]:
    """Return the experiments with lies: figure 18's cluster with one wide machine, and a quarter of the large cluster.

    The latter is run with both kinds of bids.
    """

    alike = "one machine of 8 GPUs and 28 of 2, eight identical apps that want 128 GPUs, all bidding for machines"
    quarter, apps = "p100:4x8,p100:2x4,p100:4x1", "a quarter of the large cluster, generated apps, all bidding"
    return (
        Contest(alike, "p100:1x8,p100:28x2", identical_apps, _all_apps, "themis:f=0,bids=machines"),
        Contest(f"{apps} for machines", quarter, _generated, _network_intensive, "themis:f=0,bids=machines"),
        Contest(f"{apps} for numbers", quarter, _generated, _network_intensive, "themis:f=0,bids=count"),
    )


def app_seconds(contest: Contest, seed: int, liar: str = "", lie: float = 0.0) -> Mapping[str, float]:
    """Return the seconds from arrival to completion of each app."""
    scenario = Scenario(parse_cluster(contest.cluster), f"{contest.policy},liar={liar},lie={lie:g}", seed=seed)
    jobs = run(scenario, contest.make_workload(seed)).jobs
    tenants = np.array(jobs.tenant)
    return {
        name: float(np.nanmax(jobs.completed[tenants == name]) - jobs.submitted[tenants == name].min())
        for name in dict.fromkeys(tenants.tolist())
    }


def lie_effects(context: ReproContext, contest: Contest, seeds: Sequence[int]) -> Mapping[float, Sequence[LieEffect]]:
    """Return, by size of the lie, its effects for each liar of each seed, computed or stored."""
    found: dict[float, list[LieEffect]] = {lie: [] for lie in LIES}
    runs = [(seed, liar, lie) for seed in seeds for liar, lie in _lie_runs(contest, seed)]
    tasks = [
        Task(
            {"themis-lies": contest.name, "policy": contest.policy, "seed": seed, "liar": liar, "lie": lie},
            f"{contest.name}, seed {seed}, {f'{liar} lies by {lie:.0%}' if lie else 'all are honest'}",
            app_seconds,
            (contest, seed, liar, lie),
        )
        for seed, liar, lie in runs
    ]
    by_run = dict(zip(runs, run_all(context, tasks), strict=True))
    for seed in seeds:
        seconds: dict[tuple[str, float], Mapping[str, float]] = {
            (liar, lie): taken for (of, liar, lie), taken in by_run.items() if of == seed
        }
        honest = seconds.pop(HONEST)
        for (liar, lie), lied in seconds.items():
            others = [name for name in honest if name != liar]
            before, after = (sum(taken[name] for name in others) for taken in (honest, lied))
            found[lie].append(LieEffect(lied[liar] / honest[liar], after / before, seed))
    return found


def _lie_runs(contest: Contest, seed: int) -> list[tuple[str, float]]:
    """The runs of a contest as (liar, lie): the honest one, then all lies of every liar."""
    return [HONEST, *((liar, lie) for liar in contest.liars(contest.make_workload(seed)) for lie in LIES)]


def by_lie(contest: Contest, found: Mapping[float, Sequence[LieEffect]]) -> Table:
    """Figure 18: effect of a lie on the liar and on the others, as geometric mean ± two standard errors.

    The error is that of the seeds' means: apps of a seed compete for the same GPUs, so their times are not independent.
    """
    rows: list[list[Cell]] = []
    pays = []
    for lie, cases in found.items():
        logs = [log(case.liar) for case in cases]
        seeds = {case.seed for case in cases}
        means = [fmean(log(case.liar) for case in cases if case.seed == seed) for seed in seeds]
        mean = fmean(means)
        error = stdev(means) / sqrt(len(means)) if len(means) > 1 else inf
        others = exp(sum(log(case.others) for case in cases) / len(cases))
        sooner, later = sum(x < -1e-9 for x in logs), sum(x > 1e-9 for x in logs)
        rows.append([lie, exp(mean), 2 * error, others, sooner, len(logs) - sooner - later, later])
        if mean + 2 * error < 0.0:
            pays.append(f"{lie:.0%}")
    liar, around, rest = ({float(str(row[0])): float(str(row[i])) for row in rows} for i in (1, 2, 3))
    counts = [Column(name, "d") for name in ("sooner", "same", "later")]
    ratios = [Column(name, ".3f") for name in ("liar", "±", "others")]
    return table(
        f"figure 18: completion times of apps relative to the honest run; {contest.name}",
        [Column("lie", ".0%"), *ratios, *counts],
        rows,
        "the liar is never sooner, and much later from 34 % on; the others are sooner",
        f"the liar is sooner beyond chance with lies of {', '.join(pays) or 'no size'}",
        verdict=by_lies(liar, around, rest),
        charts=[
            Chart(
                "figure 18: completion times",
                "lie",
                "time over the honest run's",
                (),
                tuple(Line(name, tuple(times.items())) for name, times in (("liar", liar), ("others", rest))),
            )
        ],
    )


def _lie_tables(context: ReproContext) -> list[Table]:
    seeds = range(2 if context.quick else SEEDS)
    return [by_lie(contest, lie_effects(context, contest, seeds)) for contest in contests()]


REPRODUCTIONS = (Reproduction("themis-18", "Themis (NSDI '20)", "an app that lies", _lie_tables),)
