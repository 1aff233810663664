"""Seats: the free GPUs of an auction by node, and an app's bundle divided among its jobs, where bids name machines."""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.core.arrays import Int64s
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement


def seats_by_job(
    bundle: Sequence[tuple[int, int]], wanted: Mapping[int, int], held: Mapping[int, Placement | None]
) -> dict[int, Placement]:
    """Seats for the ``wanted`` GPUs of each job, the widest first, from a bundle that has enough for all.

    A job that can stay on its seats does; the others are placed by `take_seats`.
    """
    free = dict(bundle)
    seated: dict[int, Placement] = {}
    for job, seats in held.items():
        stays = seats is not None and seats.gpus == wanted[job] and all(free.get(n, 0) >= c for n, c in seats.seats)
        if seats is not None and stays:
            seated[job] = seats
            for node, count in seats.seats:
                free[node] -= count
    for job in sorted(wanted.keys() - seated.keys(), key=lambda job: (-wanted[job], job)):
        seated[job] = take_seats(free, wanted[job])
    return seated


def joined(a: Placement, b: Placement) -> Placement:
    """The seats of both placements."""
    seats = dict(a.seats)
    for node, count in b.seats:
        seats[node] = seats.get(node, 0) + count
    return Placement(tuple(sorted(seats.items())))


def take_seats(free: dict[int, int], gpus: int) -> Placement:
    """Take GPUs out of ``free``, which must have enough: the tightest node that has all, or those with the most."""
    taken: list[tuple[int, int]] = []
    while gpus:
        fits = [node for node, count in free.items() if count >= gpus]
        node = min(fits, key=lambda n: (free[n], n)) if fits else max(free, key=lambda n: (free[n], -n))
        count = min(gpus, free[node])
        free[node] -= count
        gpus -= count
        taken.append((node, count))
    return Placement(tuple(sorted(taken)))


def free_by_node(snapshot: Snapshot, kind: int, node_kind: Int64s, held: Int64s) -> dict[int, int]:
    """Return the free GPUs by node of a kind, after each job has given up its GPUs of the kind except ``held`` ones."""
    columns, cluster = snapshot.columns, snapshot.cluster
    leaving: list[tuple[Placement, int]] = []
    for i in np.flatnonzero((columns.held > held) & (columns.kind == kind)).tolist():
        seats, partner = snapshot.placement(i), columns.partner.item(i)
        # GPUs that two jobs share are freed once.
        if seats is not None and not (partner >= 0 and 0 <= snapshot.position_of(partner) < i):
            leaving.append((seats, seats.gpus - min(int(held[i]), seats.gpus)))
    node_free = np.frombuffer(snapshot.free_gpus.node_free, dtype=np.uint8)
    nodes = set(np.flatnonzero((node_free > 0) & (node_kind == kind)).tolist())
    nodes |= {node for seats, _ in leaving for node, _ in seats.seats if cluster.node_kind[node] == kind}
    free = {node: int(node_free[node]) for node in sorted(nodes) if node not in cluster.down}
    for seats, gpus in leaving:
        left = gpus
        for node, count in sorted(seats.seats, key=lambda seat: seat[1]) if left else ():
            free[node] = free.get(node, 0) + min(count, left)
            left -= min(count, left)
    return free
