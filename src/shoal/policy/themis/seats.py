"""Which seats of an app's bundle each of its jobs gets, where machines are named."""

from collections.abc import Mapping, Sequence

from shoal.core.topology import Placement


def seats_by_job(
    bundle: Sequence[tuple[int, int]], wanted: Mapping[int, int], held: Mapping[int, Placement | None]
) -> dict[int, Placement]:
    """Seats for so many GPUs a job, the widest first, from a bundle that has enough for all.

    A job that can stay where it is does; any other takes the tightest node with room for all of it, or fills the
    fullest ones.
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
        seated[job] = taken_from(free, wanted[job])
    return seated


def both(a: Placement, b: Placement) -> Placement:
    """The seats of both."""
    seats = dict(a.seats)
    for node, count in b.seats:
        seats[node] = seats.get(node, 0) + count
    return Placement(tuple(sorted(seats.items())))


def taken_from(free: dict[int, int], gpus: int) -> Placement:
    """So many GPUs taken out of those free, which must be enough: the tightest node with room, or the fullest ones."""
    taken: list[tuple[int, int]] = []
    while gpus:
        fits = [node for node, count in free.items() if count >= gpus]
        node = min(fits, key=lambda n: (free[n], n)) if fits else max(free, key=lambda n: (free[n], -n))
        count = min(gpus, free[node])
        free[node] -= count
        gpus -= count
        taken.append((node, count))
    return Placement(tuple(sorted(taken)))
