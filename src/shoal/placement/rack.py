"""Rack-aware placement: packed, and within one rack whenever one has enough free GPUs."""

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
    """Seats each job on one node if it fits, else on the fewest nodes of one rack, else on the fewest nodes."""

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Return seats for the jobs whose grant changed."""
        return seat_changes(snapshot, verdicts, find)


@lru_cache(maxsize=8)
def _racks(node_racks: tuple[str, ...]) -> tuple[int, ...]:
    """Return the bit set of nodes of each rack."""
    sets: dict[str, int] = {}
    for i, rack in enumerate(node_racks):
        sets[rack] = sets.get(rack, 0) | 1 << i
    return tuple(sets.values())


def find(cluster: Topology, free: FreeGpus, kind: int, want: int, before: Placement | None) -> Placement | None:
    """Return the fewest nodes of one rack (of equal racks, of that with the fewest free GPUs); else packed seats."""
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
