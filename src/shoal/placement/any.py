"""Placement without regard to distance: the first free GPUs in order of node."""

from dataclasses import dataclass

from shoal.core.decision import Seating, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology
from shoal.placement.seating import seat_changes


@dataclass(frozen=True, slots=True)
class AnyPlacer:
    """Seats every grant for which enough GPUs of one kind are free."""

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Return seats for the jobs whose grant changed."""
        return seat_changes(snapshot, verdicts, find)


def find(cluster: Topology, free: FreeGpus, kind: int, want: int, before: Placement | None) -> Placement | None:
    """Return the first free GPUs in order of node."""
    if free.free[kind] < want:
        return None
    open_nodes = 0
    for nodes in free.sets[kind][1:]:
        open_nodes |= nodes
    seats: list[tuple[int, int]] = []
    while want:
        node = (open_nodes & -open_nodes).bit_length() - 1
        open_nodes ^= 1 << node
        take = min(want, free.node_free[node])
        seats.append((node, take))
        want -= take
    return Placement(tuple(seats))
