"""Rack-aware placement: packed, and within one rack whenever one has the room."""

from dataclasses import dataclass
from functools import lru_cache

from shoal.core.decision import Seating, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology
from shoal.placement import packed
from shoal.placement.seating import few_nodes, seat_changes


@dataclass(frozen=True, slots=True)
class RackPlacer:
    """One node if it fits, else the fewest nodes of one rack, else the fewest nodes anywhere."""

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Seats for the jobs whose grant changed."""
        return seat_changes(snapshot, verdicts, find)


@lru_cache(maxsize=8)
def _racks(nodes: tuple[str, ...]) -> tuple[int, ...]:
    sets: dict[str, int] = {}
    for i, rack in enumerate(nodes):
        sets[rack] = sets.get(rack, 0) | 1 << i
    return tuple(sets.values())


def find(cluster: Topology, free: FreeGpus, kind: int, want: int, before: Placement | None) -> Placement | None:
    """The fewest nodes of the rack that fits most tightly, or what packed placement finds across racks."""
    anywhere = packed.find(cluster, free, kind, want, before)
    if anywhere is None or len(anywhere.seats) == 1:
        return anywhere
    best: tuple[int, int, Placement] | None = None
    for rack in _racks(tuple(node.rack for node in cluster.nodes)):
        here = sum(f * (nodes & rack).bit_count() for f, nodes in enumerate(free.sets[kind]))
        if here < want:
            continue
        found = few_nodes(free, kind, want, rack)
        if found is not None and (best is None or (len(found.seats), here) < best[:2]):
            best = (len(found.seats), here, found)
    return best[2] if best is not None else anywhere
