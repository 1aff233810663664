"""Whole numbers of GPUs for a problem file: one decision, as in the ring, on jobs that all wait."""

from time import process_time
from typing import Any

import numpy as np

from shoal.core.decision import Verdicts
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.perf.goodput import best
from shoal.policy.goodput_options import allotted
from shoal.policy.pollux.policy import Pollux
from shoal.research.problem.problem_file import Problem
from shoal.research.problem.snapshot import snapshot_of


def gpu_counts(problem: Problem, policy: Policy) -> dict[str, Any]:
    """GPUs by job, the throughput each then has, and its reason; nothing is optimised, so there is no gap."""
    at = snapshot_of(problem)
    begin = process_time()
    verdicts = Verdicts.of(at, policy.decide(at).verdicts)
    seconds = process_time() - begin
    kinds: dict[str, str | None] = dict.fromkeys(at.ids)
    levels = dict.fromkeys(at.ids, 0.0)
    for i in np.flatnonzero(verdicts.gpus).tolist():
        chosen = int(verdicts.kinds[i]) if verdicts.kinds is not None else -1
        kind = at.cluster.kinds[chosen if chosen >= 0 else int(at.columns.speeds[i].argmax())]
        kinds[at.ids[i]] = kind
        levels[at.ids[i]] = float(at.perf.curve(at.jobs.at(i), kind)[verdicts.gpus[i]])
    return {
        "objective": None,
        **_common(at, verdicts),
        "kinds": kinds,
        "levels": levels,
        "gap": None,
        "seconds": seconds,
    }


def _common(at: Snapshot, verdicts: Verdicts) -> dict[str, Any]:
    return {
        "shares": dict(zip(at.ids, verdicts.gpus.tolist(), strict=True)),
        "refused": {},
        "notes": {name: verdicts.reason(i).sentence() for i, name in enumerate(at.ids)},
    }


def pollux_allotment(problem: Problem, policy: Pollux) -> dict[str, Any]:
    """GPUs, seats, batch size and goodput by job; the power mean of speed-ups, and its gap."""
    at = snapshot_of(problem)
    begin = process_time()
    found, menu, allotment = policy.allotment(at)
    seconds = process_time() - begin
    verdicts = allotted(at, found, menu, allotment, np.ones(len(at.ids)))
    served = np.flatnonzero(allotment.picks >= 0).tolist()
    picked = {i: int(allotment.picks[i]) for i in served}
    nodes, kinds = at.cluster.nodes, at.cluster.kinds
    return {
        "objective": policy.power_mean(found, allotment.value),
        **_common(at, verdicts),
        "kinds": {id: kinds[found.kinds[i, picked[i]]] if i in picked else None for i, id in enumerate(at.ids)},
        "seats": {at.ids[i]: {nodes[node].name: gpus for node, gpus in allotment.seats[i]} for i in served},
        "batches": {at.ids[i]: batch for i in served if (batch := _batch(at, i, Placement(allotment.seats[i])))},
        "levels": {id: float(found.rates[i, picked[i]]) if i in picked else 0.0 for i, id in enumerate(at.ids)},
        "speedups": {id: float(found.speedups[i, picked[i]]) if i in picked else 0.0 for i, id in enumerate(at.ids)},
        "gap": allotment.gap,
        "seconds": seconds,
    }


def _batch(at: Snapshot, i: int, seats: Placement) -> dict[str, int] | None:
    """The batch size that the job's agent would choose on these seats; None for a job that keeps its own."""
    job = at.jobs.at(i)
    limits, report = job.spec.limits, at.perf.goodput(job)
    if limits is None or report is None:
        return None
    fit = dict(report.fits)[at.cluster.kinds[at.cluster.kind_of(seats)]]
    apart = np.array([int(at.cluster.locality(seats))])
    tuned = best(fit, limits, report.noise, np.array([seats.gpus]), apart)
    local, accumulation = int(tuned.local[0]), int(tuned.accumulation[0])
    return {"size": seats.gpus * local * (accumulation + 1), "per_gpu": local, "accumulation": accumulation}
