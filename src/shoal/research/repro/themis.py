"""Themis's simulations (NSDI '20): apps that search by successive halving on 168 GPUs, the paper's figures and ours.

``measure_all`` runs policies on workloads of the ``themis`` generator, ``lie_effects`` one lying app among honest ones;
each figure is a function of their results that returns its table. The apps are generated, not those of the paper's
trace, so directions and factors may be compared and values may not. A lie overstates the cost of distance;
understating it is not tested. A quick run uses a fifth of the apps and two seeds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import exp, inf, log, sqrt
from statistics import fmean, median, stdev

import numpy as np

from shoal.core.topology import parse_cluster
from shoal.perf.catalog import catalog
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.workload.generators.gavel import whole_steps
from shoal.workload.generators.registry import generate
from shoal.workload.generators.themis import CLUSTER
from shoal.workload.schema import Job, Workload

TRIALS = 700
"""Number of trials of all apps of a run together: about forty apps."""

SEEDS = 6

THEMIS = "themis:f=0.9,rounding=random"
BASELINES = (
    "tiresias",
    "optimus",
    "slaq",
    "gandiva",
    "srtf",
    "srsf",
    "apps:by=service",
    "apps:by=time",
    "apps:by=work",
)
"""The paper's baselines; Tiresias, SRTF and SRSF order jobs and, as in the paper's setup, apps."""

PAPER_FACTOR = 2.2
"""Least ratio of a baseline's worst ρ to Themis's in the paper."""

MIXES = (0.0, 0.5, 1.0)
"""Fractions of network-intensive apps; figures 10 and 12 use the second."""

ERRORS = (0.05, 0.1, 0.2)
ERROR_FILTERS = (0.9, 0.0)
"""At f = 0.9 few apps bid at a time, often one, so a wrong bid decides little; at f = 0 all bid."""

FILTERS = (0.0, 0.4, 0.8, 0.9, 1.0)
LEASES_MINUTES = (5, 10, 20, 40)
LIES = (0.2, 0.34, 0.5, 1.0)
"""Relative overstatement of the cost of distance; in the paper the liar begins to lose at 0.34."""

HONEST = ("", 0.0)
"""No liar and no lie."""

_NETWORK = "VGG16"


@dataclass(frozen=True, slots=True)
class ThemisCase:
    """A policy, the seed of its apps, and the fraction ``network`` of network-intensive ones."""

    policy: str
    seed: int
    network: float = 0.5


@dataclass(frozen=True, slots=True)
class ThemisResult:
    """The worst finish-time fairness of any app, the GPU-seconds of all apps, and the number of restarts."""

    max_rho: float
    gpu_seconds: float
    restarts: int


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


Results = Mapping[ThemisCase, ThemisResult]


def measure(case: ThemisCase, trials: int = TRIALS) -> ThemisResult:
    """Run one case on the paper's heterogeneous cluster."""
    workload = generate("themis", jobs=trials, seed=case.seed, network=case.network)
    summary = run(Scenario(parse_cluster(CLUSTER), case.policy, seed=case.seed), workload).summary
    return ThemisResult(summary["apps"]["rho"]["max"], summary["gpu_seconds"], summary["restarts"])


def measure_all(context: ReproContext, cases: Iterable[ThemisCase], trials: int = TRIALS) -> Results:
    """Return the results of all cases, each computed once or stored."""
    results: dict[ThemisCase, ThemisResult] = {}
    for case in dict.fromkeys(cases):
        key = {"themis": asdict(case), "trials": trials}
        label = f"{case.policy}, seed {case.seed}, {case.network:.0%} network-intensive"
        results[case] = ThemisResult(**context.run(key, label, measure, case, trials))
    return results


def themis_policy(f: float, lease_minutes: int) -> str:
    """Return Themis's spec with one filter and one lease."""
    return f"themis:f={f:g},lease={60 * lease_minutes}"


def mistaken_policy(error: float, f: float) -> str:
    """Return the spec of Themis with estimates of every app that are off by up to ± ``error``."""
    return f"{themis_policy(f, 10)},noise={error:g}"


def baseline_cases(seeds: Sequence[int], mixes: Sequence[float] = MIXES) -> list[ThemisCase]:
    """Return cases of Themis and all baselines at each fraction of network-intensive apps."""
    return [ThemisCase(policy, seed, mix) for mix in mixes for policy in (THEMIS, *BASELINES) for seed in seeds]


def error_cases(seeds: Sequence[int]) -> list[ThemisCase]:
    """Return cases of Themis with and without wrong estimates, for both filters."""
    wrong = [ThemisCase(mistaken_policy(error, f), seed) for f in ERROR_FILTERS for error in ERRORS for seed in seeds]
    return [*wrong, *(ThemisCase(themis_policy(f, 10), seed) for f in ERROR_FILTERS for seed in seeds)]


def filter_lease_cases(seeds: Sequence[int]) -> list[ThemisCase]:
    """Return cases of Themis with every filter and every lease."""
    return [ThemisCase(themis_policy(f, lease), seed) for f in FILTERS for lease in LEASES_MINUTES for seed in seeds]


def against_baselines(results: Results, seeds: Sequence[int]) -> Table:
    """Figures 9 to 12, on a larger cluster than the paper's testbed: the baselines' figures relative to Themis's."""
    factor = {policy: median(_rho_ratios(policy, results, seeds)) for policy in BASELINES}
    short = [policy for policy in BASELINES if factor[policy] < PAPER_FACTOR]
    fairer = ", ".join(p for p in short if factor[p] < 1.0) or "none"
    return table(
        "figures 10 and 12: baselines' worst ρ and GPU time relative to Themis's (f = 0.9), medians over seeds",
        ["policy", "max ρ", "÷ Themis", "(range)", Column("GPU time", ".3f"), Column("restarts", ".0f")],
        [_baseline_row(policy, results, seeds) for policy in (THEMIS, *BASELINES)],
        "2.2 to 3.25 times the max ρ with all baselines; GPU time 4.8 % more with Gandiva, 250 % with SLAQ",
        f"below {PAPER_FACTOR} with {', '.join(short) or 'none'}; fairer than Themis: {fairer}",
    )


def _rho_ratios(policy: str, results: Results, seeds: Sequence[int]) -> list[float]:
    """By seed: the policy's worst ρ divided by Themis's."""
    return [results[ThemisCase(policy, seed)].max_rho / results[ThemisCase(THEMIS, seed)].max_rho for seed in seeds]


def _baseline_row(policy: str, results: Results, seeds: Sequence[int]) -> list[Cell]:
    ours, theirs = ([results[ThemisCase(p, seed)] for seed in seeds] for p in (THEMIS, policy))
    fairness = _rho_ratios(policy, results, seeds)
    gpu_time = median(b.gpu_seconds / a.gpu_seconds for a, b in zip(ours, theirs, strict=True))
    worst, moves = median(b.max_rho for b in theirs), median(b.restarts for b in theirs)
    spread = f"{min(fairness):.2f}–{max(fairness):.2f}"
    return [_label(policy), worst, median(fairness), spread, gpu_time, moves]


def _label(policy: str) -> str:
    return "themis" if policy == THEMIS else policy


def by_mix(results: Results, seeds: Sequence[int]) -> Table:
    """Figures 15 and 16: worst ρ, and GPU time relative to Themis's, by fraction of network-intensive apps."""
    rows: list[list[Cell]] = []
    for policy in (THEMIS, *BASELINES):
        rho = [median(results[ThemisCase(policy, seed, mix)].max_rho for seed in seeds) for mix in MIXES]
        time = [
            median(
                results[ThemisCase(policy, seed, mix)].gpu_seconds / results[ThemisCase(THEMIS, seed, mix)].gpu_seconds
                for seed in seeds
            )
            for mix in MIXES
        ]
        rows.append([_label(policy), *rho, *time])
    return table(
        "figures 15 and 16: median max ρ and GPU time ÷ Themis's, by share of network-intensive apps",
        ["policy", *(f"ρ at {mix:.0%}" for mix in MIXES), *(Column(f"GPU {mix:.0%}", ".3f") for mix in MIXES)],
        rows,
        "the worst ρ is highest at 40 to 60 %; at 100 % the others' is 1.24 to 1.77 times Themis's, and Gandiva's GPU "
        "time 1.08 times; at 0 % all take the same",
    )


def by_error(results: Results, seeds: Sequence[int]) -> Table:
    """Figure 17: change of the worst ρ if every app's estimates are wrong."""
    rows: list[list[Cell]] = []
    for f in ERROR_FILTERS:
        for error in ERRORS:
            pairs = [
                (results[ThemisCase(mistaken_policy(error, f), s)], results[ThemisCase(themis_policy(f, 10), s)])
                for s in seeds
            ]
            change = [wrong.max_rho / right.max_rho - 1.0 for wrong, right in pairs]
            each = "  ".join(f"{part:+.1%}" for part in change)
            rows.append([f, error, median(change), sum(change) / len(change), each])
    percent = "+.1%"
    return table(
        "figure 17: change of max ρ when every app's estimates are off by up to ± X",
        [Column("f", "g"), Column("X", ".0%"), Column("median", percent), Column("mean", percent), "by seed"],
        rows,
        "10.76 % at X = 20 %",
    )


def by_filter_and_lease(results: Results, seeds: Sequence[int]) -> tuple[Table, Table]:
    """Figure 19: worst ρ and GPU time by filter f and lease length."""

    def rho(f: float, lease: int) -> float:
        return median(results[ThemisCase(themis_policy(f, lease), seed)].max_rho for seed in seeds)

    def gpu_time(f: float, lease: int) -> float:
        chosen = [results[ThemisCase(themis_policy(0.8, 10), seed)].gpu_seconds for seed in seeds]
        these = [results[ThemisCase(themis_policy(f, lease), seed)].gpu_seconds for seed in seeds]
        return median(a / b for a, b in zip(these, chosen, strict=True))

    def grid(what: str, form: str, shown: Callable[[float, int], float], paper: str, here: str = "") -> Table:
        columns = [Column("f", "g"), *(Column(f"{lease} min", form) for lease in LEASES_MINUTES)]
        rows: list[list[Cell]] = [[f, *(shown(f, lease) for lease in LEASES_MINUTES)] for f in FILTERS]
        return table(f"figure 19: {what} by filter and lease, medians over seeds", columns, rows, paper, here)

    fairest = min(FILTERS, key=lambda f: rho(f, 10))
    here = (
        f"at 10 min f = {fairest:g} is the fairest, max ρ at f = 1 {rho(1.0, 10) / rho(fairest, 10):.2f} times as high;"
        f" at f = 0.8, {rho(0.8, 40) / rho(0.8, 5):.2f} times as high with 40 min as with 5"
    )
    falls = "falls with f up to 0.8 and is about 1.5 times as high beyond; shorter leases are fairer"
    rises = "rises with f and falls with longer leases"
    return (
        grid("max ρ", ".2f", rho, falls, here),
        grid("GPU time over that at f = 0.8 and 10 min", ".3f", gpu_time, rises),
    )


def identical_apps(seed: int) -> Workload:
    """Return eight identical apps, each with four trials on gangs of four: twice the GPUs of figure 18's cluster.

    They are the same for every seed, which affects only how payments are rounded and assigned.
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


def contests() -> tuple[Contest, ...]:
    """Return the experiments with lies: figure 18's cluster with one wide machine, and a quarter of the large cluster.

    The latter is run with both kinds of bids.
    """

    def generated(seed: int) -> Workload:
        return generate("themis", jobs=80, seed=seed)

    def all_apps(workload: Workload) -> Sequence[str]:
        return tuple(dict.fromkeys(job.app for job in workload.jobs if job.app))

    def network_intensive(workload: Workload) -> Sequence[str]:
        searching = [job.app for job in workload.jobs if job.model == _NETWORK and job.search != "single" and job.app]
        # The last to arrive find the cluster full.
        return tuple(dict.fromkeys(searching))[-3:]

    alike = "one machine of 8 GPUs and 28 of 2, eight identical apps that want 128 GPUs, all bidding for machines"
    quarter, apps = "p100:4x8,p100:2x4,p100:4x1", "a quarter of the large cluster, generated apps, all bidding"
    return (
        Contest(alike, "p100:1x8,p100:28x2", identical_apps, all_apps, "themis:f=0,bids=machines"),
        Contest(f"{apps} for machines", quarter, generated, network_intensive, "themis:f=0,bids=machines"),
        Contest(f"{apps} for numbers", quarter, generated, network_intensive, "themis:f=0,bids=count"),
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
    for seed in seeds:
        seconds: dict[tuple[str, float], Mapping[str, float]] = {}
        for liar, lie in _lie_runs(contest, seed):
            key = {"themis-lies": contest.name, "policy": contest.policy, "seed": seed, "liar": liar, "lie": lie}
            label = f"{contest.name}, seed {seed}, {f'{liar} lies by {lie:.0%}' if lie else 'all are honest'}"
            seconds[liar, lie] = context.run(key, label, app_seconds, contest, seed, liar, lie)
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
    counts = [Column(name, "d") for name in ("sooner", "same", "later")]
    ratios = [Column(name, ".3f") for name in ("liar", "±", "others")]
    return table(
        f"figure 18: completion times of apps relative to the honest run; {contest.name}",
        [Column("lie", ".0%"), *ratios, *counts],
        rows,
        "the liar is never sooner, and much later from 34 % on; the others are sooner",
        f"the liar is sooner beyond chance with lies of {', '.join(pays) or 'no size'}",
    )


def _scale(context: ReproContext) -> tuple[range, int]:
    return (range(2), TRIALS // 5) if context.quick else (range(SEEDS), TRIALS)


def _figure(
    cases: Callable[[Sequence[int]], Iterable[ThemisCase]],
    tabulate: Callable[[Results, Sequence[int]], Table | tuple[Table, ...]],
    context: ReproContext,
) -> Sequence[Table]:
    seeds, trials = _scale(context)
    made = tabulate(measure_all(context, cases(seeds), trials), seeds)
    return made if isinstance(made, tuple) else (made,)


def _lie_tables(context: ReproContext) -> list[Table]:
    seeds, _ = _scale(context)
    return [by_lie(contest, lie_effects(context, contest, seeds)) for contest in contests()]


_PAPER = "Themis (NSDI '20)"
REPRODUCTIONS = (
    Reproduction(
        "themis-10",
        _PAPER,
        "worst ρ and GPU time of Themis and all baselines",
        partial(_figure, partial(baseline_cases, mixes=(0.5,)), against_baselines),
    ),
    Reproduction("themis-15", _PAPER, "by share of network-intensive apps", partial(_figure, baseline_cases, by_mix)),
    Reproduction("themis-17", _PAPER, "mistaken estimates", partial(_figure, error_cases, by_error)),
    Reproduction("themis-18", _PAPER, "an app that lies", _lie_tables),
    Reproduction("themis-19", _PAPER, "filter and lease", partial(_figure, filter_lease_cases, by_filter_and_lease)),
)
