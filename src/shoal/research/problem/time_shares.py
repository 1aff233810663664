"""Gavel's time shares for a problem file: the problem is converted to the policy's own form, which its rule solves."""

from dataclasses import replace
from functools import partial
from time import process_time
from typing import Any

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.errors import InputError, nearest
from shoal.policy.gavel.cost import GavelCost, GavelCostSlo
from shoal.policy.gavel.fairness import GavelFinishTime, GavelMakespan
from shoal.policy.gavel.hierarchy import GavelHierarchical
from shoal.policy.gavel.problem import ShareProblem, Shares, visible_speeds
from shoal.policy.gavel.share_update import ShareRule
from shoal.policy.gavel.sums import GavelShortest
from shoal.research.problem.problem_file import Problem
from shoal.research.problem.runnable import RunnableJobs, runnable
from shoal.solve.consolidation import Localities
from shoal.solve.job_classes import JobClasses

_NEED_STEPS = (GavelMakespan, GavelFinishTime, GavelShortest)
_NEED_PRICES = (GavelCost, GavelCostSlo)


def time_shares(problem: Problem, rule: ShareRule) -> dict[str, Any]:
    """The rule's shares by job and type, its objective, gap and residual, and the throughput of each job."""
    rows = runnable(problem)
    sharing = bool(getattr(rule, "space_sharing", False))
    if sharing and any(job.unconsolidated for job in rows.jobs):
        raise InputError("unconsolidated", "given", "does not go with space_sharing=true; leave out one of the two")
    if isinstance(rule, GavelHierarchical):
        rule = _with_entities(rule, problem)
    asked = _share_problem(rows, rule)
    begin = process_time()
    shares = rule.shares(asked) if len(asked) else Shares(np.zeros(asked.speeds.shape), objective=0.0)
    seconds = process_time() - begin
    answer = {
        "objective": shares.objective,
        "allocation": _table(rows, shares.alone),
        "levels": rows.column(_throughput(rows, asked, shares)),
        "gap": shares.gap,
        "residual": shares.residual,
        "status": shares.status,
    }
    if shares.prices:
        answer["prices"] = [dict(zip(rows.kinds, prices.tolist(), strict=True)) for prices in shares.prices]
    if rule.aware and any(job.unconsolidated for job in rows.jobs):
        answer["consolidated"] = _consolidated(rows, asked, shares)
    if sharing:
        answer["pairs"] = [
            {"jobs": [rows.jobs[a].id, rows.jobs[b].id], "fraction": dict(zip(rows.kinds, time, strict=True))}
            for (a, b), time in zip(shares.pairs.tolist(), shares.together.tolist(), strict=True)
        ]
    notes = {rows.jobs[row].id: note.removeprefix("; ") for row, note in shares.notes.items()}
    return {**answer, "seconds": seconds, "refused": rows.by_job(rows.refused), "notes": rows.by_job(notes)}


def _share_problem(rows: RunnableJobs, rule: ShareRule) -> ShareProblem:
    problem, jobs, gangs, capacity = rows.problem, rows.jobs, rows.gangs, rows.capacity
    speeds = visible_speeds(rows.speeds, gangs, capacity, aware=rule.aware)
    due = [job.slo is not None and job.steps_left is not None for job in jobs]
    names = list(dict.fromkeys(job.entity or "" for job in jobs))
    in_cluster = problem.formula == "cluster"
    return ShareProblem(
        speeds=speeds,
        gangs=gangs,
        capacity=capacity,
        weight=rows.weights,
        steps=_steps(rows, needed=isinstance(rule, _NEED_STEPS)),
        elapsed=rows.elapsed,
        isolated=np.array([job.isolated_elapsed for job in jobs], dtype=np.float64),
        deadline=np.array([job.arrived + (job.slo or 0.0) if d else np.inf for job, d in zip(jobs, due, strict=True)]),
        prices=_prices(problem) if isinstance(rule, _NEED_PRICES) else np.ones(len(capacity)),
        tenant=np.array([names.index(job.entity or "") for job in jobs], dtype=np.intp),
        tenant_names=names,
        now=problem.now,
        find_localities=partial(_localities, rows),
        find_job_classes=partial(_job_classes, rows, speeds),
        round=rule.round if in_cluster else 0.0,
        aware=rule.aware,
        same_unit=not in_cluster,
    )


def _steps(rows: RunnableJobs, *, needed: bool) -> Floats:
    if needed:
        for job in rows.jobs:
            if not job.steps_left:
                way_out = "must be a number above 0 for this policy"
                raise InputError(f"job {job.id}, steps_left", job.steps_left, way_out)
    return np.array([job.steps_left or 0.0 for job in rows.jobs], dtype=np.float64)


def _prices(problem: Problem) -> Floats:
    prices = [problem.prices.get(kind) for kind in problem.cluster]
    for kind, price in zip(problem.cluster, prices, strict=True):
        if price is None or price <= 0:
            raise InputError(f"prices.{kind}", price, "must be a price above 0")
    return np.array(prices, dtype=np.float64)


def _with_entities(rule: GavelHierarchical, problem: Problem) -> GavelHierarchical:
    """The rule with the entities' weights and policies as those of its branches; the rule's own options come first."""
    for job in problem.jobs:
        if job.entity is not None and job.entity not in problem.entities:
            raise InputError(f"job {job.id}, entity", job.entity, nearest(job.entity, problem.entities))
    for name in problem.entities:
        if not name or set(name) & set("=|"):
            raise InputError("entities", name, "must be a name without = and |")
    weights = "|".join(f"{name}={entity.weight!r}" for name, entity in problem.entities.items())
    fifo = "|".join(name for name, entity in problem.entities.items() if entity.policy == "fifo")
    return replace(rule, weights=f"{weights}|{rule.weights}", fifo=f"{fifo}|{rule.fifo}")


def _localities(rows: RunnableJobs) -> Localities:
    gangs, nodes = rows.gangs, [rows.problem.node_sizes(kind) for kind in rows.kinds]
    apart = np.array([[job.unconsolidated.get(kind, np.inf) for kind in rows.kinds] for job in rows.jobs])
    apart[:, [len(sizes) < 2 for sizes in nodes]] = np.inf  # on the only node of a type no gang is spread
    largest = np.array([max(sizes, default=0) for sizes in nodes])
    consolidated = np.where(gangs[:, None] <= largest, rows.speeds, 0.0)
    return Localities(consolidated, np.minimum(apart, rows.speeds), gangs, rows.capacity, nodes)


def _pairs(rows: RunnableJobs) -> dict[tuple[int, int], Floats]:
    """Throughput of each of two jobs beside the other (2 × types), by their rows."""
    at, known = {job.id: row for row, job in enumerate(rows.jobs)}, {job.id for job in rows.problem.jobs}
    pairs: dict[tuple[int, int], Floats] = {}
    for pair in rows.problem.pairs:
        for name in pair.jobs:
            if name not in known:
                raise InputError("pairs, job", name, nearest(name, known))
        a, b = pair.jobs
        if a in at and b in at:
            both = [pair.throughput.get(kind, (0.0, 0.0)) for kind in rows.kinds]
            pairs[at[a], at[b]] = np.array(both, dtype=np.float64).T
    return pairs


def _job_classes(rows: RunnableJobs, speeds: Floats) -> JobClasses:
    """One class for each job, with the pairs of the file; ``speeds`` are those the rule may know."""
    pairs = _pairs(rows)
    named = np.array(list(pairs), dtype=np.intp).reshape(-1, 2)
    real = np.array(list(pairs.values())).reshape(-1, 2, len(rows.kinds))
    alone = rows.speeds[named]
    kept = np.divide(real, alone, out=np.zeros(real.shape), where=alone > 0)
    return JobClasses(np.arange(len(rows.jobs)), speeds, rows.gangs, rows.capacity, named, kept * speeds[named])


def _throughput(rows: RunnableJobs, asked: ShareProblem, shares: Shares) -> Floats:
    """Progress per second that the shares really give each job."""
    if shares.consolidated is not None:
        near, apart = asked.localities.consolidated, asked.localities.apart
        seated: Floats = (near * shares.consolidated + apart * (shares.alone - shares.consolidated)).sum(axis=1)
        return seated
    levels: Floats = (rows.speeds * shares.alone).sum(axis=1)
    pairs = _pairs(rows) if len(shares.pairs) else {}
    for (a, b), time in zip(shares.pairs.tolist(), shares.together, strict=True):
        first, second = pairs[a, b] if (a, b) in pairs else pairs[b, a][::-1]
        levels[a] += first @ time
        levels[b] += second @ time
    return levels


def _consolidated(rows: RunnableJobs, asked: ShareProblem, shares: Shares) -> dict[str, dict[str, float]]:
    """The time on one node by type, of the jobs that are slower across nodes."""
    near = asked.on_one_node(shares.alone) if shares.consolidated is None else shares.consolidated
    table = _table(rows, np.zeros(shares.alone.shape) if near is None else near)
    return {job.id: table[job.id] for job in rows.problem.jobs if job.unconsolidated and job.id in table}


def _table(rows: RunnableJobs, shares: Floats) -> dict[str, dict[str, float]]:
    by_row = zip(rows.jobs, shares.tolist(), strict=True)
    return rows.by_job({job.id: dict(zip(rows.kinds, row, strict=True)) for job, row in by_row})
