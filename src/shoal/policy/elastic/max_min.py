"""Max-min fair GPU counts: nobody could have one more GPU without somebody with as few or fewer having one less.

Everyone gets its fewest GPUs first (a rigid gang's fewest is the whole gang), then GPUs go one at a time to the job
that holds the fewest for its weight, as long as one more makes it faster. When not everyone fits, those served are
changed at the end of each quantum, all at one moment so that wide gangs find room: least attained service for its
weight first, the narrowest first among equals.

On a cluster of several kinds a running job stays on its kind, a rigid one takes the fastest kind with room, and an
elastic one the kind where its rate times its likely share is highest; counts are max-min fair within each kind.

References: AFS (NSDI '21) §2.2 and §5.2 use it as a baseline.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, inf

import numpy as np

from shoal.core.arrays import Floats, Indices, Int8s, Int32s
from shoal.core.decision import Decision, Numbers
from shoal.core.reasons import NO_ROOM
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained
from shoal.policy.shared_reasons import FAIR_SHARE
from shoal.solve.first_fit import first_fit
from shoal.solve.max_min_counts import fair_counts


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who runs at all: the fewest GPUs each starts from (0: none), of which kind (−1: none), and what that leaves.

    ``curves`` holds, for each elastic job admitted, its rate by number of GPUs on its kind.
    """

    low: Int32s
    kinds: Int8s
    free: tuple[int, ...]
    curves: Mapping[int, Floats]


def admit(snapshot: Snapshot, order: Indices) -> Admitted:
    """Give jobs in order the fewest GPUs each can run on; one for which too few are left is passed over."""
    columns, jobs, kind_names = snapshot.columns, snapshot.jobs, snapshot.cluster.kinds
    elastic = columns.min_gpus < columns.max_gpus
    fewest = np.where(columns.speeds > 0, columns.min_gpus[:, None], np.int32(0))
    # Speeds are those of the requested gang: an elastic job that is too wide as requested may do with fewer.
    for i, k in np.argwhere(elastic[:, None] & (columns.speeds <= 0)).tolist():
        fewest[i, k] = _first_positive(snapshot.perf.curve(jobs.at(i), kind_names[k]), int(columns.min_gpus[i]))
    while True:
        low, kinds, free = _taken(snapshot, order, fewest)
        chosen = np.flatnonzero(elastic & (low > 0)).tolist()
        curves = {i: snapshot.perf.curve(jobs.at(i), kind_names[kinds[i]]) for i in chosen}
        idle = [i for i, curve in curves.items() if not curve[low[i]] > 0]
        if not idle:
            return Admitted(low, kinds, free, curves)
        for i in idle:
            fewest[i, kinds[i]] = _first_positive(curves[i], int(low[i]))


def _first_positive(curve: Floats, least: int) -> int:
    counts = np.flatnonzero(curve[least:] > 0)
    return least + int(counts[0]) if len(counts) else 0


def _taken(snapshot: Snapshot, order: Indices, fewest: Int32s) -> tuple[Int32s, Int8s, tuple[int, ...]]:
    columns, capacity = snapshot.columns, snapshot.cluster.capacity
    low = np.zeros(len(columns), dtype=np.int32)
    kinds = np.full(len(columns), -1, dtype=np.int8)
    if len(capacity) == 1:
        line = order[fewest[order, 0] > 0]
        chosen = line[first_fit(fewest[line, 0], capacity[0])]
        low[chosen], kinds[chosen] = fewest[chosen, 0], 0
        return low, kinds, (capacity[0] - int(low.sum()),)
    free, speeds, current = list(capacity), columns.speeds.tolist(), columns.kind.tolist()
    elastic, wanted = (columns.min_gpus < columns.max_gpus).tolist(), fewest.tolist()
    for i in order.tolist():
        room = [k for k, want in enumerate(wanted[i]) if 0 < want <= free[k]]
        if not room:
            continue
        k = current[i]
        if k not in room:
            share = [
                c / (c - f + w) if elastic[i] and w else 1.0 for c, f, w in zip(capacity, free, wanted[i], strict=True)
            ]
            k = max(room, key=lambda k: (speeds[i][k] * share[k], share[k], -k))
        low[i], kinds[i] = wanted[i][k], k
        free[k] -= wanted[i][k]
        if not any(free):
            break
    return low, kinds, tuple(free)


@dataclass(frozen=True, slots=True)
class MaxMin:
    """Fair counts; with too many jobs, fair turns of ``quantum`` seconds."""

    reasons = (FAIR_SHARE,)
    quantum: float = 600.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.quantum < inf:
            raise ValueError("quantum must be a finite number of seconds, at least 1")

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the quantum if somebody waits its turn."""
        columns = snapshot.columns
        turn = floor(snapshot.now / self.quantum)
        keeping = (columns.held > 0) & (np.floor(columns.since / self.quantum) == turn)
        order = np.lexsort((columns.min_gpus, columns.attained / columns.weight, ~keeping))
        admitted = admit(snapshot, order)
        gpus = self._counts(snapshot, admitted)
        share: Floats = snapshot.cluster.total_gpus * columns.weight / max(float(columns.weight.sum()), 1e-300)
        codes = np.where(gpus > 0, FAIR_SHARE.code, NO_ROOM.code)
        left = max(admitted.free, default=0)
        numbers: Numbers = {FAIR_SHARE: (gpus, share), NO_ROOM: (columns.min_gpus, left)}
        waiting = bool(((gpus == 0) & snapshot.possible).any())
        review_at = (turn + 1) * self.quantum if waiting else inf
        if review_at <= snapshot.now:  # rounding, far from the origin of time
            review_at = snapshot.now + self.quantum
        return Decision(explained(snapshot, gpus, codes, numbers, admitted.kinds), review_at)

    def _counts(self, snapshot: Snapshot, admitted: Admitted) -> Int32s:
        columns, gpus = snapshot.columns, admitted.low.copy()
        high = admitted.low.copy()
        for i, curve in admitted.curves.items():
            if admitted.free[admitted.kinds[i]]:
                stops = np.flatnonzero(np.diff(curve[high[i] : columns.max_gpus[i] + 1]) <= 0)
                high[i] = high[i] + int(stops[0]) if len(stops) else columns.max_gpus[i]
        held = np.where(columns.kind == admitted.kinds, columns.held, 0)
        for k, free in enumerate(admitted.free):
            here = np.flatnonzero(admitted.kinds == k)
            gpus[here] = fair_counts(free, gpus[here], high[here], columns.weight[here], held[here])
        return gpus
