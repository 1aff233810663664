"""Dominant resource fairness: tenants are levelled by the largest share they hold of any kind of GPU.

Each kind is a resource; a tenant's dominant share is the largest fraction of one kind's GPUs that its jobs hold, over
its weight (the largest among its live jobs). Progressive filling, job by job: the tenant with the smallest dominant
share has its next job, in order of arrival, seated on the fastest kind with room (a running job on the kind it has); a
job that does not fit is passed over and its tenant stays in place. Equal shares go to the tenant whose live jobs have
attained the least service, so more tenants than GPUs take turns and a wide gang sometimes finds the cluster empty.

The filling is done anew each round, and in between only with what is free: a new tenant gets its share within a round,
and nobody is preempted more often. With one kind this is max-min fairness over tenants in whole gangs.

References: DRF (NSDI '11), progressive filling.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.decision import Decision
from shoal.core.reasons import IN_TURN, LEASED, NO_ROOM, OUTRANKED
from shoal.core.snapshot import Snapshot
from shoal.policy.base import check_round, explained, round_end, serve


@dataclass(frozen=True, slots=True)
class Drf:
    """Fills tenants up from the smallest dominant share, anew each round."""

    round: float = 360.0

    def __post_init__(self) -> None:
        check_round(self.round)

    def decide(self, snapshot: Snapshot) -> Decision:
        """A verdict for every live job, reviewed at the end of the round if anybody waits. Carries that end."""
        columns, now = snapshot.columns, snapshot.now
        end = snapshot.carry if isinstance(snapshot.carry, float) and now < snapshot.carry else None
        kept = columns.held > 0 if end is not None else np.zeros(len(columns), dtype=bool)
        filling = _Filling.of(snapshot, kept)
        filling.run(np.flatnonzero(snapshot.possible & ~kept))
        end = round_end(now, self.round) if end is None else end
        granted = filling.gpus > 0
        share = filling.told()
        cut = float(share[granted & ~kept].max(initial=0.0))
        codes = np.where(share > cut, OUTRANKED.code, NO_ROOM.code)
        codes[granted] = IN_TURN.code
        codes[granted & kept] = LEASED.code
        story = ("tenant's weighted dominant share", share, cut)
        numbers = {
            IN_TURN: story,
            OUTRANKED: story,
            LEASED: (end,),
            NO_ROOM: (columns.gpus, float(max(filling.free, default=0))),
        }
        kinds = filling.kinds if len(snapshot.cluster.kinds) > 1 else None
        waiting = bool((snapshot.possible & ~granted).any())
        verdicts = explained(snapshot, filling.gpus, codes, numbers, kinds)
        return Decision(verdicts, end if waiting else float("inf"), end)


@dataclass(slots=True)
class _Filling:
    """A progressive filling in the making: who has got what, and what each tenant holds of each kind."""

    snapshot: Snapshot
    gpus: Int32s
    kinds: Int8s
    free: list[int]
    used: list[list[float]]
    weight: Sequence[float]
    at_turn: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, kept: Flags) -> "_Filling":
        """Only those that keep their GPUs are seated."""
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
        """Seat waiting jobs until nothing more fits."""
        columns = self.snapshot.columns
        attained = np.bincount(columns.tenant, weights=columns.attained, minlength=len(self.used))
        by_tenant = waiting[np.argsort(columns.tenant[waiting], kind="stable")]
        tenants, starts = np.unique(columns.tenant[by_tenant], return_index=True)
        lines = [iter(part.tolist()) for part in np.split(by_tenant, starts[1:])]
        heap = [(self._share(t), attained[t] / self.weight[t], n, t) for n, t in enumerate(tenants.tolist())]
        heapq.heapify(heap)
        least = int(columns.gpus[waiting].min(initial=1))
        seats = _Seats.of(self.snapshot)
        while heap and max(self.free, default=0) >= least:
            share, service, n, tenant = heapq.heappop(heap)
            found = seats.next_that_fits(lines[n], self.free)
            if found is None:
                continue
            job, kind = found
            want = seats.demand[job]
            self.gpus[job], self.kinds[job], self.at_turn[job] = want, kind, share
            self.free[kind] -= want
            self.used[tenant][kind] += want
            heapq.heappush(heap, (self._share(tenant), service, n, tenant))

    def told(self) -> Floats:
        """By job: its tenant's share when its turn came, or in the end."""
        final = np.array([self._share(t) if self.weight[t] else 0.0 for t in range(len(self.used))])
        told: Floats = final[self.snapshot.columns.tenant]
        told[list(self.at_turn)] = list(self.at_turn.values())
        return told

    def _share(self, tenant: int) -> float:
        pairs = zip(self.used[tenant], self.snapshot.cluster.capacity, strict=True)
        return max((used / most for used, most in pairs if most), default=0.0) / self.weight[tenant]


@dataclass(frozen=True, slots=True)
class _Seats:
    """Which kinds each job would take, best first."""

    demand: list[int]
    kinds: list[list[int]]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "_Seats":
        columns = snapshot.columns
        speeds, running = columns.speeds.copy(), np.flatnonzero(columns.held > 0)
        usable = (speeds > 0).sum(axis=1).tolist()
        speeds[running, columns.kind[running]] = np.inf
        ranked = np.argsort(-speeds, axis=1, kind="stable").tolist()
        return cls(columns.gpus.tolist(), [row[:count] for row, count in zip(ranked, usable, strict=True)])

    def next_that_fits(self, line: Iterator[int], free: list[int]) -> tuple[int, int] | None:
        """The next job in a tenant's line that some kind has room for, and that kind."""
        for job in line:
            for kind in self.kinds[job]:
                if free[kind] >= self.demand[job]:
                    return job, kind
        return None
