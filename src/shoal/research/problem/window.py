"""Shockwave's window for a problem file: which jobs run in which of the next rounds, with the gap.

A job's regimes are taken as written; nothing is predicted. A single window is laid out for the most welfare: the
policy's default layout relies on a new plan every round.
"""

from dataclasses import replace
from time import process_time
from typing import Any

import msgspec
import numpy as np

from shoal.core.errors import InputError
from shoal.perf.regime_forecast import Regime, RegimeForecast
from shoal.policy.shockwave.carry import JobForecasts
from shoal.policy.shockwave.forecasts import work_by_round
from shoal.policy.shockwave.policy import Shockwave
from shoal.policy.shockwave.window_jobs import WindowJobs, predicted_rho
from shoal.research.problem.problem_file import Problem, ProblemJob, ProblemRegime
from shoal.research.problem.runnable import RunnableJobs, runnable


def window_plan(problem: Problem, policy: Shockwave, *, layout_given: bool) -> dict[str, Any]:
    """The answer of ``shoal solve`` for a window: rounds by job, objective and gap.

    Rounds are counted from 0. The objective is the welfare minus the price of the makespan level; the gap refers to an
    upper bound on it at that level.
    """
    if problem.window is not None:
        policy = replace(policy, rounds=problem.window.rounds, round=problem.window.seconds)
    if not layout_given:
        policy = replace(policy, layout="exact")
    rows = runnable(msgspec.structs.replace(problem, jobs=[_with_regimes(job) for job in problem.jobs]))
    if not rows.jobs:
        raise InputError("jobs", [job.id for job in problem.jobs], "none of them can run on this cluster")
    window_jobs = _window_jobs(rows, policy)
    begin = process_time()
    draft = policy.draft(window_jobs, list(problem.cluster.values()))
    seconds = process_time() - begin
    ids, known = [job.id for job in rows.jobs], window_jobs.known
    reached = known.gained[np.arange(len(ids)), draft.runs.sum(axis=1)] / (known.whole - known.done)
    rounds = {id: np.flatnonzero(row).tolist() for id, row in zip(ids, draft.runs, strict=True)}
    kinds = {id: rows.kinds[kind] for id, kind in zip(ids, draft.kinds.tolist(), strict=True)}
    return {
        "objective": draft.objective,
        "welfare": sum(window.welfare for window in draft.windows),
        "bound": sum(window.bound for window in draft.windows),
        "left": max(window.level for window in draft.windows) * policy.round,
        "window": {"rounds": draft.runs.shape[1], "seconds": policy.round},
        "rounds": rows.by_job(rounds),
        "kinds": rows.by_job(kinds),
        "levels": rows.column(np.minimum(reached, 1.0)),
        "rho": rows.column(window_jobs.rho),
        "gap": max(window.gap for window in draft.windows),
        "seconds": seconds,
        "refused": rows.by_job(rows.refused),
        "notes": {},
    }


def _with_regimes(job: ProblemJob) -> ProblemJob:
    """Return the job with its first regime as its throughput; without regimes all its work is one regime."""
    if job.regimes:
        first = job.regimes[0].throughput
        return msgspec.structs.replace(job, throughput=first, steps_left=sum(regime.steps for regime in job.regimes))
    if not job.steps_left:
        raise InputError(f"job {job.id}, steps_left", job.steps_left, "must be a number above 0, or give its regimes")
    return msgspec.structs.replace(job, regimes=[ProblemRegime(job.steps_left, job.throughput)])


def _window_jobs(rows: RunnableJobs, policy: Shockwave) -> WindowJobs:
    jobs, count = rows.jobs, len(rows.jobs)
    ends = np.arange(policy.rounds + 1, dtype=np.float64) * policy.round
    ahead = [_ahead(rows, row) for row in range(count)]
    done, ran = np.array([job.steps_done for job in jobs]), np.array([job.service / job.gpus for job in jobs])
    none, seconds = np.zeros(count, dtype=np.int32), np.array([forecast.seconds for forecast in ahead])
    optimistic = np.array([forecast.optimistic for forecast in ahead])
    whole, gained = done + [a.work for a in ahead], np.array([work_by_round(a, ends) for a in ahead])
    known = JobForecasts(np.arange(count), done, none, none, seconds, optimistic, whole, gained)
    rho = predicted_rho(rows.elapsed, ran, optimistic, count / max(float(rows.capacity.sum()), 1.0))
    waiting = np.full(count, -1, dtype=np.int8)
    return WindowJobs(rows.gangs.astype(np.int32), rows.speeds, rows.weights, rho, waiting, ran, known)


def _ahead(rows: RunnableJobs, row: int) -> RegimeForecast:
    """The regimes ahead of a job, on the type that suits it best now."""
    job, best = rows.jobs[row], rows.kinds[int(rows.speeds[row].argmax())]
    for number, regime in enumerate(job.regimes):
        if not regime.throughput.get(best, 0.0) > 0:
            field = f"job {job.id}, regimes[{number}].throughput"
            raise InputError(field, regime.throughput.get(best), f"must be above 0 on {best}, where it begins")
    regimes = tuple(Regime(0, regime.steps, regime.throughput[best]) for regime in job.regimes)
    return RegimeForecast(regimes, max(regime.rate for regime in regimes), 0.0)
