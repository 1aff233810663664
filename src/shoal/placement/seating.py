"""What every placer shares: keep who need not move, free who leaves, then seat the rest, widest first.

Planning happens on a copy of the free room with the leaving jobs' seats already in it, so nothing is stopped before
it is known what will sit there. A running job whose new size cannot be seated keeps the seats it has. A grant that asks
for one node is seated before the others and moves there from several. If no node has the room, the fewest jobs that did
not ask for theirs move out of one; where that would not do either it sits as any other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from shoal.core.arrays import Indices
from shoal.core.decision import Grant, Reason, ReasonCode, Refusal, Seating, Verdict, Verdicts
from shoal.core.free_gpus import FreeGpus
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, Topology

Finder: TypeAlias = Callable[[Topology, FreeGpus, int, int, Placement | None], Placement | None]
"""Finds seats: (cluster, free room, kind, GPUs, seats held before or None) → seats, or None if there are none."""


Guests: TypeAlias = dict[int, list[tuple[int, int]]]
"""By node: (GPUs there, job)."""


def seat_changes(snapshot: Snapshot, verdicts: Verdicts, find: Finder) -> Seating:
    """Seats for the jobs whose grant differs from what they hold."""
    columns, gpus = snapshot.columns, verdicts.gpus
    held = columns.held
    changed = gpus != held
    moves = False
    if verdicts.kinds is not None:
        elsewhere = (gpus > 0) & (held > 0) & (verdicts.kinds >= 0) & (verdicts.kinds != columns.kind)
        changed |= elsewhere
        moves = bool(elsewhere.any())
    for i, placement in verdicts.placements.items():
        changed[i] = gpus[i] > 0 and placement != snapshot.placement(i)
    named = verdicts.partners is not None and bool(((verdicts.partners >= 0) & (gpus > 0)).any())
    mates = _mates(verdicts)
    shared = named or snapshot.sharing
    near = verdicts.consolidated is not None
    if verdicts.consolidated is not None:
        for i in np.flatnonzero(verdicts.consolidated & (gpus > 0) & (held > 0) & ~changed).tolist():
            changed[i] = _scattered(snapshot.placement(i))
    if shared:
        wanted = np.full(len(columns), -1, dtype=np.int32)
        wanted[list(mates)] = columns.rows[list(mates.values())]
        changed |= ((gpus > 0) | (held > 0)) & (wanted != columns.partner)
    if not changed.any():
        return Seating()
    granted = gpus > 0
    wanting = (changed & granted).nonzero()[0]
    leaving = (changed & ~granted).nonzero()[0].tolist()
    plan = _SeatingDraft(snapshot, verdicts, find, leaving)
    # Jobs that change kinds may take each other's seats, so all of them must come free before anyone sits down.
    together = shared or moves or near or bool(verdicts.placements)
    return plan.seat_units(wanting, mates) if together else plan.seat_each(wanting)


def _scattered(placement: Placement | None) -> bool:
    return placement is not None and len(placement.seats) > 1


def _mates(verdicts: Verdicts) -> dict[int, int]:
    """Who is to share with whom, both ways; of two who name the same third, the first in order of admission."""
    mates: dict[int, int] = {}
    if verdicts.partners is None:
        return mates
    for i in np.flatnonzero((verdicts.partners >= 0) & (verdicts.gpus > 0)).tolist():
        j = int(verdicts.partners[i])
        if i not in mates and j not in mates and verdicts.gpus[i] == verdicts.gpus[j]:
            mates[i], mates[j] = j, i
    return mates


_STOPPING = int(JobState.STOPPING)


class _SeatingDraft:
    """One seating in the making."""

    def __init__(self, snapshot: Snapshot, verdicts: Verdicts, find: Finder, leaving: Sequence[int]) -> None:
        self.snapshot = snapshot
        self.verdicts = verdicts
        self.find = find
        self.free = snapshot.free_gpus.thaw()
        self.leaving = list(leaving)
        self.seated: dict[int, Placement] = {}
        self.overruled: dict[int, Verdict] = {}
        self.displaced: list[int] = []
        self.moving: set[int] = set(leaving)
        self.guests: dict[int, Guests] = {}

    def seat_each(self, wanting: Indices) -> Seating:
        """Everyone sits alone."""
        columns, gpus = self.snapshot.columns, self.verdicts.gpus
        for i in self.leaving:
            placement = self.snapshot.placement(i)
            if placement is not None:
                self.free.give(placement)
        state = columns.state
        sizes = zip(gpus[wanting].tolist(), columns.held[wanting].tolist(), wanting.tolist(), strict=True)
        # Shrinking jobs go first, since they only give; then the widest, since they are the hardest to seat.
        for _, _, i in sorted((want >= held, -want, i) for want, held, i in sizes):
            if state[i] == _STOPPING:
                self.overruled[i] = Refusal(Reason(ReasonCode.STOPPING))
            else:
                self._seat(i)
        return Seating(tuple(self.leaving), self.seated, self.overruled)

    def _seat(self, i: int) -> None:
        before = self.snapshot.placement(i)
        if before is not None:
            self.free.give(before)
        found = self._found(i, before)
        if found is not None and found != before:
            self.free.take(found)
            self.seated[i] = found
        elif before is not None:
            self.free.take(before)
            if found is None:
                self.overruled[i] = Grant(before.gpus, reason=self._short(i, ReasonCode.KEPT_SEATS))
        else:
            self.overruled[i] = Refusal(self._short(i, ReasonCode.FRAGMENTED))

    # ── sharing and pinning: the unit that is seated is a job alone, or two on the same GPUs ──────────────────

    def seat_units(self, wanting: Indices, mates: Mapping[int, int]) -> Seating:
        """Units keep the seats of a member where no other unit does; all other seats of theirs come free first.

        So jobs pinned to each other's seats can swap; those pinned sit down before those who take what is left.
        Equal seats are not the same GPUs (two jobs can each hold one on a node), so who sits where is told by the
        group that holds them: a job, or it and the one it shares with.
        """
        self.moving.update(wanting.tolist())
        units = self._units(wanting, mates)
        claims: dict[int, tuple[int, ...]] = {}
        homeless = []
        for unit in units:
            group = next((g for m in unit if (g := self._keeps(m)) is not None and g not in claims), None)
            if group is None:
                homeless.append(unit)
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
        homeless.sort(
            key=lambda unit: (unit[0] not in pins, not self._near(unit[0]), -int(self.verdicts.gpus[unit[0]]), unit)
        )
        for unit in homeless:
            self._seat_unit(unit)
        for i in self.displaced:
            self._seat_unit((i,))
        return Seating(tuple(sorted(self.leaving)), self.seated, self.overruled)

    def _units(self, wanting: Indices, mates: Mapping[int, int]) -> list[tuple[int, ...]]:
        columns = self.snapshot.columns
        units: list[tuple[int, ...]] = []
        for i in wanting.tolist():
            mate = mates.get(i, -1)
            if columns.state[i] == _STOPPING:
                self.overruled[i] = Refusal(Reason(ReasonCode.STOPPING))
            elif mate < 0 and self.verdicts.partners is not None and self.verdicts.partners[i] >= 0:
                # The policy counted on GPUs it has not given: alone the job might take another's.
                self._refuse(i, Reason(ReasonCode.PARTNER_UNSEATED, (self.snapshot.ids[self.verdicts.partners[i]],)))
            elif mate < 0 or columns.state[mate] == _STOPPING:
                units.append((i,))
            elif i < mate:
                units.append((i, mate))
        return units

    def _group(self, i: int) -> int:
        """The lowest admission number among those who sit on this job's seats."""
        row, partner = int(self.snapshot.columns.rows[i]), int(self.snapshot.columns.partner[i])
        return min(row, partner) if partner >= 0 else row

    def _keeps(self, i: int) -> int | None:
        """The group whose seats a running job may stay on, if they are what it was granted."""
        before = self.snapshot.placement(i)
        if before is None or before.gpus != self.verdicts.gpus[i] or (self._near(i) and _scattered(before)):
            return None
        kind = int(self.verdicts.kinds[i]) if self.verdicts.kinds is not None else -1
        fits = kind < 0 or kind == self.snapshot.columns.kind[i]
        return self._group(i) if fits and self.verdicts.placements.get(i, before) == before else None

    def _seat_unit(self, unit: tuple[int, ...]) -> None:
        """New seats for a unit; who cannot have them keeps its own if they are still free, and waits otherwise."""
        before = self.snapshot.placement(unit[0])
        found = self._found(unit[0], before)
        if found is not None:
            self.free.take(found)
            if found != before or not self._near(unit[0]):
                self.seated |= dict.fromkeys(unit, found)
            return
        if before is not None and len(unit) == 1 and self.snapshot.columns.partner[unit[0]] < 0 and self._open(before):
            self.free.take(before)
            self.overruled[unit[0]] = Grant(before.gpus, reason=self._short(unit[0], ReasonCode.KEPT_SEATS))
            return
        self._refuse(unit[0], self._short(unit[0], ReasonCode.FRAGMENTED))
        for guest in unit[1:]:
            self._refuse(guest, Reason(ReasonCode.PARTNER_UNSEATED, (self.snapshot.ids[unit[0]],)))

    def _refuse(self, i: int, reason: Reason) -> None:
        self.overruled[i] = Refusal(reason)
        if self.snapshot.columns.held[i]:
            self.leaving.append(i)

    # ── finding seats ─────────────────────────────────────────────────────────────────────────────────────────

    def _found(self, i: int, before: Placement | None) -> Placement | None:
        pinned = self.verdicts.placements.get(i)
        if pinned is not None:
            return pinned if self._open(pinned) else None
        kind = int(self.verdicts.kinds[i]) if self.verdicts.kinds is not None else -1
        if kind >= 0:
            return self._on(i, kind, before)
        if len(self.snapshot.cluster.kinds) == 1:
            return self._on(i, 0, before) if self.snapshot.possible[i] else None
        speeds = self.snapshot.columns.speeds[i]
        order = np.argsort(-speeds, kind="stable")
        found = (self._on(i, int(k), before) for k in order if speeds[k] > 0)
        return next((placement for placement in found if placement is not None), None)

    def _on(self, i: int, kind: int, before: Placement | None) -> Placement | None:
        found = self._on_one_node(i, kind, before) if self._near(i) else None
        return found or self.find(self.snapshot.cluster, self.free, kind, int(self.verdicts.gpus[i]), before)

    def _near(self, i: int) -> bool:
        return self.verdicts.consolidated is not None and bool(self.verdicts.consolidated[i])

    def _on_one_node(self, i: int, kind: int, before: Placement | None) -> Placement | None:
        """The node a job asks for, where one has the room or can be given it; else the seats it has, if still free."""
        want = int(self.verdicts.gpus[i])
        node = tightest(self.free.sets[kind], want)
        node = self._cleared(kind, want) if node is None else node
        if node is not None:
            return Placement(((node, want),))
        stays = before is not None and before.gpus == want and self.snapshot.cluster.kind_of(before) == kind
        return before if before is not None and stays and self._open(before) else None

    def _cleared(self, kind: int, want: int) -> int | None:
        """The node on which the fewest must move for so much room; they are asked to, and sit down after the others."""
        if self.free.free[kind] < want:
            return None
        if kind not in self.guests:
            self.guests[kind] = self._staying(kind)
        best: tuple[int, int, list[int]] | None = None
        for node, guests in self.guests[kind].items():
            moved = _fewest(guests, want - self.free.node_free[node])
            if moved is not None and (best is None or (len(moved), node) < best[:2]):
                best = len(moved), node, moved
        if best is None:
            return None
        for i in best[2]:
            seats = self.snapshot.placement(i)
            if seats is not None:
                self.free.give(seats)
                for node, count in seats.seats:
                    self.guests[kind][node].remove((count, i))
        self.displaced += best[2]
        return best[1]

    def _staying(self, kind: int) -> Guests:
        """Those who stay where they are, alone, and did not ask for it."""
        columns = self.snapshot.columns
        guests: Guests = {}
        alone = (columns.kind == kind) & (columns.partner < 0) & (columns.state != _STOPPING)
        for i in np.flatnonzero(alone).tolist():
            seats = self.snapshot.placement(i)
            if seats is not None and not (i in self.moving or i in self.verdicts.placements or self._near(i)):
                for node, count in seats.seats:
                    guests.setdefault(node, []).append((count, i))
        return guests

    def _open(self, placement: Placement) -> bool:
        return all(self.free.node_free[node] >= count for node, count in placement.seats)

    def _short(self, i: int, code: ReasonCode) -> Reason:
        room, want = self.free.freeze(), int(self.verdicts.gpus[i])
        kind = int(self.verdicts.kinds[i]) if self.verdicts.kinds is not None else -1
        usable = np.flatnonzero(self.snapshot.columns.speeds[i] > 0).tolist()
        kinds = usable if kind < 0 else [kind]
        if not kinds:
            return Reason(ReasonCode.NO_KIND, (", ".join(self.snapshot.cluster.kinds),))
        free, block = sum(room.free[k] for k in kinds), max(room.largest_block(k) for k in kinds)
        held = int(self.snapshot.columns.held[i])
        numbers = (held, want, free, block) if code is ReasonCode.KEPT_SEATS else (want, free, block)
        return Reason(code, numbers)


def _fewest(guests: Sequence[tuple[int, int]], gpus: int) -> list[int] | None:
    """Of (GPUs, job) the fewest jobs that have so many GPUs together, the last of them no wider than need be."""
    left, moved = sorted(guests), list[int]()
    while gpus > 0 and left:
        at = next((at for at, (count, _) in enumerate(left) if count >= gpus), len(left) - 1)
        count, i = left.pop(at)
        gpus -= count
        moved.append(i)
    return moved if gpus <= 0 else None


def tightest(sets: Sequence[int], want: int, among: int = -1) -> int | None:
    """The lowest-numbered node among the tightest that have ``want`` GPUs free; ``among`` masks the nodes allowed."""
    for free in range(want, len(sets)):
        nodes = sets[free] & among
        if nodes:
            return (nodes & -nodes).bit_length() - 1
    return None


def few_nodes(free: FreeGpus, kind: int, want: int, among: int = -1) -> Placement | None:
    """Seats on as few nodes as the free room allows: fullest-free nodes first, the rest on the tightest that fits."""
    sets = free.sets[kind]
    seats: list[tuple[int, int]] = []
    used = 0
    while want:
        node = tightest(sets, want, among & ~used) if want < len(sets) else None
        take = want
        if node is None:
            take = next((f for f in range(len(sets) - 1, 0, -1) if sets[f] & among & ~used), 0)
            if not take:
                return None
            nodes = sets[take] & among & ~used
            node = (nodes & -nodes).bit_length() - 1
            take = min(take, want)
        used |= 1 << node
        seats.append((node, take))
        want -= take
    return Placement(tuple(sorted(seats)))


def merged(a: Placement, b: Placement) -> Placement:
    """The seats of both."""
    counts = dict(a.seats)
    for node, count in b.seats:
        counts[node] = counts.get(node, 0) + count
    return replace(a, seats=tuple(sorted(counts.items())))
