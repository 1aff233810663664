"""Packed placement: few nodes, sticky to where the job ran, wide jobs first."""

from dataclasses import dataclass

from shoal.core.decision import Seating, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology
from shoal.placement.seating import few_nodes, merged, seat_changes


@dataclass(frozen=True, slots=True)
class PackedPlacer:
    """Seats on as few nodes as the free room allows."""

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Seats for the jobs whose grant changed."""
        return seat_changes(snapshot, verdicts, find)


def find(cluster: Topology, free: FreeGpus, kind: int, want: int, before: Placement | None) -> Placement | None:
    """The tightest fit on the fewest nodes; a job that grows or shrinks keeps seats it has where that costs no node."""
    best = few_nodes(free, kind, want)
    if best is None or before is None or cluster.kind_of(before) != kind:
        return best
    kept = keep_some(free, before, want)
    rest = want - kept.gpus
    if rest:
        with_rest = _completed(free, kind, kept, rest)
        if with_rest is None:
            return best
        kept = with_rest
    return kept if len(kept.seats) <= len(best.seats) else best


def keep_some(free: FreeGpus, before: Placement, want: int) -> Placement:
    """As many of the old seats as wanted, and more on the same nodes, those with most room first."""
    seats: list[tuple[int, int]] = []
    for node, _ in sorted(before.seats, key=lambda seat: (-free.node_free[seat[0]], seat[0])):
        take = min(want, free.node_free[node])
        if take:
            seats.append((node, take))
            want -= take
    return Placement(tuple(sorted(seats)))


def _completed(free: FreeGpus, kind: int, kept: Placement, rest: int) -> Placement | None:
    elsewhere = ~sum(1 << node for node in kept.nodes)
    more = few_nodes(free, kind, rest, elsewhere)
    return merged(kept, more) if more is not None else None
