"""Which suspended jobs are resumed: each is bound to its node, so it competes with the jobs there."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.decision import Grant, Refusal, Verdict
from shoal.core.reasons import SUSPENDED_THERE, Reason
from shoal.core.snapshot import Snapshot
from shoal.policy.goodput_options import node_units
from shoal.policy.shoal.reasons import RESUMES
from shoal.solve.allotment import STAY
from shoal.solve.node_packing import Seats


@dataclass(frozen=True, slots=True)
class Resumptions:
    """The verdict of each suspended job, and, by kind, the GPUs of each node that are left to all other jobs."""

    verdicts: Mapping[int, Verdict]
    node_units: list[dict[int, int]]


def resumptions(
    snapshot: Snapshot, worth: Floats, gpus: Indices, pools: Indices, seats: list[Seats | None]
) -> Resumptions:
    """Decide on the suspended jobs, the highest bid first; ``worth`` is changed so that they get no other option.

    A job is resumed if the GPUs of its node are free and no waiting job bids more for a GPU of that kind, or if it is
    worth more than the cheapest running jobs there that would have to leave; these may then be seated elsewhere.
    """
    units = [dict(nodes) for nodes in node_units(snapshot.cluster)]
    if not snapshot.suspensions.runs:
        return Resumptions({}, units)
    bids = np.where(np.isfinite(worth), worth / gpus, -np.inf)
    found: dict[int, Verdict] = {}
    runs = {i: run for job, run in snapshot.suspensions.runs.items() if (i := snapshot.position_of(job)) >= 0}
    bound = {i: (*run.placement.seats[0], snapshot.cluster.kind_of(run.placement)) for i, run in runs.items()}
    offers = {i: float(bids[i, pools[i] == kind].max(initial=-np.inf)) for i, (_, _, kind) in bound.items()}
    worth[list(bound)] = -np.inf
    others = np.setdiff1d(np.flatnonzero(snapshot.columns.held == 0), list(bound))
    for i in sorted(bound, key=lambda i: (-offers[i], i)):
        node, wanted, kind = bound[i]
        here = {j: held for j, there in enumerate(seats) if there and (held := dict(there).get(node))}
        free = units[kind].get(node, 0) - sum(here.values())
        leaving: list[int] = []
        for j in sorted(here, key=lambda j: (worth[j, STAY] / here[j], j)):
            if free + sum(here[k] for k in leaving) >= wanted:
                break
            leaving.append(j)
        enough = free + sum(here[j] for j in leaving) >= wanted
        rival = float(np.where(pools[others] == kind, bids[others], -np.inf).max(initial=-np.inf))
        price = sum(float(worth[j, STAY]) for j in leaving) / wanted if leaving else rival
        if not enough or not offers[i] > max(price, 0.0):
            name = snapshot.cluster.nodes[node].name
            found[i] = Refusal(Reason(SUSPENDED_THERE, (name, wanted, max(free, 0))))
            continue
        for j in leaving:
            worth[j, STAY], seats[j] = -np.inf, None
        units[kind][node] -= wanted
        reason = Reason(RESUMES, (wanted, snapshot.cluster.nodes[node].name))
        found[i] = Grant(wanted, snapshot.cluster.kinds[kind], placement=runs[i].placement, reason=reason)
    return Resumptions(found, units)
