"""Network packing: every job on the fewest machines, no two jobs on one machine's network, moves as a last resort.

Made for shares that are a factor or a multiple of the GPUs per machine (``solve.regulation``): those can always be
seated so. Who runs keeps at least one of its GPUs wherever that can be, then as many as can be; a job that would have
to give up all of them moves only when its seats are needed. Other gangs sit on the fewest machines there are.

Reference: AFS (NSDI '21) §4.4 and Appendix E.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd

import numpy as np
from numpy.typing import NDArray

from shoal.core.decision import Reason, ReasonCode, Refusal, Seating, Verdict, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology
from shoal.placement import packed
from shoal.placement.seating import few_nodes, seat_changes


@dataclass(frozen=True, slots=True)
class NetworkPlacer:
    """Seats everyone anew, each where it was as far as can be."""

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Seats for the jobs whose grant changed, and for those who must make room for them.

        Grants that share GPUs, name their seats or leave the kind open are seated as packed placement does.
        """
        columns, gpus = snapshot.columns, verdicts.gpus
        kinds = _kinds(snapshot, verdicts)
        if kinds is None:
            return seat_changes(snapshot, verdicts, packed.find)
        changed = (gpus != columns.held) | ((gpus > 0) & (columns.held > 0) & (kinds != columns.kind))
        if not changed.any():
            return Seating()
        plan = _NetworkDraft(snapshot, snapshot.free_gpus.thaw())
        overruled: dict[int, Verdict] = {}
        for i in np.flatnonzero((gpus > 0) & (columns.state == JobState.STOPPING)).tolist():
            overruled[i] = Refusal(Reason(ReasonCode.STOPPING))
        wanting = [i for i in np.flatnonzero(gpus > 0).tolist() if i not in overruled]
        plan.clear(np.flatnonzero((columns.held > 0) & (columns.state != JobState.STOPPING)).tolist(), wanting)
        # The widest first: what is left of a machine is then always a multiple of the next share.
        for i in sorted(wanting, key=lambda i: (-int(gpus[i]), columns.held[i] == 0, i)):
            if not plan.seat(i, int(kinds[i]), int(gpus[i])):
                room = plan.free.freeze()
                block = room.largest_block(int(kinds[i]))
                numbers = (int(gpus[i]), room.free[kinds[i]], block)
                overruled[i] = Refusal(Reason(ReasonCode.FRAGMENTED, numbers))
        stays = {i for i in wanting if i not in overruled}
        leaving = [i for i in np.flatnonzero(columns.held > 0).tolist() if i not in stays]
        leaving = [i for i in leaving if columns.state[i] != JobState.STOPPING]
        moved = {i: seats for i, seats in plan.seated.items() if seats != snapshot.placement(i)}
        return Seating(tuple(leaving), moved, overruled)


def _kinds(snapshot: Snapshot, verdicts: Verdicts) -> NDArray[np.int_] | None:
    """The kind each is to sit on; None where the grants say more, or less, than a number of one kind."""
    shares = verdicts.partners is not None and bool((verdicts.partners >= 0).any())
    near = verdicts.consolidated is not None and bool(verdicts.consolidated.any())
    if shares or near or verdicts.placements or snapshot.sharing:
        return None
    if len(snapshot.cluster.kinds) == 1:
        return np.zeros(len(verdicts.gpus), dtype=np.int_)
    if verdicts.kinds is None or bool(((verdicts.kinds < 0) & (verdicts.gpus > 0)).any()):
        return None
    return verdicts.kinds.astype(np.int_)


@dataclass(slots=True)
class _NetworkDraft:
    """One seating in the making: free room, and who of those not yet seated was where."""

    snapshot: Snapshot
    free: FreeGpus
    seated: dict[int, Placement] = field(default_factory=dict)
    claims: dict[int, dict[int, int]] = field(default_factory=dict)
    """By node: GPUs held there, by each job that is to run on."""

    def clear(self, holding: Iterable[int], wanting: Iterable[int]) -> None:
        """Take everyone up from their seats, and remember where those sat who will sit again."""
        again = set(wanting)
        for i in holding:
            seats = self.snapshot.placement(i)
            if seats is None:
                continue
            self.free.give(seats)
            for node, count in seats.seats if i in again else ():
                self.claims.setdefault(node, {})[i] = count

    def seat(self, i: int, kind: int, want: int) -> bool:
        """Seat a job on the fewest machines; whether it could be."""
        machine = machine_gpus(self.snapshot.cluster, kind)
        if want % machine == 0:
            found = self._whole(i, kind, machine, want // machine)
        elif want < machine:
            found = self._part(i, kind, want)
        else:
            found = None
        found = found or few_nodes(self.free, kind, want)
        before = self.snapshot.placement(i)
        for node, _ in before.seats if before is not None else ():
            self.claims.get(node, {}).pop(i, None)
        if found is None:
            return False
        self.free.take(found)
        self.seated[i] = found
        return True

    def _whole(self, i: int, kind: int, machine: int, count: int) -> Placement | None:
        """So many free machines: its own first where nobody else was, then those where the fewest were."""
        nodes = [n for n in self._open(kind, machine) if self.free.node_free[n] == machine]
        if len(nodes) < count:
            return None

        def reluctance(n: int) -> tuple[int, int, int]:
            others = [c for j, c in self.claims.get(n, {}).items() if j != i]
            return len(others) - self._mine(n, i, 1), sum(others) - self._mine(n, i, machine), n

        return Placement(tuple((n, machine) for n in sorted(sorted(nodes, key=reluctance)[:count])))

    def _part(self, i: int, kind: int, want: int) -> Placement | None:
        """A machine with the room: its own if it can, else the tightest where nobody has to move for it."""
        free = self.free.node_free

        def reluctance(n: int) -> tuple[int, int, int, int]:
            crowded = sum(c for j, c in self.claims.get(n, {}).items() if j != i) + want > free[n]
            return int(crowded) - self._mine(n, i, 1), -self._mine(n, i, want), free[n], n

        node = min(self._open(kind, want), key=reluctance, default=None)
        return None if node is None else Placement(((node, want),))

    def _open(self, kind: int, want: int) -> list[int]:
        """Nodes of a kind with so many GPUs free."""
        cluster, free = self.snapshot.cluster, self.free.node_free
        return [n for n, k in enumerate(cluster.node_kind) if k == kind and free[n] >= want]

    def _mine(self, node: int, i: int, most: int) -> int:
        """GPUs the job held on a node, as far as so many count."""
        return min(self.claims.get(node, {}).get(i, 0), most)


def machine_gpus(cluster: Topology, kind: int) -> int:
    """The GPUs per machine of a kind; where machines differ, the largest number that divides them all."""
    return gcd(*(node.gpus for node, k in zip(cluster.nodes, cluster.node_kind, strict=True) if k == kind))
