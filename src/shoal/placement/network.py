"""Network packing: each job on the fewest machines, no two jobs on one machine's network, as few moves as possible.

Made for shares that are a factor or a multiple of the GPUs per machine (``solve.network_packing``), which can always be
seated so. A running job keeps at least one of its GPUs where possible, then as many as possible; it gives up all of
them only if they are needed for others. Other gangs get the fewest machines.

Reference: AFS (NSDI '21) §4.4 and Appendix E.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd

import numpy as np
from numpy.typing import NDArray

from shoal.core.arrays import Flags
from shoal.core.decision import Refusal, Seating, Verdict, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.lifecycle import JobState
from shoal.core.reasons import STOPPING, Reason
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology
from shoal.placement import packed
from shoal.placement.seating import avoided_nodes, avoiding, avoids, few_nodes, no_seats, seat_changes, take


@dataclass(frozen=True, slots=True)
class NetworkPlacer:
    """Seats all jobs again at every change, each where it was if possible."""

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Return seats for the jobs whose grant changed, and for those that must move for them.

        If any grant shares GPUs, names its seats, asks for one node or leaves the kind open, placement is packed.
        """
        columns, gpus = snapshot.columns, verdicts.gpus
        kinds = _kinds(snapshot, verdicts)
        if kinds is None:
            return seat_changes(snapshot, verdicts, packed.find)
        changed = (gpus != columns.held) | ((gpus > 0) & (columns.held > 0) & (kinds != columns.kind))
        if not changed.any():
            return Seating()
        stopping = columns.state == JobState.STOPPING
        overruled: dict[int, Verdict] = {
            i: Refusal(Reason(STOPPING)) for i in np.flatnonzero((gpus > 0) & stopping).tolist()
        }
        fixed = (_on_closed_nodes(snapshot) | snapshot.unstoppable) & ~changed
        wanting = np.flatnonzero((gpus > 0) & ~stopping & ~fixed).tolist()
        holding = np.flatnonzero((columns.held > 0) & ~stopping & ~fixed).tolist()
        plan = _NetworkDraft(snapshot, snapshot.free_gpus.thaw())
        plan.clear(holding, wanting)
        # The widest first: what is left of a machine is then always a multiple of the next share.
        for i in sorted(wanting, key=lambda i: (-int(gpus[i]), columns.held[i] == 0, i)):
            if not plan.seat(i, int(kinds[i]), int(gpus[i])):
                free = plan.free.freeze()
                kind, want = int(kinds[i]), int(gpus[i])
                nodes = avoided_nodes(snapshot, i, want)
                short = no_seats(snapshot, (kind,), free.free[kind], free.largest_block(kind), want)
                overruled[i] = Refusal(avoids(snapshot, nodes) if nodes else short)
        moved = {i: seats for i, seats in plan.seated.items() if seats != snapshot.placement(i)}
        return Seating(tuple(i for i in holding if i not in plan.seated), moved, overruled)


def _on_closed_nodes(snapshot: Snapshot) -> Flags:
    """Return by position whether a job holds seats on a node that is closed, as drained nodes are."""
    closed = snapshot.free_gpus.closed
    flags = np.zeros(len(snapshot.columns), dtype=bool)
    for i in np.flatnonzero(snapshot.columns.held > 0).tolist() if closed else ():
        seats = snapshot.placement(i)
        flags[i] = seats is not None and not closed.isdisjoint(seats.nodes)
    return flags


def _kinds(snapshot: Snapshot, verdicts: Verdicts) -> NDArray[np.int_] | None:
    """Return each job's kind; None if any grant specifies more or less than a number of GPUs of one kind."""
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
    """A seating in progress: the free GPUs, and the former seats of jobs that are not yet seated again."""

    snapshot: Snapshot
    free: FreeGpus
    seated: dict[int, Placement] = field(default_factory=dict)
    claims: dict[int, dict[int, int]] = field(default_factory=dict)
    """By node, for each job that is not yet seated again: the GPUs it held there."""

    def clear(self, holding: Iterable[int], wanting: Iterable[int]) -> None:
        """Free the seats of all jobs, and record those of the jobs in ``wanting``."""
        again = set(wanting)
        for i in holding:
            seats = self.snapshot.placement(i)
            if seats is None:
                continue
            self.free.give(seats)
            for node, count in seats.seats if i in again else ():
                self.claims.setdefault(node, {})[i] = count

    def seat(self, i: int, kind: int, want: int) -> bool:
        """Seat a job on the fewest machines; return whether that was possible."""
        with avoiding(self.snapshot, self.free, i, want):
            found = self._found(i, kind, want)
        before = self.snapshot.placement(i)
        for node, _ in before.seats if before is not None else ():
            self.claims.get(node, {}).pop(i, None)
        if found is None:
            return False
        take(self.snapshot, self.free, found)
        self.seated[i] = found
        return True

    def _found(self, i: int, kind: int, want: int) -> Placement | None:
        machine = machine_gpus(self.snapshot.cluster, kind)
        if want % machine == 0:
            found = self._whole_machines(i, kind, machine, want // machine)
        elif want < machine:
            found = self._part_of_machine(i, kind, want)
        else:
            found = None
        exclusive = self.snapshot.register.specs[int(self.snapshot.columns.rows[i])].exclusive
        return found if exclusive else found or few_nodes(self.free, kind, want)

    def _whole_machines(self, i: int, kind: int, machine: int, count: int) -> Placement | None:
        """Return ``count`` free machines: first those the job held alone, then those held by the fewest other jobs."""
        nodes = [n for n in self._nodes_with_free(kind, machine) if self.free.node_free[n] == machine]
        if len(nodes) < count:
            return None

        def reluctance(n: int) -> tuple[int, int, int]:
            others = [c for j, c in self.claims.get(n, {}).items() if j != i]
            return len(others) - self._held_before(n, i, 1), sum(others) - self._held_before(n, i, machine), n

        return Placement(tuple((n, machine) for n in sorted(sorted(nodes, key=reluctance)[:count])))

    def _part_of_machine(self, i: int, kind: int, want: int) -> Placement | None:
        """Return seats on one machine: the job's former one if possible, else the tightest from which no job moves."""
        free = self.free.node_free

        def reluctance(n: int) -> tuple[int, int, int, int]:
            crowded = sum(c for j, c in self.claims.get(n, {}).items() if j != i) + want > free[n]
            return int(crowded) - self._held_before(n, i, 1), -self._held_before(n, i, want), free[n], n

        node = min(self._nodes_with_free(kind, want), key=reluctance, default=None)
        return None if node is None else Placement(((node, want),))

    def _nodes_with_free(self, kind: int, want: int) -> list[int]:
        cluster, free = self.snapshot.cluster, self.free.node_free
        return [n for n, k in enumerate(cluster.node_kind) if k == kind and free[n] >= want]

    def _held_before(self, node: int, i: int, most: int) -> int:
        """Return the GPUs the job held on a node, at most ``most``."""
        return min(self.claims.get(node, {}).get(i, 0), most)


def machine_gpus(cluster: Topology, kind: int) -> int:
    """Return the GPUs per machine of a kind; if machines differ, their greatest common divisor."""
    return gcd(*(node.gpus for node, k in zip(cluster.nodes, cluster.node_kind, strict=True) if k == kind))
