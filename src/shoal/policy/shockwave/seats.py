"""Who sits down in a round of the plan: those planned, then whoever waits and fits, in the plan's order."""

import numpy as np

from shoal.core.decision import Floats, Ints
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


def dealt(snapshot: Snapshot, seconds: Floats, rank: Rows) -> tuple[Kinds, Floats]:
    """Each job's kind, −1 for none, and its speed there beside its best: runners stay, others go where load is least.

    ``seconds`` are run times left on the kind that suits each best; who ranks first is dealt out first.
    """
    columns, cluster = snapshot.columns, snapshot.cluster
    if len(cluster.kinds) == 1:
        return np.where(snapshot.possible, 0, -1).astype(np.int8), np.ones(len(columns))
    best = np.where(columns.best_speed > 0, columns.best_speed, 1.0)
    pace = columns.speeds / best[:, None]
    kinds = np.where(snapshot.possible & (columns.held > 0), columns.kind, -1).astype(np.int8)
    load = np.zeros(len(cluster.kinds))
    able = (pace > 0) & (columns.gpus[:, None] <= np.asarray(cluster.capacity))
    area = np.full(pace.shape, np.inf)
    np.divide((seconds * columns.gpus)[:, None], pace * np.asarray(cluster.capacity), out=area, where=able)
    runs = np.flatnonzero(kinds >= 0)
    np.add.at(load, kinds[runs], area[runs, kinds[runs]])
    waiting = np.flatnonzero(snapshot.possible & (kinds < 0))
    for i in waiting[np.argsort(rank[waiting])].tolist():
        kinds[i] = int(np.argmin(load + area[i]))
        load[kinds[i]] += area[i, kinds[i]]
    return kinds, np.where(kinds >= 0, pace[np.arange(len(kinds)), kinds], 1.0)
