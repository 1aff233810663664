"""Who sits down in a round of the plan: those planned, then whoever waits and fits, in the plan's order."""

import numpy as np

from shoal.core.arrays import Int8s, Int32s
from shoal.core.snapshot import Snapshot
from shoal.policy.base import first_of_all, serve
from shoal.policy.shockwave.carry import WindowPlan, places


def seated(snapshot: Snapshot, plan: WindowPlan, turn: int, inside: bool) -> tuple[Int32s, Int8s | None]:
    """GPUs by job and, on a cluster of several kinds, their kind. Inside a round whoever runs goes on."""
    columns = snapshot.columns
    at, known = places(plan.rows, columns.rows)
    planned = known & plan.runs[at, turn]
    kept = (columns.held == columns.gpus) & inside
    rank = np.where(known, plan.rank[at], len(plan.rows))
    order = np.lexsort((rank, ~planned, ~kept))
    order = order[snapshot.possible[order]]
    wanted = np.where(kept, columns.kind, np.where(known, plan.kinds[at], -1))
    served = serve(snapshot, order, preferences=first_of_all(snapshot, wanted))
    return served.gpus, served.kinds
