"""Shockwave's window for a written-down problem: which jobs run in which of the next rounds, with the gap.

The regimes ahead of a job are those it says; nothing is predicted. A window that stands alone is laid out for the most
welfare, whatever the policy's default: that keeps short jobs early because it is re-planned every round.
"""

from dataclasses import replace
from time import process_time
from typing import Any

import msgspec
import numpy as np

from shoal.core.errors import InputError
from shoal.perf.regime_forecast import Regime, RegimeForecast
from shoal.policy.shockwave.carry import Outlooks
from shoal.policy.shockwave.claimants import Claimants, fairness
from shoal.policy.shockwave.outlook import gained_by
from shoal.policy.shockwave.policy import Shockwave
from shoal.research.problem.posed import Posed, pose
from shoal.research.problem.written import WrittenJob, WrittenProblem, WrittenRegime, check


def windowed(problem: WrittenProblem, policy: Shockwave, *, layout_asked: bool) -> dict[str, Any]:
    """Rounds by job, counted from 0; welfare less the price of the makespan level, its bound at that level, the gap."""
    check(problem)
    if problem.window is not None:
        policy = replace(policy, rounds=problem.window.rounds, round=problem.window.seconds)
    if not layout_asked:
        policy = replace(policy, layout="exact")
    jobs = [_begun(job) for job in problem.jobs]
    posed, refused = pose(msgspec.structs.replace(problem, jobs=jobs))
    if not posed.jobs:
        raise InputError("jobs", [job.id for job in problem.jobs], "none of them can run on this cluster")
    claimants = _claimants(posed, policy)
    capacity = [problem.cluster[kind] for kind in problem.cluster]
    begin = process_time()
    draft = policy.draft(claimants, capacity)
    seconds = process_time() - begin
    ids, known = [job.id for job in posed.jobs], claimants.known
    kinds, counts = list(problem.cluster), draft.runs.sum(axis=1)
    reached = np.minimum(known.gained[np.arange(len(ids)), counts] / (known.whole - known.done), 1.0)
    return {
        "objective": draft.objective,
        "welfare": sum(window.welfare for window in draft.windows),
        "bound": sum(window.bound for window in draft.windows),
        "left": max(window.level for window in draft.windows) * policy.round,
        "window": {"rounds": draft.runs.shape[1], "seconds": policy.round},
        "rounds": {id: np.flatnonzero(row).tolist() for id, row in zip(ids, draft.runs, strict=True)},
        "kinds": {id: kinds[kind] for id, kind in zip(ids, draft.kinds.tolist(), strict=True)},
        "levels": dict(zip(ids, reached.tolist(), strict=True)),
        "rho": dict(zip(ids, claimants.rho.tolist(), strict=True)),
        "gap": max(window.gap for window in draft.windows),
        "seconds": seconds,
        "refused": refused,
        "notes": {},
    }


def _begun(job: WrittenJob) -> WrittenJob:
    """The same job with its first regime as its throughput, and its work as its one regime where it names none."""
    if job.regimes:
        first = job.regimes[0].throughput
        return msgspec.structs.replace(job, throughput=first, steps_left=sum(stage.steps for stage in job.regimes))
    if job.steps_left is None or not job.steps_left > 0:
        raise InputError(f"job {job.id}, steps_left", job.steps_left, "must be a number above 0, or give its regimes")
    return msgspec.structs.replace(job, regimes=[WrittenRegime(job.steps_left, job.throughput)])


def _claimants(posed: Posed, policy: Shockwave) -> Claimants:
    problem, jobs, count = posed.problem, posed.jobs, len(posed.jobs)
    ends = np.arange(policy.rounds + 1, dtype=np.float64) * policy.round
    ahead = [_ahead(posed, row) for row in range(count)]
    done, ran = np.array([job.steps_done for job in jobs]), np.array([job.service / job.gpus for job in jobs])
    nobody, rows = np.zeros(count, dtype=np.int32), np.arange(count)
    seconds, optimistic = (np.array([getattr(a, name) for a in ahead]) for name in ("seconds", "optimistic"))
    whole, gained = done + [a.work for a in ahead], np.array([gained_by(a, ends) for a in ahead])
    known = Outlooks(rows, done, nobody, nobody, seconds, optimistic, whole, gained)
    age = np.array([job.elapsed or max(problem.now - job.arrived, 0.0) for job in jobs])
    rho = fairness(age, ran, optimistic, count / max(sum(problem.cluster.values()), 1))
    waits = np.full(count, -1, dtype=np.int8)
    return Claimants(posed.gangs.astype(np.int32), posed.speeds, posed.weights, rho, waits, ran, known)


def _ahead(posed: Posed, row: int) -> RegimeForecast:
    """The regimes a job has before it, on the type that suits it best now."""
    job, kinds = posed.jobs[row], list(posed.problem.cluster)
    best = kinds[int(posed.speeds[row].argmax())]
    for number, stage in enumerate(job.regimes):
        if not stage.throughput.get(best, 0.0) > 0:
            field = f"job {job.id}, regimes[{number}].throughput"
            raise InputError(field, stage.throughput.get(best), f"must be above 0 on {best}, where it begins")
    regimes = tuple(Regime(0, stage.steps, stage.throughput[best]) for stage in job.regimes)
    return RegimeForecast(regimes, max(regime.rate for regime in regimes), 0.0)
