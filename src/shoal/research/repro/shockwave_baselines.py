"""Shockwave's baselines on its 120-job trace compared with its authors' results, for each choice of their simulator.

Each of their choices found to matter is added to the previous ones, everything else being ours: GPUs are granted only
when a round begins; shares are recomputed at most every 1,000 s, and jobs that arrive in between get nothing until
then, even if GPUs are free; throughput is counted in steps; and of all shares with the least makespan the analytic
centre is taken. AlloX is run as shares of time, in order of age. The policies here implement exactly these choices, for
one kind of GPU.

References: Shockwave (NSDI '23) §8.2; Gavel (OSDI '20) §4.2, §5.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, inf
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from shoal.core.arrays import Floats
from shoal.core.decision import Decision
from shoal.core.errors import InputError
from shoal.core.interfaces import Policy
from shoal.core.reasons import LEASED
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained, round_end
from shoal.policy.gavel.policy import by_rounds
from shoal.policy.gavel.problem import ShareProblem, Shares
from shoal.policy.registry import parse_policy
from shoal.policy.shared_reasons import ALLOTTED_LATER
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.shockwave import ROUND, TRACES, TraceCase, public_trace, simulate
from shoal.research.repro.table import REPRODUCES, Cell, Chart, Column, Line, Table, differs, table
from shoal.workload.schema import Workload

TRACE = "120"
SHARE_SECONDS = 1000.0
"""Least seconds for which shares stay in force."""

_WITHIN = 1.05
_NEAR = 0.03
"""Relative difference from a shipped makespan or mean JCT up to which a baseline is explained."""


@dataclass(frozen=True, slots=True)
class RoundStartPolicy:
    """A policy that is called only when a round begins; in between no job starts, even if GPUs become free."""

    policy: Policy
    round: float = ROUND

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return the policy's verdicts when a round begins; in between, all jobs keep what they have."""
        now, columns = snapshot.now, snapshot.columns
        end = round_end(now, self.round)
        review = end if len(columns) else inf
        if now % self.round == 0.0:
            return replace(self.policy.decide(snapshot), review_at=review)
        holds = columns.held > 0
        codes = np.where(holds, LEASED.code, ALLOTTED_LATER.code)
        numbers = {LEASED: (end,), ALLOTTED_LATER: (end,)}
        verdicts = explained(snapshot, np.where(holds, columns.gpus, 0).astype(np.int32), codes, numbers)
        return Decision(verdicts, review, snapshot.carry)


@dataclass(frozen=True, slots=True)
class CentralMakespan:
    """Gavel's makespan program as the public code solves it: bisection, and an interior-point method.

    The bisection stops within 5 % of the least makespan, and any shares that achieve it are accepted. The solution is
    the analytic centre of these shares, so a job that needs little gets more than it needs.
    """

    round: float = ROUND
    aware: ClassVar[bool] = True
    fills: ClassVar[bool] = True

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return a verdict for every live job, by rounds."""
        return by_rounds(self, snapshot)

    def shares(self, problem: ShareProblem) -> Shares:
        """Return the analytic centre of all shares with which every job completes by the makespan found."""
        alone, capacity = problem.steps / problem.speeds[:, 0], float(problem.capacity[0])
        makespan = bisected_makespan(max(float(alone.max()), float(problem.gangs @ alone) / capacity))
        return Shares(analytic_centre(alone / makespan, problem.gangs, capacity)[:, None])


@dataclass(frozen=True, slots=True)
class SharedAllox:
    """AlloX as the public code runs it: its matching decides which jobs have a share of time, not which hold a GPU.

    Of the jobs without all of their time only the oldest take part: ``part`` of them, or as many as there are GPUs left
    if those are more, so that mostly the matching has nothing to choose and jobs come in order of age. A share once
    given stays. With ``by_job`` a gang of g takes one GPU's place, has 1/g of the time and never counts as served: more
    shares are given than the cluster has time for, all are cut in proportion, and jobs take turns.
    """

    by_job: bool = True
    part: float = 0.2
    round: float = ROUND
    aware: ClassVar[bool] = True
    fills: ClassVar[bool] = True

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return a verdict for every live job, by rounds."""
        return by_rounds(self, snapshot)

    def shares(self, problem: ShareProblem) -> Shares:
        """Return the shares of all jobs that had one, and of the shortest of the oldest others that find a place."""
        gangs, capacity = problem.gangs, float(problem.capacity[0])
        has = np.zeros(len(gangs), dtype=bool) if problem.before is None else problem.before[:, 0] > 0.0
        places = np.ones(len(gangs)) if self.by_job else gangs
        served = has & (gangs == 1.0) if self.by_job else has
        left = int(capacity - places[served].sum())
        oldest = np.flatnonzero(~served)
        oldest = oldest[: max(int(self.part * len(oldest)), left)]
        order = oldest[np.argsort(problem.steps[oldest] / problem.speeds[oldest, 0], kind="stable")]
        has[order[np.cumsum(places[order]) <= left]] = True
        shares = np.where(has, places / gangs, 0.0)
        return Shares((shares * min(1.0, capacity / max(float(gangs @ shares), 1.0)))[:, None])


def bisected_makespan(least: float) -> float:
    """Return the makespan at which a bisection between 100 s and 1,000,000 s stops if ``least`` is the least one."""
    low, high = 100.0, 1e6
    while _WITHIN * low < high:
        half = (low + high) / 2
        low, high = (half, high) if half < least else (low, half)
    return high


def analytic_centre(least: Floats, gangs: Floats, capacity: float) -> Floats:
    """Return the analytic centre of the shares x with x ≥ 0, x ≥ ``least``, x ≤ 1 and ``gangs`` · x ≤ ``capacity``.

    ``least`` must leave some capacity free. Uses damped Newton steps, which stay inside these bounds.
    """
    slack = float((capacity - gangs @ least) / (gangs @ (1.0 - least)))
    x: Floats = least + (1.0 - least) * 0.5 * min(1.0, slack)
    while True:
        spare, wait, left = x - least, 1.0 - x, capacity - gangs @ x
        slope = gangs / left + 1.0 / wait - 1.0 / spare - 1.0 / x
        bend, along = 1.0 / wait**2 + 1.0 / spare**2 + 1.0 / x**2, gangs / left
        # The Hessian is diagonal plus a rank-one term from the shared capacity bound (Sherman and Morrison).
        step = (slope - along * (along @ (slope / bend)) / (1.0 + along @ (along / bend))) / bend
        length = float(np.sqrt(slope @ step))
        x = x - step / (1.0 + length)
        if length < 1e-6:
            return x


def first_share_times(submitted: Sequence[float]) -> list[float]:
    """Return when jobs submitted at these times, in order, first have a share, in seconds.

    While jobs arrive there is always a reason to recompute shares, so that happens as soon as it is allowed. The public
    code treats a last computation at 0 s as none, so the second round has new shares again.
    """
    at, times = 0.0, []
    for time in submitted:
        while at < time:
            at += ROUND * ceil(SHARE_SECONDS / ROUND) if at else ROUND
        times.append(at)
    return times


@dataclass(frozen=True, slots=True)
class SimulatorChoice:
    """One step towards the authors' simulator: its label and the policy, or the ``replacement`` for it.

    ``round_starts``: GPUs are granted only when a round begins. ``delayed``: new jobs wait until shares are recomputed.
    """

    label: str
    policy: str
    replacement: Policy | None = None
    round_starts: bool = True
    delayed: bool = True

    def measure(self, data: Path, theirs: Mapping[str, Any]) -> list[float]:
        """Return makespan and mean JCT in seconds, each followed by its relative difference from the shipped one.

        The last figure is the mean relative difference of single jobs' JCT.
        """
        _, speeds, gpus = TRACES[TRACE]
        workload = public_trace(data, TRACE)
        submitted = np.array([job.submitted for job in workload.jobs])
        if self.delayed:
            jobs = zip(workload.jobs, first_share_times(submitted.tolist()), strict=True)
            delayed = tuple(msgspec.structs.replace(job, submitted=at) for job, at in jobs)
            workload = Workload(workload.name, delayed, workload.format, workload.source)
        policy = self.replacement or parse_policy(self.policy)
        if "round" in {one.name for one in fields(policy)}:  # type: ignore[arg-type]
            policy = replace(policy, round=ROUND)  # type: ignore[type-var]
        case = TraceCase(self.policy, workload, speeds, gpus)
        outcome = simulate(data, case, RoundStartPolicy(policy) if self.round_starts else policy)
        jct = outcome.jobs.completed - submitted
        makespan, mean = float(outcome.summary["makespan"]), float(jct.mean())
        apart = float(np.abs(jct / np.array(theirs["jct_list"]) - 1.0).mean())
        return [makespan, makespan / theirs["makespan"] - 1.0, mean, mean / theirs["avg_jct"] - 1.0, apart]


def _cumulative(policy: str) -> tuple[SimulatorChoice, ...]:
    return (
        SimulatorChoice(f"`{policy}`", policy, round_starts=False, delayed=False),
        SimulatorChoice("and GPUs granted only when a round begins", policy, delayed=False),
        SimulatorChoice("and new jobs considered every 1,080 s", policy),
    )


BASELINES: Mapping[str, tuple[str, tuple[SimulatorChoice, ...]]] = {
    "Gavel": ("max_min_fairness", _cumulative("gavel.max-min")),
    "Gandiva-Fair": ("gandiva_fair", _cumulative("gandiva-fair:tickets_per=gpu")),
    "MST": (
        "max_sum_throughput_perf",
        (SimulatorChoice("`mst`", "mst", round_starts=False, delayed=False), *_cumulative("mst:normalised=false")),
    ),
    "OSSP": (
        "min_total_duration",
        (
            SimulatorChoice("`ossp`", "ossp", round_starts=False, delayed=False),
            *_cumulative("gavel.makespan"),
            SimulatorChoice("and the analytic centre of the shares within 5 %", "gavel.makespan", CentralMakespan()),
        ),
    ),
    "AlloX": (
        "allox",
        (
            *_cumulative("allox"),
            SimulatorChoice("and only the oldest matched, as many as GPUs left", "allox", SharedAllox(by_job=False)),
            SimulatorChoice("and a gang of g matched to one GPU, for 1/g of the time", "allox", SharedAllox()),
        ),
    ),
}
"""By the paper's name: the name of the shipped result, and the choices."""


def shipped_result(data: Path, name: str) -> Mapping[str, Any]:
    """Return the authors' results of simulating the trace with one of their policies."""
    return shipped_file(data, f"tacc_32gpus__{name}_simulation.json")


def shipped_file(data: Path, name: str) -> Mapping[str, Any]:
    """Return one of the result files that the authors ship."""
    file = data / "shockwave" / "shipped_results" / name
    try:
        found: Mapping[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError("data", str(file), "must be one of Shockwave's results as JSON") from error
    return found


def explained_by(found: Mapping[str, Sequence[float]]) -> str:
    """Return the verdict on each baseline's last figures: makespan and JCT within 3 % of the shipped ones."""
    far = [
        f"{name} {figures[1]:+.1%} in makespan, {figures[3]:+.1%} in JCT"
        for name, figures in found.items()
        if max(abs(figures[1]), abs(figures[3])) > _NEAR
    ]
    return differs("; ".join(far)) if far else REPRODUCES


def _tables(context: ReproContext) -> list[Table]:
    rows: list[list[Cell]] = []
    last: dict[str, list[float]] = {}
    shipped: list[tuple[float, float]] = []
    for baseline, (name, choices) in BASELINES.items():
        theirs = shipped_result(context.data, name)
        rows.append([f"{baseline}, shipped", theirs["makespan"], None, theirs["avg_jct"], None, None])
        for choice in choices:
            key = {"paper": "shockwave", "what": "shipped", "baseline": baseline, "choice": choice.label}
            label = f"{baseline}: {choice.label}"
            last[baseline] = context.run(key, label, choice.measure, context.data, theirs)
            rows.append([choice.label, *last[baseline]])
        shipped.append((len(shipped), theirs["avg_jct"]))
    columns = [
        Column("makespan, s", ",.0f"),
        Column("makespan to shipped", "+.1%"),
        Column("mean JCT, s", ",.0f"),
        Column("JCT to shipped", "+.1%"),
        Column("a job's JCT, mean distance", ".1%"),
    ]
    here = "each row adds to the rows above it; OSSP in the public code is Gavel's makespan program"
    ours = Line("ours with all their choices", tuple((at, last[name][2]) for at, name in enumerate(BASELINES)))
    bars = Chart(
        "mean JCT of the baselines", "", "s", (Line("shipped", tuple(shipped)),), (ours,), "bars", tuple(BASELINES)
    )
    title, paper = "the public 120-job trace on 32 GPUs", "its shipped simulation results"
    return [table(title, ["", *columns], rows, paper, here, verdict=explained_by(last), charts=[bars])]


REPRODUCTIONS = (
    Reproduction(
        "shockwave-baselines",
        "Shockwave (NSDI '23)",
        "baselines compared with the shipped results",
        _tables,
        "shockwave",
    ),
)
