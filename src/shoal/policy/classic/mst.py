"""Max sum throughput: each round runs the jobs that together make the most progress per second.

Throughputs of different jobs are only comparable without their units. ``normalised`` (the default) counts a job on a
kind as its gang times its speed there over its mean speed on the cluster's GPUs, so 1 per GPU is average and only the
fit of job and kind matters. Otherwise training steps per second are summed, as Shockwave's baseline does: then models
with small steps win, the others wait, and a job loses rank when it raises its batch size. For a job that declares no
batch size a unit of work is a step.

The set is found greedily, most throughput per GPU first, and improved by swapping jobs of equal gangs between kinds
while that raises the sum. On one kind that is the optimum for equal gangs, and otherwise short of it by less than the
widest gang's throughput; on several kinds it is the optimum for single GPUs of two kinds when all jobs fit, and
otherwise only a heuristic. Ties go to the job that has run fewer whole hours, so equal jobs take turns, but seldom,
since a turn costs a restart and adds no throughput; a slower job waits until the others are done. A running job keeps
its GPUs until the round ends.

References: Shockwave (NSDI '23) §8.2, MST; Gavel (OSDI '20) §4.2, maximise total throughput.
"""

from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np

from shoal.core.arrays import Flags, Floats, Int32s
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import Served, check_round, current_round, ranked_verdicts, serve
from shoal.policy.tuning import constant


@dataclass(frozen=True, slots=True)
class MstTuning:
    """Constants of MST."""

    turn: float = constant(3600.0, "seconds of run time after which a job yields to an equal one")


@dataclass(frozen=True, slots=True)
class Mst:
    """Serves jobs by throughput per GPU, afresh each round."""

    tuning = MstTuning()
    normalised: bool = True
    round: float = 120.0

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide verdicts for that set, reviewed at the end of the round if a job waits; the carry is that end."""
        columns = snapshot.columns
        end, kept = current_round(snapshot, self.round)
        density = self._density(snapshot)
        best = density.max(axis=1, initial=0.0)
        turns = columns.run_seconds // self.tuning.turn
        if len(snapshot.cluster.kinds) == 1:
            order = np.lexsort((columns.held == 0, turns, -best, ~kept))
            served, chosen = serve(snapshot, order[best[order] > 0]), best
        else:
            served = _choose(snapshot, density, kept, turns)
            if end != snapshot.carry:
                _exchange(columns.gpus, density, served)
            chosen = np.where(served.gpus > 0, density[np.arange(len(columns)), served.kinds], best)
        with np.errstate(divide="ignore"):
            price = 1.0 / chosen
        waiting = bool((snapshot.possible & (served.gpus == 0)).any())
        verdicts = ranked_verdicts(snapshot, served, "number of GPUs per unit of throughput", price)
        return Decision(verdicts, end if waiting else inf, end)

    def _density(self, snapshot: Snapshot) -> Floats:
        """Return the throughput per GPU by job and kind."""
        columns, capacity = snapshot.columns, np.asarray(snapshot.cluster.capacity, dtype=np.float64)
        speeds = columns.speeds
        if not self.normalised:
            steps: Floats = speeds / (columns.gpus * np.maximum(columns.batch_size, 1))[:, None]
            return steps
        mean = speeds @ capacity / max(capacity.sum(), 1.0)
        density: Floats = np.divide(speeds, mean[:, None], out=np.zeros(speeds.shape), where=mean[:, None] > 0)
        return density


def _choose(snapshot: Snapshot, density: Floats, kept: Flags, turns: Floats) -> Served:
    """Serve the jobs that keep their GPUs, then pairs of job and kind by descending throughput per GPU."""
    columns = snapshot.columns
    held = serve(snapshot, np.flatnonzero(kept))
    kinds = np.full(len(columns), -1, dtype=np.int8) if held.kinds is None else held.kinds
    used = np.bincount(kinds[held.gpus > 0], weights=held.gpus[held.gpus > 0], minlength=density.shape[1])
    free = [c - int(u) for c, u in zip(snapshot.cluster.capacity, used, strict=True)]
    jobs, targets = np.nonzero((density > 0) & (held.gpus == 0)[:, None])
    order = np.lexsort((columns.kind[jobs] != targets, turns[jobs], -density[jobs, targets]))
    demand, least = columns.gpus.tolist(), int(columns.gpus.min(initial=1))
    taken: dict[int, int] = {}
    for i, k in zip(jobs[order].tolist(), targets[order].tolist(), strict=True):
        if free[k] >= demand[i] and i not in taken:
            taken[i] = k
            free[k] -= demand[i]
            if max(free) < least:
                break
    for i, k in taken.items():
        held.gpus[i], kinds[i] = demand[i], k
    last = max(taken, key=lambda i: -density[i, taken[i]], default=held.last)
    return Served(held.gpus, kinds, last, sum(free), max(free))


def _exchange(demand: Int32s, density: Floats, served: Served) -> None:
    """Swap jobs of equal gangs between kinds, best pairs first, while a swap raises the sum; writes to the kinds."""
    kinds = served.kinds
    assert kinds is not None
    for a, b in combinations(range(density.shape[1]), 2):
        movable = (density[:, a] > 0) & (density[:, b] > 0) & (served.gpus > 0)
        gain = density[:, b] - density[:, a]
        for gang in np.unique(demand[movable & (kinds == a)]).tolist():
            here = np.flatnonzero(movable & (kinds == a) & (demand == gang))
            there = np.flatnonzero(movable & (kinds == b) & (demand == gang))
            here = here[np.argsort(-gain[here], kind="stable")]
            there = there[np.argsort(gain[there], kind="stable")]
            pairs = min(len(here), len(there))
            worth = gain[here[:pairs]] - gain[there[:pairs]] > 1e-12
            kinds[here[:pairs][worth]], kinds[there[:pairs][worth]] = b, a
