"""Altruistic shortest first: gangs as requested, then the GPUs left over to the jobs served.

Jobs are served their whole gangs in ascending remaining time (SRTF-E) or remaining service (SRSF-E). GPUs that are
left then go one by one to the elastic job served whose speed-up over one GPU they raise most: the most throughput that
the cluster can get out of them. No job gets fewer than it requested.

References: AFS (NSDI '21) §5.5, after "Altruistic scheduling in multi-resource clusters" (OSDI '16).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import explained, ranked_verdicts, serve_ascending
from shoal.policy.shared_reasons import STRETCHED
from shoal.solve.marginal_gain import best_units


@dataclass(frozen=True, slots=True)
class SrtfE:
    """Shortest remaining time first, leftover GPUs to the jobs served."""

    reasons = (STRETCHED,)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve jobs in ascending remaining time, then divide the GPUs left over."""
        return _with_leftovers(snapshot, "remaining time in seconds", snapshot.columns.remaining_seconds)


@dataclass(frozen=True, slots=True)
class SrsfE:
    """Shortest remaining service first, leftover GPUs to the jobs served."""

    reasons = (STRETCHED,)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Serve jobs in ascending remaining GPU-seconds, then divide the GPUs left over."""
        columns = snapshot.columns
        return _with_leftovers(snapshot, "remaining service in GPU-seconds", columns.remaining_seconds * columns.gpus)


def _with_leftovers(snapshot: Snapshot, name: str, key: Floats) -> Decision:
    columns, jobs, cluster = snapshot.columns, snapshot.jobs, snapshot.cluster
    served = serve_ascending(snapshot, key)
    verdicts = ranked_verdicts(snapshot, served, name, key)
    gpus, codes = verdicts.gpus.copy(), verdicts.codes.copy()
    last, more = np.zeros(len(gpus)), np.zeros(len(gpus))
    running = np.flatnonzero((gpus > 0) & (columns.max_gpus > gpus))
    kinds = served.kinds if served.kinds is not None else np.zeros(len(gpus), dtype=np.int8)
    for k, capacity in enumerate(cluster.capacity):
        left = capacity - int(gpus[kinds == k].sum())
        here = running[kinds[running] == k] if left > 0 else running[:0]
        curves = [snapshot.perf.curve(jobs.at(i), cluster.kinds[k]) for i in here.tolist()]

        def bids(some: Indices, count: int, here: Indices = here, curves: Sequence[Floats] = curves) -> Floats:
            rows = zip(some.tolist(), gpus[here[some]].tolist(), strict=True)
            return np.stack([_bids(curves[at], gang, count) for at, gang in rows])

        bought = best_units(bids, (columns.max_gpus[here] - gpus[here]).astype(np.int64), left)
        for at in np.flatnonzero(bought.counts).tolist():
            i, curve = here[at], curves[at]
            gpus[i] += bought.counts[at]
            with_it, beyond = curve[gpus[i]], curve[gpus[i] + 1 : gpus[i] + 2].sum()
            codes[i], last[i] = STRETCHED.code, 100.0 * (with_it / curve[gpus[i] - 1] - 1.0)
            more[i] = 100.0 * max(beyond / with_it - 1.0, 0.0)
    numbers = {**verdicts.numbers, STRETCHED: (gpus, last, more)}
    return Decision(explained(snapshot, gpus, codes, numbers, served.kinds))


def _bids(curve: Floats, gang: int, count: int) -> Floats:
    """The gain in speed-up of each of ``count`` further GPUs."""
    rates = curve[np.minimum(np.arange(gang, gang + count + 1), len(curve) - 1)]
    bids: Floats = np.diff(rates) / max(float(curve[1]), float(curve[gang]) / gang, 1e-300)
    return bids
