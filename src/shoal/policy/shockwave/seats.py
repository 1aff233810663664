"""Who sits down in a round of the plan: those planned, then whoever waits and fits, in the plan's order."""

import numpy as np

from shoal.core.decision import Ints
from shoal.core.snapshot import Snapshot
from shoal.policy.api import serve
from shoal.policy.shockwave.memory import Kinds, Plan, Rows, places


def seated(snapshot: Snapshot, plan: Plan, turn: int, inside: bool) -> tuple[Ints, Kinds | None]:
    """GPUs by job and, on a cluster of several kinds, their kind. Inside a round whoever runs goes on."""
    columns = snapshot.columns
    at, known = places(plan.rows, columns.rows)
    planned = known & plan.runs[at, turn]
    kept = (columns.held == columns.gpus) & inside
    rank = np.where(known, plan.rank[at], len(plan.rows))
    order = np.lexsort((rank, ~planned, ~kept))
    order = order[snapshot.possible[order]]
    if len(snapshot.cluster.kinds) == 1:
        return serve(snapshot, order).gpus, None
    kinds = np.where(kept, columns.kind, np.where(known, plan.kinds[at], -1))
    return _on_kinds(snapshot, order, kinds)


def _on_kinds(snapshot: Snapshot, order: Rows, wanted: Rows) -> tuple[Ints, Kinds]:
    """Each in order on the kind it is to have, else on the fastest that has room."""
    columns = snapshot.columns
    gpus, kinds = np.zeros(len(columns), dtype=np.int32), np.full(len(columns), -1, dtype=np.int8)
    free, demand, speeds = list(snapshot.cluster.capacity), columns.gpus.tolist(), columns.speeds
    preference = np.argsort(-speeds, axis=1, kind="stable").tolist()
    for i in order.tolist():
        choices = [int(wanted[i]), *preference[i]] if wanted[i] >= 0 else preference[i]
        choice = next((k for k in choices if free[k] >= demand[i] and speeds[i, k] > 0), -1)
        if choice >= 0:
            free[choice] -= demand[i]
            gpus[i], kinds[i] = demand[i], choice
    return gpus, kinds
