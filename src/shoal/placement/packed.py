"""Packed placement: as few nodes as possible; a resized job keeps its seats where that costs no node."""

from dataclasses import dataclass

from shoal.core.decision import Seating, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology
from shoal.placement.seating import few_nodes, seat_changes


@dataclass(frozen=True, slots=True)
class PackedPlacer:
    """Seats each job on as few nodes as the free GPUs allow."""

    def place(self, snapshot: Snapshot, verdicts: Verdicts) -> Seating:
        """Return seats for the jobs whose grant changed."""
        return seat_changes(snapshot, verdicts, find)


def find(cluster: Topology, free: FreeGpus, kind: int, want: int, before: Placement | None) -> Placement | None:
    """Return the tightest fit on the fewest nodes, with seats held ``before`` if these take no more nodes."""
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
    """Return up to ``want`` seats on the nodes held before, those with the most free GPUs first."""
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
    return Placement(tuple(sorted(kept.seats + more.seats))) if more is not None else None
