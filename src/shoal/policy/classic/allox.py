"""AlloX: jobs are matched to kinds of GPU and places in their queues so that the sum of completion times is least.

Whenever GPUs are free, the waiting jobs are matched (``solve.assignment``): a job k-th from the end of a GPU's queue
adds k times its length there, and every job waits until that GPU's present job is done. Jobs matched to the front of
a free GPU's queue start; a job may wait for a better kind while a worse one is free. Running jobs keep their GPUs.

Exact for jobs of one GPU. A gang of g counts, in the usual generalisation, as one GPU's worth of g times its length,
and starts when g GPUs of its kind are free. On a single kind the optimum is shortest first, so nothing is matched.
``alpha`` is AlloX's fairness parameter: only this fraction of the waiting jobs takes part, those with the least
attained service for their weight and then the longest wait; the others get GPUs only when all of these have theirs. The
matching takes the ``window`` shortest at a time. A job that declares no work is expected to run as long again as it
has run, and an hour at least.

References: AlloX (EuroSys '20); Gavel (OSDI '20) §7.3 and Shockwave (NSDI '23) §8.2 use it as a baseline.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s
from shoal.core.decision import Decision, Numbers
from shoal.core.reasons import NO_ROOM
from shoal.core.snapshot import Snapshot
from shoal.perf.work_prior import PRIOR_SECONDS
from shoal.policy.base import explained
from shoal.policy.run_seconds import run_seconds
from shoal.policy.shared_reasons import LATER_ON_BETTER, MATCHED
from shoal.policy.tuning import constant
from shoal.solve.assignment import least_total_completion
from shoal.solve.first_fit import first_fit

_MANY = 2_000
"""Live jobs beyond which only places that an optimum uses are matched."""


@dataclass(frozen=True, slots=True)
class AlloxTuning:
    """Constants of AlloX."""

    spare_places: int = constant(3, "places in a GPU's queue beyond an even split of the jobs over the GPUs")
    prior_seconds: float = constant(PRIOR_SECONDS, "least expected run time of a job that declares no work")


@dataclass(frozen=True, slots=True)
class _MatchedQueue:
    """Waiting jobs in the order in which they are to start, with the kind and the expected start of each."""

    order: Indices
    kinds: Indices
    starts: Floats


@dataclass(frozen=True, slots=True)
class Allox:
    """Least total completion time by matching."""

    reasons = (MATCHED, LATER_ON_BETTER)
    tuning = AlloxTuning()
    alpha: float = 1.0
    window: int = 128

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha <= 1.0:
            raise ValueError("alpha must be above 0 and at most 1")
        if not self.window >= 1:
            raise ValueError("window must be at least 1 job")

    def decide(self, snapshot: Snapshot) -> Decision:
        """Verdicts that only arrivals, completions and changes of the cluster can change."""
        columns, names = snapshot.columns, np.asarray(snapshot.cluster.kinds)
        seconds = run_seconds(snapshot)
        gpus = np.where(columns.held == columns.gpus, columns.gpus, 0).astype(np.int32)
        kinds = np.where(gpus > 0, columns.kind, -1).astype(np.int8)
        free = [c - int(gpus[kinds == k].sum()) for k, c in enumerate(snapshot.cluster.capacity)]
        line = np.flatnonzero((gpus == 0) & snapshot.possible)
        line = line[np.lexsort((line, columns.attained[line] / columns.weight[line]))]
        invited = line[: ceil(self.alpha * len(line))]
        starts, number = np.zeros(len(columns)), np.zeros(len(columns), dtype=np.int32)
        planned, queued = kinds.copy(), [0] * len(free)
        ready = _ready(snapshot, seconds, gpus)
        for group in (invited, line[len(invited) :]):
            rest = group[np.argsort((seconds[group] * columns.gpus[group][:, None]).min(axis=1), kind="stable")]
            started = True
            while started and any(free) and len(rest):  # if none of a window starts, no longer job would either
                plan, rest, ready = self._plan(snapshot, rest, seconds, ready)
                starts[plan.order], planned[plan.order] = plan.starts, plan.kinds
                for k in range(len(free)):
                    queue = plan.order[plan.kinds == k]
                    number[queue] = np.arange(queued[k] + 1, queued[k] + len(queue) + 1)
                    queued[k] += len(queue)
                    queue = queue[starts[queue] <= 0.0]
                    chosen = queue[first_fit(columns.gpus[queue], free[k])]
                    gpus[chosen], kinds[chosen] = columns.gpus[chosen], k
                    free[k] -= int(columns.gpus[chosen].sum())
                started = bool(gpus[plan.order].any())
            if not gpus[group].all():
                break
        codes = np.where(gpus > 0, MATCHED.code, NO_ROOM.code)
        codes[(gpus == 0) & (starts > 0.0)] = LATER_ON_BETTER.code
        takes = np.where(planned >= 0, seconds[np.arange(len(columns)), planned], 0.0)
        numbers: Numbers = {
            MATCHED: (names[kinds], takes),
            NO_ROOM: (columns.gpus, max(free, default=0)),
            LATER_ON_BETTER: (number, names[planned], starts),
        }
        return Decision(explained(snapshot, gpus, codes, numbers, kinds))

    def _plan(
        self, snapshot: Snapshot, line: Indices, seconds: Floats, ready: tuple[Floats, ...]
    ) -> tuple[_MatchedQueue, Indices, tuple[Floats, ...]]:
        """Plan a queue's first ``window`` jobs; return the plan, the other jobs, and when GPUs are free after it."""
        if len(ready) == 1:
            return _MatchedQueue(line, np.zeros(len(line), dtype=np.intp), np.zeros(len(line))), line[:0], ready
        window = line[: self.window]
        service = seconds[window] * snapshot.columns.gpus[window][:, None]
        many = len(snapshot.columns) > _MANY
        found = least_total_completion(service, ready, spare=self.tuning.spare_places, useful=many)
        order = np.lexsort((service.min(axis=1), found.starts))
        order = order[found.kinds[order] >= 0]
        return _MatchedQueue(window[order], found.kinds[order], found.starts[order]), line[self.window :], found.ready


def _ready(snapshot: Snapshot, seconds: Floats, running: Int32s) -> tuple[Floats, ...]:
    """By kind: the seconds until each GPU is free."""
    times = []
    for k, capacity in enumerate(snapshot.cluster.capacity):
        here = np.flatnonzero((running > 0) & (snapshot.columns.kind == k))
        busy = np.repeat(seconds[here, k], running[here])
        times.append(np.concatenate([np.zeros(max(capacity - len(busy), 0)), busy]))
    return tuple(times)
