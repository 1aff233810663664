"""The ideal that figure 15b compares with: jobs of one GPU progress exactly as their shares say, without rounds.

Shares are computed anew whenever a job arrives or ends and hold until the next time; nothing is lost to restarts. No
cluster could carry these shares out, since a GPU would serve several jobs at once.
"""

from dataclasses import replace

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.policy.gavel.fairness import GavelMaxMin
from shoal.policy.gavel.problem import ShareProblem
from shoal.research.repro.gavel.problems import problem_for
from shoal.workload.schema import Workload

_DONE = 1e-9
"""A job with less than this part of its work left is done."""


def completion_seconds(workload: Workload, cluster: str) -> Floats:
    """Seconds from arrival to completion of each job under max-min shares that are followed exactly."""
    jobs = workload.jobs
    whole = problem_for(jobs, cluster)
    arrivals = np.array([job.submitted for job in jobs])
    work = np.array([job.work for job in jobs])
    left, ended = work.copy(), np.full(len(jobs), np.inf)
    live: list[int] = []
    now, arrived = 0.0, 0
    while arrived < len(jobs) or live:
        rates = _rates(whole, np.array(live, dtype=np.intp), len(jobs))
        upcoming = float(arrivals[arrived]) if arrived < len(jobs) else np.inf
        first_end = min((now + left[i] / rates[i] for i in live if rates[i] > 0), default=np.inf)
        until = min(upcoming, first_end)
        left -= rates * (until - now)
        now = until
        done = [i for i in live if left[i] <= _DONE * work[i]]
        ended[done] = now
        live = [i for i in live if i not in set(done)]
        while arrived < len(jobs) and arrivals[arrived] <= now:
            live.append(arrived)
            arrived += 1
    taken: Floats = ended - arrivals
    return taken


def _rates(whole: ShareProblem, live: Indices, jobs: int) -> Floats:
    """Progress per second by job, 0 for those that are not live."""
    rates = np.zeros(jobs)
    if len(live):
        problem = _only(whole, live)
        alone = problem.all_on_fastest()
        if alone is None:
            alone = GavelMaxMin().shares(problem).alone
        rates[live] = (problem.speeds * alone).sum(axis=1)
    return rates


def _only(whole: ShareProblem, rows: Indices) -> ShareProblem:
    return replace(
        whole,
        speeds=whole.speeds[rows],
        gangs=whole.gangs[rows],
        weight=whole.weight[rows],
        steps=whole.steps[rows],
        elapsed=whole.elapsed[rows],
        isolated=whole.isolated[rows],
        deadline=whole.deadline[rows],
        tenant=whole.tenant[rows],
    )
