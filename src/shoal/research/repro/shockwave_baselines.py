"""Shockwave's baselines on its 120-job trace beside the results its authors ship, choice by choice of their simulator.

Each of their choices that was found to matter is made here on top of the one before it, all else being ours: GPUs are
given only when a round begins; shares are computed 1,000 s after the last time at the earliest, and who comes in
between gets nothing until then, even if GPUs are free; throughput is counted in steps; and of all shares with which the
last job is done soonest those in the middle are taken. What one may rely on: the policies here are those choices and
nothing else. They know one kind of GPU.

References: Shockwave (NSDI '23) §8.2; Gavel (OSDI '20) §4.2, §5.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.workload.schema import Workload

TRACE = "120"
SHARE_SECONDS = 1000.0
"""Seconds for which shares stay in force at least."""

_WITHIN = 1.05


@dataclass(frozen=True, slots=True)
class RoundStartPolicy:
    """A policy that is asked only when a round begins: until the next one nobody starts, whatever comes free."""

    policy: Policy
    round: float = ROUND

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's verdicts when a round begins; in between, everybody stays as it is."""
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
    """Gavel's makespan program as the public code solves it: a search by halves, and an interior point.

    The search stops within 5 % of the least makespan, and asks for nothing but shares that keep it; the answer is the
    analytic centre of all that do, so whoever needs little has time to spare.
    """

    round: float = ROUND
    aware: ClassVar[bool] = True
    fills: ClassVar[bool] = True

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, by rounds."""
        return by_rounds(self, snapshot)

    def shares(self, problem: ShareProblem) -> Shares:
        """The middle of all shares with which everybody is done by the makespan found."""
        alone, capacity = problem.steps / problem.speeds[:, 0], float(problem.capacity[0])
        makespan = bisected_makespan(max(float(alone.max()), float(problem.gangs @ alone) / capacity))
        return Shares(analytic_centre(alone / makespan, problem.gangs, capacity)[:, None])


def bisected_makespan(least: float) -> float:
    """The makespan at which a search by halves between 100 s and a million stops when this is the least there is."""
    low, high = 100.0, 1e6
    while _WITHIN * low < high:
        half = (low + high) / 2
        low, high = (half, high) if half < least else (low, half)
    return high


def analytic_centre(least: Floats, gangs: Floats, capacity: float) -> Floats:
    """The analytic centre of the shares x with x ≥ 0, x ≥ ``least``, x ≤ 1 and ``gangs`` · x ≤ ``capacity``.

    There must be room above ``least``. By damped Newton steps, which never leave the inside of these bounds.
    """
    slack = float((capacity - gangs @ least) / (gangs @ (1.0 - least)))
    x: Floats = least + (1.0 - least) * 0.5 * min(1.0, slack)
    while True:
        spare, wait, left = x - least, 1.0 - x, capacity - gangs @ x
        slope = gangs / left + 1.0 / wait - 1.0 / spare - 1.0 / x
        bend, along = 1.0 / wait**2 + 1.0 / spare**2 + 1.0 / x**2, gangs / left
        # The matrix of second derivatives is diagonal but for the one bound that all share (Sherman and Morrison).
        step = (slope - along * (along @ (slope / bend)) / (1.0 + along @ (along / bend))) / bend
        length = float(np.sqrt(slope @ step))
        x = x - step / (1.0 + length)
        if length < 1e-6:
            return x


def first_share_times(submitted: Sequence[float]) -> list[float]:
    """When jobs submitted at these times, in order, first have a share.

    While jobs come there is always a reason to compute shares anew, so that is done as soon as it may be. A last time
    of 0 s counts as never in the public code: the second round has new shares again.
    """
    at, times = 0.0, []
    for time in submitted:
        while at < time:
            at += ROUND * ceil(SHARE_SECONDS / ROUND) if at else ROUND
        times.append(at)
    return times


@dataclass(frozen=True, slots=True)
class SimulatorChoice:
    """What is done as there, in words; by which policy, or one ``own``; whether GPUs and newcomers wait as there."""

    label: str
    policy: str
    replacement: Policy | None = None
    round_starts: bool = True
    delayed: bool = True

    def measure(self, data: Path, theirs: Mapping[str, Any]) -> list[float]:
        """Makespan and mean JCT, each with its distance from the shipped one; the mean distance of a job's JCT."""
        _, speeds, gpus = TRACES[TRACE]
        workload = public_trace(data, TRACE)
        submitted = np.array([job.submitted for job in workload.jobs])
        if self.delayed:
            jobs = zip(workload.jobs, first_share_times(submitted.tolist()), strict=True)
            delayed = tuple(msgspec.structs.replace(job, submitted=at) for job, at in jobs)
            workload = Workload(workload.name, delayed, workload.format, workload.source)
        policy: Policy = replace(self.replacement or parse_policy(self.policy), round=ROUND)  # type: ignore[type-var]
        case = TraceCase(self.policy, workload, speeds, gpus)
        outcome = simulate(data, case, RoundStartPolicy(policy) if self.round_starts else policy)
        jct = outcome.jobs.completed - submitted
        makespan, mean = float(outcome.summary["makespan"]), float(jct.mean())
        apart = float(np.abs(jct / np.array(theirs["jct_list"]) - 1.0).mean())
        return [makespan, makespan / theirs["makespan"] - 1.0, mean, mean / theirs["avg_jct"] - 1.0, apart]


def _cumulative(policy: str) -> tuple[SimulatorChoice, ...]:
    return (
        SimulatorChoice(f"`{policy}`", policy, round_starts=False, delayed=False),
        SimulatorChoice("and GPUs given only as rounds begin", policy, delayed=False),
        SimulatorChoice("and newcomers heard of every 1,080 s", policy),
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
            SimulatorChoice("and the middle of the shares within 5 %", "gavel.makespan", CentralMakespan()),
        ),
    ),
}
"""By the paper's name: the shipped result's, and the choices."""


def shipped_result(data: Path, name: str) -> Mapping[str, Any]:
    """What the authors ship of their simulation of the trace with one of their policies."""
    file = data / "shockwave" / "shipped_results" / f"tacc_32gpus__{name}_simulation.json"
    try:
        found: Mapping[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError("data", str(file), "must be one of Shockwave's results as JSON") from error
    return found


def _tables(context: ReproContext) -> list[Table]:
    rows: list[list[Cell]] = []
    for baseline, (name, choices) in BASELINES.items():
        theirs = shipped_result(context.data, name)
        rows.append([f"{baseline}, shipped", theirs["makespan"], None, theirs["avg_jct"], None, None])
        for number, choice in enumerate(choices):
            key = {"paper": "shockwave", "what": "shipped", "baseline": baseline, "choice": number}
            label = f"{baseline}: {choice.label}"
            rows.append([choice.label, *context.run(key, label, choice.measure, context.data, theirs)])
    columns = [
        Column("makespan, s", ",.0f"),
        Column("makespan to shipped", "+.1%"),
        Column("mean JCT, s", ",.0f"),
        Column("JCT to shipped", "+.1%"),
        Column("a job's JCT, mean distance", ".1%"),
    ]
    here = "each line with what the lines above it say; OSSP of the public code is Gavel's makespan program"
    return [table("120 jobs on 32 GPUs as published", ["", *columns], rows, "its shipped simulation results", here)]


REPRODUCTIONS = (
    Reproduction(
        "shockwave-baselines", "Shockwave (NSDI '23)", "baselines beside the shipped results", _tables, "shockwave"
    ),
)
