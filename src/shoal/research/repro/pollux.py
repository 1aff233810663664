"""Pollux's simulations (OSDI '21 §5.3) and Sia's unequal GPUs (SOSP '23): the public figures and ours.

``measure_all`` runs an experiment; ``EXPERIMENTS`` lists what each table compares. Workloads and measured profiles are
not shipped: the data folder holds ``pollux`` and ``sia`` as published, each with ``traces`` and folders of workloads.
Jobs have tuned batch sizes, which policies without adaptation keep. Agents fit online, as in the paper; a restart costs
30 s, or each model's own time in Sia's experiments.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import e
from pathlib import Path

import msgspec
import numpy as np

from shoal.core.decision import Decision
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.policy.goodput_options import allotted
from shoal.policy.pollux.policy import Pollux
from shoal.policy.registry import parse_policy
from shoal.research.repro.context import ReproContext
from shoal.research.repro.parallel import Task, run_all
from shoal.research.repro.pollux_verdicts import JUDGES, PUBLIC_SIA, ExperimentVerdict, kinds_verdict
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.solve.genetic_search import evolve
from shoal.workload.files import read_workload
from shoal.workload.generators.afs import misjudged
from shoal.workload.schema import Workload

EQUAL, UNEQUAL = "t4:16x4", "t4:6x4,rtx2080ti:3x8,a100:2x8"
TRACES = "pollux/traces"
REFERENCE = "pollux/reference-metrics.json"


@dataclass(frozen=True, slots=True)
class PolluxVariant:
    """A policy, and its knowledge of jobs' work: all, none (``hidden``), or values e times too large or too small.

    The error applies to a job's total work (``misjudged``) or to its remaining work at any time (``left misjudged``).
    Reports of the model ``unknown`` are not remembered, as if each of its jobs were the first. ``slowdown`` is the
    slowdown of gangs over several nodes while they share one. ``seated`` selects the genetic search, which keeps such
    gangs ``apart`` or lets them be ``crowded``.
    """

    policy: str
    work: str = ""
    unknown: str = ""
    slowdown: float = 0.0
    seated: str = ""

    def __str__(self) -> str:
        label = f"{self.policy} (work {self.work})" if self.work else self.policy
        label = f"{label}, {self.unknown} not remembered" if self.unknown else label
        label = f"{label}, genetic, {self.seated}" if self.seated else label
        return f"{label}, {self.slowdown:.0%} slower where shared" if self.slowdown else label


@dataclass(frozen=True, slots=True)
class WithoutModelReport:
    """A policy without access to the remembered reports of one model."""

    policy: Policy
    model: str

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return the policy's decision on the snapshot without these goodput reports."""
        remembered = {model: known for model, known in snapshot.model_reports.items() if model != self.model}
        return self.policy.decide(replace(snapshot, model_reports=remembered))


@dataclass(frozen=True, slots=True)
class MisestimatedWork:
    """A policy that sees the remaining work of each job multiplied or divided by ``factor``, at random by job.

    A job's error is the same at all times.
    """

    policy: Policy
    factor: float
    seed: int

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return the policy's decision on the changed work."""
        columns = snapshot.columns
        coins = np.random.default_rng(self.seed).random(int(columns.rows.max(initial=-1)) + 1)
        off = np.where(coins[columns.rows] < 0.5, self.factor, 1.0 / self.factor)
        return self.policy.decide(replace(snapshot, columns=columns.with_work(columns.done + off * columns.remaining)))


@dataclass(frozen=True, slots=True)
class GeneticPollux:
    """Pollux with the paper's genetic search over the same options, with or without interference avoidance."""

    policy: Pollux
    apart: bool

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return the decision of that search."""
        decision = self.policy.decide(snapshot)
        if self.policy.settled_until(snapshot) is not None:
            return decision
        found, menu, _ = self.policy.allotment(snapshot)
        seated = evolve(menu, found.spread, snapshot.seed + snapshot.cycle, apart=self.apart)
        verdicts = allotted(snapshot, found, menu, seated, np.ones(len(found.fair)))
        return Decision(verdicts, decision.review_at, decision.carry)


@dataclass(frozen=True, slots=True)
class PolluxResult:
    """Result of a run: completion times in seconds, restarts, and ρ relative to an equal share of an isolated cluster.

    ``unfair`` is the 99th percentile of ρ; ``late`` of ``rated`` jobs have ρ ≥ ``LATE``.
    """

    mean: float
    tail: float
    makespan: float
    restarts: int
    unfair: float
    late: int
    rated: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """Policies on the workloads of one or several folders; each folder gives a table."""

    name: str
    what: str
    folders: tuple[str, ...]
    numbers: tuple[int, ...]
    variants: tuple[PolluxVariant, ...]
    paper: str
    cluster: str = EQUAL
    format: str = "pollux"
    reference: str = ""
    """Name of the policy whose public results are in ``REFERENCE``, if any."""
    jobs: int | None = None
    """Number of jobs of each workload, None for all."""
    quick_jobs: int | None = None
    """Number of jobs of a workload in a quick run, if all would take long."""


_ALL_WORKLOADS = tuple(range(1, 9))
_BASELINES = (PolluxVariant("tiresias:thresholds=57600"), PolluxVariant("optimus"))
"""Tiresias's queue threshold is tuned as in the paper (§5.1) and the public simulator: 16 GPU-hours."""

_OURS = (PolluxVariant("pollux"), PolluxVariant("rank"))
_KINDS = (
    PolluxVariant("pollux:types=off"),
    PolluxVariant("pollux"),
    PolluxVariant("rank"),
    PolluxVariant("gavel.max-min"),
)

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "pollux-jct",
        "the eight workloads of §5.3, 160 tuned jobs on 64 GPUs",
        ("pollux/workloads",),
        _ALL_WORKLOADS,
        (
            *_OURS,
            PolluxVariant("pollux:share=measured"),
            PolluxVariant("pollux:when=interval"),
            PolluxVariant("rank:memory=false"),
            PolluxVariant("rank", "hidden"),
            PolluxVariant("rank", "misjudged"),
            PolluxVariant("rank", "left misjudged"),
            *_BASELINES,
        ),
        "average completion time of Pollux 32 % below Tiresias's and 48 % below Optimus's; 99 % of ρ below 2",
        reference="pollux",
    ),
    Experiment(
        "pollux-8a",
        "figure 8a: average completion time by load, half to double",
        ("pollux/workloads-0.5", "pollux/workloads", "pollux/workloads-1.5", "pollux/workloads-2.0"),
        _ALL_WORKLOADS,
        (*_OURS, *_BASELINES),
        "similar relative improvements over Tiresias and Optimus across all loads",
    ),
    Experiment(
        "pollux-8b",
        "figure 8b: average completion time by scheduling interval, 30 s to 8 min",
        ("pollux/workloads",),
        _ALL_WORKLOADS,
        tuple(PolluxVariant(f"pollux:interval={seconds},when=interval") for seconds in (30, 60, 120, 240, 480)),
        "similar up to 2 minutes, longer beyond",
    ),
    Experiment(
        "pollux-8c",
        "figure 8c: average completion time by slowdown of jobs that share a node, with the paper's search",
        ("pollux/workloads",),
        (1,),
        tuple(
            PolluxVariant("pollux:when=interval", slowdown=slowdown, seated=seated)
            for seated in ("", "apart", "crowded")
            for slowdown in (0.0, 0.5)
        ),
        "avoiding, the same at every slowdown; not avoiding, alike without one and 1.4 times longer at 50 %",
        jobs=60,
        quick_jobs=25,
    ),
    Experiment(
        "pollux-table2",
        "table 2: jobs as tuned by experts, and with the GPUs users asked for and a batch of M₀ for each",
        ("pollux/workloads", "pollux/workloads-realistic"),
        _ALL_WORKLOADS,
        (PolluxVariant("pollux"), *_BASELINES),
        "on a testbed, average: 0.76 h; Optimus 1.5 h and Tiresias 1.2 h, realistic 2.7 h and 2.8 h",
    ),
    Experiment(
        "pollux-p",
        "table 2 and figure 7: the fairness knob",
        ("pollux/workloads",),
        _ALL_WORKLOADS,
        tuple(PolluxVariant(f"pollux:p={p}") for p in (1, -1, -10)),
        "p = −1 is best in average and fairness, p = 1 has a long tail of ρ above 4, p = −10 is slightly worse",
    ),
    Experiment(
        "pollux-memory",
        "ours, not the paper's: the benefit of remembering models' reports, and without those of one model",
        ("pollux/workloads",),
        _ALL_WORKLOADS,
        (
            PolluxVariant("rank"),
            PolluxVariant("rank", unknown="cifar10"),
            PolluxVariant("rank", unknown="imagenet"),
            PolluxVariant("rank:memory=false"),
            PolluxVariant("pollux:memory=true"),
            PolluxVariant("pollux"),
        ),
        "seeding models with historical data shortens jobs like CIFAR10 by 2 to 5 %, longer ones not noticeably",
    ),
    Experiment(
        "pollux-kinds",
        "Sia's 24 T4, 24 2080 Ti and 16 A100 GPUs, by rate of arrival",
        ("sia/workloads-rate_10", "sia/workloads-saturn"),
        _ALL_WORKLOADS,
        _KINDS,
        "on workload 6 at 10 jobs an hour public Sia has 1,460 s, Gavel 2,123 s and Pollux 2,972 s",
        UNEQUAL,
        "sia",
    ),
    Experiment(
        "pollux-unseen",
        "Sia's workloads, on which none of our policies was tuned, on the 64 GPUs of §5.3",
        ("sia/workloads-saturn", "sia/workloads-newtrace"),
        (1, 2, 3, 4),
        (*_OURS, PolluxVariant("rank:memory=false")),
        "not in the paper",
    ),
)
LATE = 2.0
"""ρ from which a job counts as late: 99 % of Pollux's jobs are below (§5.3.1)."""

QUICK = (6,)
"""Workloads of a quick run."""


def workload(folder: Path, number: int, format: str, work: str, jobs: int | None = None) -> Workload:
    """Return a published workload, at most its first ``jobs`` jobs, with changed declarations of work."""
    whole = read_workload(folder / f"workload-{number}.csv", format)
    whole = whole if jobs is None else whole.first(jobs)
    if work == "misjudged":
        return misjudged(whole, e, number)
    if work == "hidden":
        return replace(whole, jobs=tuple(msgspec.structs.replace(j, declares_work=False) for j in whole.jobs))
    return whole


def measure(
    data: Path, experiment: Experiment, folder: str, number: int, variant: PolluxVariant, jobs: int | None = None
) -> PolluxResult:
    """Run one policy on one workload."""
    sia = experiment.format == "sia"
    profiles = (str(data / "sia/traces"), str(data / TRACES)) if sia else (str(data / TRACES),)
    scenario = Scenario(
        parse_cluster(experiment.cluster),
        variant.policy,
        restart_cost="job" if sia else "30",
        profiles=profiles,
        faults=f"interference_speed={1.0 - variant.slowdown}" if variant.slowdown else None,
    )
    rows = workload(data / folder, number, experiment.format, variant.work, jobs)
    outcome = run(scenario, rows, policy=_replacement_policy(scenario, variant, number))
    summary, rho = outcome.summary, outcome.jobs.rho["isolated"]
    rated = rho[np.isfinite(rho)]
    unfair = float(np.percentile(rated, 99)) if len(rated) else float("nan")
    times = summary["avg_jct"], summary["p99_jct"], summary["makespan"]
    return PolluxResult(*times, summary["restarts"], unfair, int((rated >= LATE).sum()), len(rated))


def _replacement_policy(scenario: Scenario, variant: PolluxVariant, number: int) -> Policy | None:
    """The policy that replaces the named one, if the variant changes it."""
    policy = scenario.make_policy()
    if variant.seated and isinstance(policy, Pollux):
        return GeneticPollux(policy, apart=variant.seated == "apart")
    if variant.work == "left misjudged":
        return MisestimatedWork(policy, e, number)
    return WithoutModelReport(policy, variant.unknown) if variant.unknown else None


def measure_all(
    context: ReproContext, experiment: Experiment, numbers: Sequence[int], jobs: int | None = None
) -> Mapping[tuple[str, int, PolluxVariant], PolluxResult]:
    """Return the results of every variant on every workload, computed or stored."""
    cells = [(f, n, v) for f in experiment.folders for n in numbers for v in experiment.variants]
    tasks = [
        Task(
            cache_key(experiment, folder, number, variant, jobs),
            f"{folder} {number}, {variant}",
            measure,
            (context.data, experiment, folder, number, variant, jobs),
        )
        for folder, number, variant in cells
    ]
    results = zip(cells, run_all(context, tasks), strict=True)
    return {cell: PolluxResult(**found) for cell, found in results}


def cache_key(
    experiment: Experiment, folder: str, number: int, variant: PolluxVariant, jobs: int | None = None
) -> Mapping[str, object]:
    """Return the key of a stored run: everything that its result depends on."""
    return {
        "pollux": folder,
        "workload": number,
        "policy": repr(parse_policy(variant.policy)),
        "work": variant.work,
        "unknown": variant.unknown,
        "cluster": experiment.cluster,
        "limit": jobs,
        "late": LATE,
        **({"slowdown": variant.slowdown} if variant.slowdown else {}),
        **({"seated": variant.seated} if variant.seated else {}),
    }


def experiment_tables(
    context: ReproContext, experiment: Experiment, numbers: Sequence[int], jobs: int | None = None
) -> list[Table]:
    """Return a table for each folder of workloads: a row for each policy with its figures on each workload."""
    results = measure_all(context, experiment, numbers, jobs)
    judged = _judged(experiment, results, numbers)
    made = []
    for folder in experiment.folders:
        rows: list[list[Cell]] = []
        for variant in experiment.variants:
            runs = [results[folder, number, variant] for number in numbers]
            means = [one.mean for one in runs]
            rest = [float(np.mean([getattr(one, name) for one in runs])) for name in ("tail", "makespan", "unfair")]
            late = sum(one.late for one in runs) / max(sum(one.rated for one in runs), 1)
            rows.append([str(variant), *means, float(np.mean(means)), *rest, late])
        if experiment.reference:
            rows.append(_public_row(context.data / REFERENCE, experiment.reference, numbers))
        columns = [Column("policy"), *(Column(str(number), ",.0f") for number in numbers), Column("mean", ",.0f")]
        columns += [Column("p99", ",.0f"), Column("makespan", ",.0f"), Column("ρ p99"), Column("ρ ≥ 2", ".1%")]
        last = folder == experiment.folders[-1]
        verdict, charts = (judged.verdict, judged.charts) if last else ("", ())
        title = f"{experiment.what}: {folder}"
        made.append(table(title, columns, rows, experiment.paper, verdict=verdict, charts=charts))
    return made


def _judged(
    experiment: Experiment, results: Mapping[tuple[str, int, PolluxVariant], PolluxResult], numbers: Sequence[int]
) -> ExperimentVerdict:
    """The verdict on all folders of an experiment; empty where the paper states nothing or a policy is left out."""
    means = {
        (folder, str(variant)): [results[folder, number, variant].mean for number in numbers]
        for folder in experiment.folders
        for variant in experiment.variants
    }
    if experiment.name == "pollux-kinds" and len(experiment.variants) == len(_KINDS) and 6 in numbers:
        at = numbers.index(6)
        found = {name: means[experiment.folders[0], name][at] for name in PUBLIC_SIA}
        return ExperimentVerdict(kinds_verdict(found))
    whole = any(experiment.variants == one.variants for one in EXPERIMENTS if one.name == experiment.name)
    return (
        JUDGES[experiment.name](means, experiment.folders)
        if whole and experiment.name in JUDGES
        else ExperimentVerdict("")
    )


def _public_row(file: Path, policy: str, numbers: Sequence[int]) -> list[Cell]:
    """Row of the authors' own simulator, with None where its results are not known."""
    known = json.loads(file.read_text())["metrics"] if file.exists() else {}
    rows = [known.get(f"{policy}/1.0x/workload-{number}") for number in numbers]
    means: list[Cell] = [row["avg_jct"] if row else None for row in rows]
    whole = [row for row in rows if row] if all(rows) else []
    names = ("avg_jct", "p99_jct", "makespan", "rho_p99", "rho_frac_gt2")
    return [f"{policy}, public", *means, *(float(np.mean([r[n] for r in whole])) if whole else None for n in names)]


def _run(experiment: Experiment, context: ReproContext) -> list[Table]:
    if context.quick:
        return experiment_tables(context, experiment, QUICK, experiment.quick_jobs)
    return experiment_tables(context, experiment, experiment.numbers, experiment.jobs)


REPRODUCTIONS = tuple(
    Reproduction(one.name, "Pollux (OSDI '21)", one.what, partial(_run, one), one.format) for one in EXPERIMENTS
)
