"""Pollux's allotment for a written-down problem: GPUs, nodes and batch sizes by goodput, with the gap."""

from time import process_time
from typing import Any

import numpy as np

from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.perf.goodput import best
from shoal.policy.goodput_options import allotted
from shoal.policy.pollux.policy import Pollux
from shoal.research.problem.decided import moment
from shoal.research.problem.written import WrittenProblem, check


def adapted(problem: WrittenProblem, policy: Pollux) -> dict[str, Any]:
    """GPUs and seats by job, the goodput each then has, its batch size; the power mean of speed-ups, and its gap."""
    check(problem)
    at = moment(problem)
    begin = process_time()
    found, menu, allotment = policy.allotment(at)
    seconds = process_time() - begin
    verdicts = allotted(at, found, menu, allotment, np.ones(len(at.ids)))
    served = np.flatnonzero(allotment.picks >= 0).tolist()
    picked = {i: int(allotment.picks[i]) for i in served}
    nodes, kinds = at.cluster.nodes, at.cluster.kinds
    return {
        "objective": policy.power_mean(allotment.value, len(at.ids)),
        "shares": dict(zip(at.ids, verdicts.gpus.tolist(), strict=True)),
        "kinds": {id: kinds[found.kinds[i, picked[i]]] if i in picked else None for i, id in enumerate(at.ids)},
        "seats": {at.ids[i]: {nodes[node].name: gpus for node, gpus in allotment.seats[i]} for i in served},
        "batches": {at.ids[i]: batch for i in served if (batch := _batch(at, i, Placement(allotment.seats[i])))},
        "levels": {id: float(found.rates[i, picked[i]]) if i in picked else 0.0 for i, id in enumerate(at.ids)},
        "speedups": {id: float(found.speedups[i, picked[i]]) if i in picked else 0.0 for i, id in enumerate(at.ids)},
        "gap": allotment.gap,
        "seconds": seconds,
        "refused": {},
        "notes": {id: verdicts.reason(i).sentence() for i, id in enumerate(at.ids)},
    }


def _batch(at: Snapshot, i: int, seats: Placement) -> dict[str, int] | None:
    """The batch its agent would choose there; None for a job that keeps its own."""
    job = at.jobs.at(i)
    limits, report = job.spec.limits, at.perf.goodput(job)
    if limits is None or report is None:
        return None
    fit = dict(report.fits)[at.cluster.kinds[at.cluster.kind_of(seats)]]
    apart = np.array([int(at.cluster.locality(seats))])
    tuned = best(fit, limits, report.noise, np.array([seats.gpus]), apart)
    local, accumulation = int(tuned.local[0]), int(tuned.accumulation[0])
    return {"size": seats.gpus * local * (accumulation + 1), "per_gpu": local, "accumulation": accumulation}
