"""Dominant resource fairness: tenants are levelled by the largest share they hold of any kind of GPU.

Each kind is a resource; a tenant's dominant share is the largest fraction of one kind's GPUs that its jobs hold, over
its weight (the largest among its live jobs). Progressive filling, job by job: the tenant with the smallest dominant
share gets its next job, in order of arrival, served on the fastest kind with enough free GPUs (a running job on the
kind it has); a job that does not fit is passed over and its tenant keeps its place. Between equal shares the tenant
whose live jobs have attained the least service goes first, so that more tenants than GPUs take turns and a wide gang
sometimes finds the cluster empty.

The filling starts afresh each round; in between it only uses free GPUs. So a new tenant gets its share within a round,
and no job is preempted more often. With one kind this is max-min fairness over tenants in whole gangs.

References: DRF (NSDI '11), progressive filling.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.decision import Decision
from shoal.core.reasons import IN_TURN, LEASED, NO_ROOM, OUTRANKED
from shoal.core.snapshot import Snapshot
from shoal.policy.base import check_round, current_round, explained, serve


@dataclass(frozen=True, slots=True)
class Drf:
    """Serves the tenant with the smallest dominant share first, afresh each round."""

    round: float = 360.0

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide the verdicts of the filling, reviewed at the round's end if a job waits; the carry is that time."""
        columns = snapshot.columns
        end, kept = current_round(snapshot, self.round)
        filling = _Filling.of(snapshot, kept)
        filling.run(np.flatnonzero(snapshot.possible & ~kept))
        granted = filling.gpus > 0
        share = filling.shares()
        cut = float(share[granted & ~kept].max(initial=0.0))
        codes = np.where(share > cut, OUTRANKED.code, NO_ROOM.code)
        codes[granted] = IN_TURN.code
        codes[granted & kept] = LEASED.code
        ranked = ("tenant's weighted dominant share", share, cut)
        numbers = {
            IN_TURN: ranked,
            OUTRANKED: ranked,
            LEASED: (end,),
            NO_ROOM: (columns.gpus, float(max(filling.free, default=0))),
        }
        kinds = filling.kinds if len(snapshot.cluster.kinds) > 1 else None
        waiting = bool((snapshot.possible & ~granted).any())
        verdicts = explained(snapshot, filling.gpus, codes, numbers, kinds)
        return Decision(verdicts, end if waiting else inf, end)


@dataclass(slots=True)
class _Filling:
    """A progressive filling in progress: GPUs and kind by job, free GPUs by kind, GPUs used by tenant and kind."""

    snapshot: Snapshot
    gpus: Int32s
    kinds: Int8s
    free: list[int]
    used: list[list[float]]
    weight: Sequence[float]
    at_turn: dict[int, float] = field(default_factory=dict)
    """By job served: its tenant's share before it was."""

    @classmethod
    def of(cls, snapshot: Snapshot, kept: Flags) -> "_Filling":
        """A filling in which only the jobs that keep their GPUs are served."""
        columns, capacity, tenants = snapshot.columns, snapshot.cluster.capacity, len(snapshot.tenant_service)
        served = serve(snapshot, np.flatnonzero(kept))
        on = served.gpus > 0
        kinds = np.where(on, columns.kind, -1).astype(np.int8) if served.kinds is None else served.kinds
        used = np.zeros((tenants, len(capacity)))
        np.add.at(used, (columns.tenant[on], kinds[on]), served.gpus[on])
        free = [c - int(u) for c, u in zip(capacity, used.sum(axis=0).tolist(), strict=True)]
        weight = np.zeros(tenants)
        np.maximum.at(weight, columns.tenant, columns.weight)
        return cls(snapshot, served.gpus, kinds, free, used.tolist(), weight.tolist())

    def run(self, waiting: Indices) -> None:
        """Serve waiting jobs until no further one fits."""
        columns = self.snapshot.columns
        # No GPUs become free, so a job that does not fit now never will.
        usable = (columns.speeds[waiting] > 0) | (columns.kind[waiting, None] == np.arange(len(self.free)))
        waiting = waiting[(usable & (columns.gpus[waiting, None] <= np.array(self.free))).any(axis=1)]
        attained = np.bincount(columns.tenant, weights=columns.attained, minlength=len(self.used))
        by_tenant = waiting[np.argsort(columns.tenant[waiting], kind="stable")]
        tenants, starts = np.unique(columns.tenant[by_tenant], return_index=True)
        lines = [iter(part.tolist()) for part in np.split(by_tenant, starts[1:])]
        heap = [(self._share(t), attained[t] / self.weight[t], n, t) for n, t in enumerate(tenants.tolist())]
        heapq.heapify(heap)
        least = int(columns.gpus[waiting].min(initial=1))
        options = _Options.of(self.snapshot, waiting)
        while heap and max(self.free, default=0) >= least:
            share, service, n, tenant = heapq.heappop(heap)
            found = options.next_that_fits(lines[n], self.free)
            if found is None:
                continue
            job, kind = found
            want = options.demand[job]
            self.gpus[job], self.kinds[job], self.at_turn[job] = want, kind, share
            self.free[kind] -= want
            self.used[tenant][kind] += want
            heapq.heappush(heap, (self._share(tenant), service, n, tenant))

    def shares(self) -> Floats:
        """Return, by job, its tenant's share before it was served; for other jobs that at the end of the filling."""
        final = np.array([self._share(t) if self.weight[t] else 0.0 for t in range(len(self.used))])
        shares: Floats = final[self.snapshot.columns.tenant]
        shares[list(self.at_turn)] = list(self.at_turn.values())
        return shares

    def _share(self, tenant: int) -> float:
        pairs = zip(self.used[tenant], self.snapshot.cluster.capacity, strict=True)
        return max((used / most for used, most in pairs if most), default=0.0) / self.weight[tenant]


@dataclass(frozen=True, slots=True)
class _Options:
    """By position of some jobs: the gang, and the kinds it can use, best first."""

    demand: dict[int, int]
    kinds: dict[int, list[int]]

    @classmethod
    def of(cls, snapshot: Snapshot, jobs: Indices) -> "_Options":
        """The options of these jobs, of which a running one prefers its present kind."""
        columns, positions = snapshot.columns, jobs.tolist()
        speeds, running = columns.speeds[jobs], np.flatnonzero(columns.held[jobs] > 0)
        usable = (speeds > 0).sum(axis=1).tolist()
        speeds[running, columns.kind[jobs[running]]] = np.inf
        ranked = np.argsort(-speeds, axis=1, kind="stable").tolist()
        kinds = [row[:count] for row, count in zip(ranked, usable, strict=True)]
        demand: list[int] = columns.gpus[jobs].tolist()
        return cls(dict(zip(positions, demand, strict=True)), dict(zip(positions, kinds, strict=True)))

    def next_that_fits(self, line: Iterator[int], free: list[int]) -> tuple[int, int] | None:
        """The next job in a tenant's line that fits on some kind, and that kind; None at the end of the line."""
        for job in line:
            for kind in self.kinds[job]:
                if free[kind] >= self.demand[job]:
                    return job, kind
        return None
