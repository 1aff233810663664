"""The first stage of elastic policies: which jobs run at all, each on the fewest GPUs it can run on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s, Int64s
from shoal.core.snapshot import Snapshot
from shoal.policy.elastic.curves import CurveTable
from shoal.solve.first_fit import first_fit

_PART = 32
"""Jobs of a line that are served one by one before the rest of it is filtered again; doubled each time."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The jobs that run: by job its fewest GPUs (0: none) and kind (−1: none); by kind the GPUs then free.

    ``curves`` holds, for each elastic job admitted, its rate by number of GPUs on its kind.
    """

    low: Int32s
    kinds: Int8s
    free: tuple[int, ...]
    curves: Mapping[int, Floats]
    table: CurveTable

    @property
    def growing(self) -> Indices:
        """The elastic jobs admitted."""
        return np.fromiter(self.curves, dtype=np.intp, count=len(self.curves))

    def rates(self, jobs: Indices, gpus: Indices) -> Floats:
        """Return the rates of elastic jobs on their kind at ``gpus``, a row for each job; constant beyond its most."""
        index = self.table.index[jobs, self.kinds[jobs]]
        most = self.table.lengths[index] - 1
        return self.table.joined[self.table.begins[index][:, None] + np.minimum(gpus, most[:, None])]


def admit(snapshot: Snapshot, order: Indices, table: CurveTable) -> Admitted:
    """Give each job in order the fewest GPUs it can run on; a job for which too few are left is passed over.

    On a cluster of several kinds a running job stays on its kind, a rigid one takes the fastest kind with enough free
    GPUs, and an elastic one the kind where its rate times its likely share is highest.
    """
    columns = snapshot.columns
    elastic = columns.min_gpus < columns.max_gpus
    fewest = np.where(columns.speeds > 0, columns.min_gpus[:, None], np.int32(0))
    # Speeds are those of the requested gang: an elastic job that is too wide as requested may run on fewer GPUs.
    for i, k in np.argwhere(elastic[:, None] & (columns.speeds <= 0)).tolist():
        fewest[i, k] = _first_positive(table.curves[table.index[i, k]], int(columns.min_gpus[i]))
    while True:
        low, kinds, free = _taken(snapshot, order, fewest)
        chosen = np.flatnonzero(elastic & (low > 0))
        idle = chosen[~(table.rates(chosen, kinds[chosen], low[chosen]) > 0)]
        if not len(idle):
            found = map(table.curves.__getitem__, table.index[chosen, kinds[chosen]].tolist())
            return Admitted(low, kinds, free, dict(zip(chosen.tolist(), found, strict=True)), table)
        for i in idle.tolist():
            fewest[i, kinds[i]] = _first_positive(table.curves[table.index[i, kinds[i]]], int(low[i]))


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
    line, part = order, _PART
    free = np.array(capacity, dtype=np.int64)
    while len(line) and free.any():
        # Nothing becomes free, so what fits nowhere after one part of the line is dropped from the rest of it at once.
        line = line[((fewest[line] > 0) & (fewest[line] <= free)).any(axis=1)]
        stay = line[: _staying(columns.kind[line], fewest[line], free)]
        kinds[stay] = columns.kind[stay]
        low[stay] = fewest[stay, kinds[stay]]
        np.subtract.at(free, kinds[stay], low[stay])
        _take_one_by_one(snapshot, line[len(stay) :][:part], fewest, low, kinds, free)
        line, part = line[len(stay) + part :], 2 * part
    return low, kinds, tuple(free.tolist())


def _staying(current: Int32s, fewest: Int32s, free: Int64s) -> int:
    """Return how many jobs, from the first on, fit on the kind they hold beside the jobs before them."""
    asked = np.where(current[:, None] == np.arange(len(free)), fewest, 0)
    enough = (asked.cumsum(axis=0, dtype=np.int64) <= free).all(axis=1)
    fits: Flags = np.logical_and(enough, asked.any(axis=1))
    return len(fits) if fits.all() else int(fits.argmin())


def _take_one_by_one(
    snapshot: Snapshot, line: Indices, fewest: Int32s, low: Int32s, kinds: Int8s, free: Int64s
) -> None:
    """Give each job of a line its fewest GPUs of one kind, if there are enough; ``free`` are those left by kind."""
    columns, capacity, left = snapshot.columns, snapshot.cluster.capacity, free.tolist()
    elastic = (columns.min_gpus[line] < columns.max_gpus[line]).tolist()
    current, jobs = columns.kind[line].tolist(), line.tolist()
    speeds, wanted = columns.speeds[line].tolist(), fewest[line].tolist()
    for i, grows, now_on, speed, wants in zip(jobs, elastic, current, speeds, wanted, strict=True):
        k = now_on
        if k < 0 or not 0 < wants[k] <= left[k]:
            fitting = [k for k, want in enumerate(wants) if 0 < want <= left[k]]
            if not fitting:
                continue
            share = [c / (c - f + w) if grows and w else 1.0 for c, f, w in zip(capacity, left, wants, strict=True)]
            k = max(fitting, key=lambda k: (speed[k] * share[k], share[k], -k))
        low[i], kinds[i] = wants[k], k
        left[k] -= wants[k]
        if not any(left):
            break
    free[:] = left
