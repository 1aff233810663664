"""Seating common to all placers: keep jobs that need not move, free the seats of those that leave, seat the rest.

Planning uses a copy of the free GPUs that includes the seats of leaving jobs. The widest jobs are seated first. A
running job whose new size cannot be seated keeps its seats. A grant that asks for one node (``consolidated``) is seated
before the others, even if it moves from several nodes to one. If no node has enough free GPUs, the fewest jobs
that did not ask for one node are moved off a node; if that is not enough either, the job is seated like any other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from shoal.core.arrays import Indices
from shoal.core.columns import IntRow
from shoal.core.decision import Grant, Refusal, Seating, Verdict, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.lifecycle import JobState
from shoal.core.reasons import (
    AVOIDS,
    FRAGMENTED,
    KEPT_SEATS,
    NO_KIND,
    NOT_FREE_YET,
    PARTNER_UNSEATED,
    STOPPING,
    Reason,
    ReasonTemplate,
)
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology

Finder: TypeAlias = Callable[[Topology, FreeGpus, int, int, Placement | None], Placement | None]
"""Finds seats: (cluster, free GPUs, kind, GPUs wanted, seats held before or None) → seats, or None."""

Occupants: TypeAlias = dict[int, list[tuple[int, int]]]
"""By node: (GPUs there, position of the job)."""

_STOPPING = int(JobState.STOPPING)
_UNCHANGED = Seating()


def seat_changes(snapshot: Snapshot, verdicts: Verdicts, find: Finder) -> Seating:
    """Return seats for the jobs whose grant differs from what they hold."""
    columns, gpus = snapshot.columns, verdicts.gpus
    if verdicts.plain and not snapshot.sharing:
        numbers = columns.unserved if gpus is columns.gpus else (gpus != columns.held).nonzero()[0].tolist()
        return _SeatingDraft(snapshot, verdicts, find).seat_each(numbers) if numbers else _UNCHANGED
    held = columns.held
    changed = gpus != held
    moves = False
    if verdicts.kinds is not None:
        others = (verdicts.kinds != columns.kind).nonzero()[0]  # few: those that start, leave or move
        elsewhere = others[(gpus[others] > 0) & (held[others] > 0) & (verdicts.kinds[others] >= 0)]
        changed[elsewhere] = True
        moves = len(elsewhere) > 0
    if pinned := verdicts.placements:
        before = snapshot.all_placements
        differing = [i for i, seats in pinned.items() if seats is not before[i] and seats != before[i]]
        changed[list(pinned)] = False
        changed[differing] = gpus[differing] > 0
    named = verdicts.partners is not None and bool(((verdicts.partners >= 0) & (gpus > 0)).any())
    partners = _partners(snapshot, verdicts)
    shared = named or snapshot.sharing
    if verdicts.consolidated is not None:
        for i in np.flatnonzero(verdicts.consolidated & (gpus > 0) & (held > 0) & ~changed).tolist():
            placement = snapshot.placement(i)
            changed[i] = placement is not None and len(placement.seats) > 1
    if shared:
        wanted = np.full(len(columns), -1, dtype=np.int32)
        wanted[list(partners)] = columns.rows[list(partners.values())]
        changed |= ((gpus > 0) | (held > 0)) & (wanted != columns.partner)
    changes = changed.nonzero()[0]
    if not len(changes):
        return _UNCHANGED
    granted = gpus[changes] > 0
    # Jobs that change kinds may take each other's seats, so all of these are freed before any is taken.
    together = shared or moves or verdicts.consolidated is not None or bool(verdicts.placements)
    if not together:
        return _SeatingDraft(snapshot, verdicts, find).seat_each(changes.tolist())
    plan = _SeatingDraft(snapshot, verdicts, find, changes[~granted].tolist())
    return plan.seat_units(changes[granted], partners)


def _partners(snapshot: Snapshot, verdicts: Verdicts) -> dict[int, int]:
    """Return each job's partner, both ways; of two that name the same third job, the first in order of admission."""
    partners: dict[int, int] = {}
    if verdicts.partners is None:
        return partners
    for i in np.flatnonzero((verdicts.partners >= 0) & (verdicts.gpus > 0)).tolist():
        j = int(verdicts.partners[i])
        exclusive = any(snapshot.specs[k].exclusive for k in (i, j))
        if i not in partners and j not in partners and verdicts.gpus[i] == verdicts.gpus[j] and not exclusive:
            partners[i], partners[j] = j, i
    return partners


class _SeatingDraft:
    """A seating in progress. ``displaced`` jobs were moved off a node that another asked for."""

    def __init__(self, snapshot: Snapshot, verdicts: Verdicts, find: Finder, leaving: Sequence[int] = ()) -> None:
        self.snapshot = snapshot
        self.verdicts = verdicts
        self.find = find
        self.free = snapshot.free_gpus.thaw()
        self.leaving = list(leaving)
        self.seated: dict[int, Placement] = {}
        self.overruled: dict[int, Verdict] = {}
        self.displaced: list[int] = []
        self.moving: set[int] = set(leaving)
        self.occupants: dict[int, Occupants] = {}

    def seat_each(self, changes: Sequence[int]) -> Seating:
        """Seat each job separately, one after the other; jobs that are granted nothing give up their seats."""
        columns, gpus = self.snapshot.columns, self.verdicts.gpus
        wanting: list[tuple[bool, int, int, int]] = []
        for i in changes:
            want = gpus.item(i)
            if want:
                held = columns.int_at(IntRow.HELD, i)
                wanting.append((want >= held, -want, i, held))
                continue
            self.leaving.append(i)
            placement = self.snapshot.placement(i)
            if placement is not None:
                self.free.give(placement)
        # Shrinking jobs go first, since they free seats; then the widest, since they are the hardest to seat.
        wanting.sort()
        for _, _, i, held in wanting:
            if columns.int_at(IntRow.STATE, i) == _STOPPING:
                self.overruled[i] = Refusal(Reason(STOPPING))
            else:
                self._seat(i, held)
        return Seating(tuple(self.leaving), self.seated, self.overruled)

    def _seat(self, i: int, held: int) -> None:
        before = self.snapshot.placement(i) if held else None
        if before is not None:
            self.free.give(before)
        found = self._found(i, before)
        if found is not None and found != before:
            take(self.snapshot, self.free, found)
            self.seated[i] = found
        elif before is not None:
            self.free.take(before)
            if found is None:
                self._keep(i, before)
        else:
            self.overruled[i] = Refusal(self._shortage(i, FRAGMENTED))

    def _keep(self, i: int, seats: Placement) -> None:
        self.overruled[i] = Grant(seats.gpus, reason=self._shortage(i, KEPT_SEATS))

    # ── sharing and pinning: a unit is one job, or two on the same GPUs ────────────────────────────────────────

    def seat_units(self, wanting: Indices, partners: Mapping[int, int]) -> Seating:
        """Seat units: one job, or two that share GPUs.

        A unit keeps the seats of a member unless another unit does; all other seats are freed first, so that jobs
        pinned to each other's seats can swap. Pinned jobs are seated before the others. Equal seats need not be the
        same GPUs (two jobs can each hold one on a node), so seats are identified by the group that holds them: a job,
        or a job and its partner.
        """
        self.moving.update(wanting.tolist())
        units = self._units(wanting, partners)
        claims: dict[int, tuple[int, ...]] = {}
        unseated = []
        for unit in units:
            group = next((g for m in unit if (g := self._keeps(m)) is not None and g not in claims), None)
            if group is None:
                unseated.append(unit)
            else:
                claims[group] = unit
        moving = [i for unit in units for i in unit] + self.leaving
        for group, i in {self._group(i): i for i in moving if self.snapshot.columns.held[i]}.items():
            placement = self.snapshot.placement(i)
            if group not in claims and placement is not None:
                self.free.give(placement)
        for group, unit in claims.items():
            host = next(m for m in unit if self._group(m) == group and self.snapshot.columns.held[m])
            seats = self.snapshot.placement(host)
            self.seated |= {m: seats for m in unit if self._group(m) != group and seats is not None}
        pins = self.verdicts.placements
        unseated.sort(
            key=lambda unit: (unit[0] not in pins, not self._one_node(unit[0]), -int(self.verdicts.gpus[unit[0]]), unit)
        )
        for unit in unseated:
            self._seat_unit(unit)
        for i in self.displaced:
            self._seat_unit((i,))
        return Seating(tuple(sorted(self.leaving)), self.seated, self.overruled)

    def _units(self, wanting: Indices, partners: Mapping[int, int]) -> list[tuple[int, ...]]:
        columns = self.snapshot.columns
        units: list[tuple[int, ...]] = []
        for i in wanting.tolist():
            partner = partners.get(i, -1)
            if columns.state[i] == _STOPPING:
                self.overruled[i] = Refusal(Reason(STOPPING))
            elif self._exclusive(i):
                units.append((i,))
            elif partner < 0 and self.verdicts.partners is not None and self.verdicts.partners[i] >= 0:
                # The policy meant GPUs that the job would share; alone it might take another job's.
                self._refuse(i, Reason(PARTNER_UNSEATED, (self.snapshot.ids[self.verdicts.partners[i]],)))
            elif partner < 0 or columns.state[partner] == _STOPPING:
                units.append((i,))
            elif i < partner:
                units.append((i, partner))
        return units

    def _group(self, i: int) -> int:
        """Return the lowest admission number among the jobs on this job's seats."""
        row, partner = int(self.snapshot.columns.rows[i]), int(self.snapshot.columns.partner[i])
        return min(row, partner) if partner >= 0 else row

    def _keeps(self, i: int) -> int | None:
        """Return the group whose seats a running job keeps, or None if they do not match its grant."""
        before = self.snapshot.placement(i)
        if before is None or before.gpus != self.verdicts.gpus[i] or (self._one_node(i) and len(before.seats) > 1):
            return None
        fits = self._kind(i) in (-1, self.snapshot.columns.kind[i])
        return self._group(i) if fits and self.verdicts.placements.get(i, before) == before else None

    def _seat_unit(self, unit: tuple[int, ...]) -> None:
        """Find new seats for a unit; if there are none, a single job keeps its seats if still free, and others wait."""
        before = self.snapshot.placement(unit[0])
        found = self._found(unit[0], before)
        if found is not None:
            take(self.snapshot, self.free, found)
            if found != before or not self._one_node(unit[0]):
                self.seated |= dict.fromkeys(unit, found)
            return
        if before is not None and len(unit) == 1 and self.snapshot.columns.partner[unit[0]] < 0 and self._open(before):
            self.free.take(before)
            self._keep(unit[0], before)
            return
        self._refuse(unit[0], self._shortage(unit[0], FRAGMENTED))
        for partner in unit[1:]:
            self._refuse(partner, Reason(PARTNER_UNSEATED, (self.snapshot.ids[unit[0]],)))

    def _refuse(self, i: int, reason: Reason) -> None:
        self.overruled[i] = Refusal(reason)
        if self.snapshot.columns.held[i]:
            self.leaving.append(i)

    # ── finding seats ─────────────────────────────────────────────────────────────────────────────────────────

    def _found(self, i: int, before: Placement | None) -> Placement | None:
        if not self.snapshot.avoided and not self.verdicts.placements:
            return self._search(i, before)
        with avoiding(self.snapshot, self.free, i, int(self.verdicts.gpus[i])) as avoided:
            pinned = self.verdicts.placements.get(i)
            unfit = pinned is not None and self._exclusive(i) and not on_whole_nodes(self.snapshot.cluster, pinned)
            if pinned is None or unfit or not avoided.isdisjoint(pinned.nodes):
                return self._search(i, before)
            closed = pinned != before and not self.free.closed.keys().isdisjoint(pinned.nodes)
            return pinned if self._open(pinned) and not closed else None

    def _search(self, i: int, before: Placement | None) -> Placement | None:
        columns, kind = self.snapshot.columns, self._kind(i)
        if kind >= 0:
            return self._on_kind(i, kind, before)
        if len(self.snapshot.cluster.kinds) == 1:
            able = self.snapshot.all_possible or self.snapshot.possible[i]
            return self._on_kind(i, 0, before) if able else None
        speeds = columns.speeds[i]
        order = np.argsort(-speeds, kind="stable")
        found = (self._on_kind(i, int(k), before) for k in order if speeds[k] > 0)
        return next((placement for placement in found if placement is not None), None)

    def _on_kind(self, i: int, kind: int, before: Placement | None) -> Placement | None:
        want = self.verdicts.gpus.item(i)
        if self._exclusive(i):
            return whole_nodes(self.free, kind, want)
        found = self._on_one_node(i, kind, before) if self._one_node(i) else None
        return found or self.find(self.snapshot.cluster, self.free, kind, want, before)

    def _exclusive(self, i: int) -> bool:
        return self.snapshot.register.specs[self.snapshot.columns.rows.item(i)].exclusive

    def _kind(self, i: int) -> int:
        return int(self.verdicts.kinds[i]) if self.verdicts.kinds is not None else -1

    def _one_node(self, i: int) -> bool:
        return self.verdicts.consolidated is not None and bool(self.verdicts.consolidated[i])

    def _on_one_node(self, i: int, kind: int, before: Placement | None) -> Placement | None:
        """Return seats on one node, displacing other jobs if needed; else the job's own seats if still free."""
        want = int(self.verdicts.gpus[i])
        node = tightest(self.free.sets[kind], want)
        node = self._clear_node(kind, want) if node is None else node
        if node is not None:
            return Placement(((node, want),))
        stays = before is not None and before.gpus == want and self.snapshot.cluster.kind_of(before) == kind
        return before if before is not None and stays and self._open(before) else None

    def _clear_node(self, kind: int, want: int) -> int | None:
        """Return the node where the fewest jobs must move for ``want`` GPUs, and displace them; else None."""
        if self.free.free[kind] < want:
            return None
        if kind not in self.occupants:
            self.occupants[kind] = self._displaceable(kind)
        best: tuple[int, int, list[int]] | None = None
        for node, occupants in self.occupants[kind].items():
            moved = _fewest(occupants, want - self.free.node_free[node])
            if moved is not None and (best is None or (len(moved), node) < best[:2]):
                best = len(moved), node, moved
        if best is None:
            return None
        for i in best[2]:
            seats = self.snapshot.placement(i)
            if seats is not None:
                self.free.give(seats)
                for node, count in seats.seats:
                    self.occupants[kind][node].remove((count, i))
        self.displaced += best[2]
        return best[1]

    def _displaceable(self, kind: int) -> Occupants:
        """Return the jobs that may be displaced: not sharing, not moving, and not placed by request."""
        columns = self.snapshot.columns
        occupants: Occupants = {}
        alone = (columns.kind == kind) & (columns.partner < 0) & (columns.state != _STOPPING)
        for i in np.flatnonzero(alone).tolist():
            seats = self.snapshot.placement(i)
            if seats is not None and not (i in self.moving or i in self.verdicts.placements or self._one_node(i)):
                for node, count in seats.seats:
                    occupants.setdefault(node, []).append((count, i))
        return occupants

    def _open(self, placement: Placement) -> bool:
        free, closed = self.free.node_free, self.free.closed
        return all(closed.get(node, free[node]) >= count for node, count in placement.seats)

    def _shortage(self, i: int, template: ReasonTemplate) -> Reason:
        frozen, kind = self.free.freeze(), self._kind(i)
        usable = np.flatnonzero(self.snapshot.columns.speeds[i] > 0).tolist()
        kinds = usable if kind < 0 else [kind]
        if not kinds:
            return Reason(NO_KIND, (", ".join(self.snapshot.cluster.kinds),))
        if template is FRAGMENTED and (nodes := avoided_nodes(self.snapshot, i, int(self.verdicts.gpus[i]))):
            return avoids(self.snapshot, nodes)
        free, block = sum(frozen.free[k] for k in kinds), max(frozen.largest_block(k) for k in kinds)
        held, want = int(self.snapshot.columns.held[i]), int(self.verdicts.gpus[i])
        return (
            Reason(KEPT_SEATS, (held, want, free, block))
            if template is KEPT_SEATS
            else no_seats(self.snapshot, kinds, free, block, want)
        )


def no_seats(snapshot: Snapshot, kinds: Sequence[int], free: int, block: int, want: int) -> Reason:
    """Return the reason of a grant that finds no seats: runs of cancelled jobs hold them, or they are scattered."""
    node_kind = snapshot.cluster.node_kind
    ending = sum(gpus for node, gpus in snapshot.ending.items() if node_kind[node] in kinds)
    return Reason(NOT_FREE_YET, (want, free, ending)) if ending else Reason(FRAGMENTED, (free, block, want))


def avoided_nodes(snapshot: Snapshot, i: int, want: int) -> frozenset[int]:
    """Return the nodes that a job must not be seated on; none if without them no kind it can use has enough GPUs."""
    job = int(snapshot.columns.rows[i])
    avoided = snapshot.avoided.get(job)
    if not avoided or job in snapshot.suspensions.runs:  # a suspended run can be resumed on its own node only
        return frozenset()
    cluster, speeds = snapshot.cluster, snapshot.columns.speeds[i]
    left = list(cluster.capacity)
    for node in avoided:
        left[cluster.node_kind[node]] -= cluster.usable[node]
    return avoided if any(gpus >= want for gpus, speed in zip(left, speeds, strict=True) if speed > 0) else frozenset()


@contextmanager
def avoiding(snapshot: Snapshot, free: FreeGpus, i: int, want: int) -> Iterator[frozenset[int]]:
    """Close, for as long as the context lasts, the nodes that a job avoids; yield them."""
    avoided = avoided_nodes(snapshot, i, want)
    opened = avoided - free.closed.keys()
    for node in opened:
        free.close(node)
    yield avoided
    for node in opened:
        free.open(node)


def take(snapshot: Snapshot, free: FreeGpus, placement: Placement) -> None:
    """Occupy new seats, and close the nodes among them that are probed with one start."""
    free.take(placement)
    for node in () if not snapshot.probed else snapshot.probed.intersection(placement.nodes):
        free.close(node)


def avoids(snapshot: Snapshot, nodes: frozenset[int]) -> Reason:
    """Return the reason of a job that finds no seats except on nodes that could not start it."""
    return Reason(AVOIDS, (", ".join(snapshot.cluster.nodes[node].name for node in sorted(nodes)),))


def _fewest(occupants: Sequence[tuple[int, int]], gpus: int) -> list[int] | None:
    """Return the fewest jobs that hold ``gpus`` GPUs together, the last as narrow as possible; None if too few."""
    left, moved = sorted(occupants), list[int]()
    while gpus > 0 and left:
        at = next((at for at, (count, _) in enumerate(left) if count >= gpus), len(left) - 1)
        count, i = left.pop(at)
        gpus -= count
        moved.append(i)
    return moved if gpus <= 0 else None


def tightest(sets: Sequence[int], want: int, among: int = -1) -> int | None:
    """Return the first of the nodes with the fewest free GPUs, at least ``want``; ``among`` masks allowed nodes."""
    for free in range(want, len(sets)):
        nodes = sets[free] & among
        if nodes:
            return (nodes & -nodes).bit_length() - 1
    return None


def whole_nodes(free: FreeGpus, kind: int, want: int) -> Placement | None:
    """Return seats on nodes that are entirely free and become entirely used; kinds have nodes of one size."""
    size = len(free.sets[kind]) - 1
    return few_nodes(free, kind, want, free.sets[kind][size]) if want % size == 0 else None


def on_whole_nodes(cluster: Topology, placement: Placement) -> bool:
    """Return whether the seats are all GPUs of their nodes."""
    return all(cluster.nodes[node].gpus == count for node, count in placement.seats)


def few_nodes(free: FreeGpus, kind: int, want: int, among: int = -1) -> Placement | None:
    """Return seats on the fewest nodes: those with the most free GPUs first, the rest on the tightest that fits."""
    sets = free.sets[kind]
    one = tightest(sets, want, among) if 0 < want < len(sets) else None
    if one is not None:
        return Placement(((one, want),))
    seats: list[tuple[int, int]] = []
    used = 0
    for most in range(len(sets) - 1, 0, -1):
        nodes = sets[most] & among
        while nodes and want > most:
            lowest = nodes & -nodes
            nodes ^= lowest
            used |= lowest
            seats.append((lowest.bit_length() - 1, most))
            want -= most
        if nodes:
            node = tightest(sets, want, among & ~used)
            assert node is not None  # one of ``nodes`` fits
            seats.append((node, want))
            return Placement(tuple(sorted(seats)))
    return None
