"""Gangs packed onto nodes: staying gangs keep their seats, new ones fill the smallest gaps, few must move.

A gang that fits on one node sits on one. A wider one takes whole empty nodes; a node never holds two gangs that span
nodes, whose traffic would interfere. Where a new gang finds no seats, the narrow gangs that cost least to move leave a
node for seats elsewhere. Every gang is either seated or named in ``left``, and no node is overfull. A heuristic (best
fit decreasing with one level of moves); `allotment` carries the bound.

References: Qiao et al., OSDI 2021, §4.2 (interference avoidance); Johnson (1974) for best fit decreasing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias, overload

from shoal.core.arrays import AnyInts, Indices

Seats: TypeAlias = tuple[tuple[int, int], ...]
"""(node, units there) by ascending node."""


@dataclass(frozen=True, slots=True, eq=False)
class SeatTable(Sequence[Seats | None]):
    """The seats that each gang holds, None without any, in columns.

    ``node`` is the node of a gang that sits on one, −1 for all others, ``units`` what it has there; ``wide`` are the
    seats of the gangs that span nodes.
    """

    node: Indices
    units: AnyInts
    wide: Mapping[int, Seats]

    def __len__(self) -> int:
        return len(self.node)

    @overload
    def __getitem__(self, gang: int) -> Seats | None: ...

    @overload
    def __getitem__(self, gang: slice) -> list[Seats | None]: ...

    def __getitem__(self, gang: int | slice) -> Seats | list[Seats | None] | None:
        if isinstance(gang, slice):
            return [self[i] for i in range(*gang.indices(len(self)))]
        node = self.node.item(gang)
        return ((node, self.units.item(gang)),) if node >= 0 else self.wide.get(gang)


class Packer:
    """A packing: ``seats`` by gang, the gangs ``moved`` though they were staying, and those ``left`` without seats.

    ``node_units`` is units by node, ``staying`` the seats held, ``cost`` the cost of moving a staying gang; gangs not
    named in ``cost`` never move.
    """

    def __init__(self, node_units: Mapping[int, int], staying: Mapping[int, Seats], cost: Mapping[int, float]) -> None:
        self.node_units = dict(node_units)
        self.widest = max(node_units.values(), default=0)
        self.free = dict(node_units)
        self.seats = dict(staying)
        self.moved: set[int] = set()
        self.left: set[int] = set()
        self._cost = cost
        self._spanned: dict[int, int] = {}
        self._gangs_on: dict[int, list[int]] = {node: [] for node in node_units}
        for gang, seats in staying.items():
            for node, units in seats:
                self.free[node] -= units
                self._gangs_on[node].append(gang)
                if len(seats) > 1:
                    self._spanned[node] = self._spanned.get(node, 0) + 1
        self._holes = [0] * (self.widest + 1)
        self._empty = [0] * (self.widest + 1)
        """By number of units: the nodes of that size without gangs, as bits."""
        for node, units in self.free.items():
            self._holes[units] |= 1 << node
            if not self._gangs_on[node]:
                self._empty[units] |= 1 << node

    def seat(self, coming: Mapping[int, int]) -> None:
        """Seat gangs that want these units, the widest first; those that find no seats go to ``left``."""
        for gang, units in sorted(coming.items(), key=lambda item: (-item[1], item[0])):
            seats = self.find(units) or self._seats_by_moving(units)
            if seats:
                self.take(gang, seats)
            else:
                self.left.add(gang)

    @property
    def widest_hole(self) -> int:
        """The most free units of a node."""
        return next((units for units in range(self.widest, 0, -1) if self._holes[units]), 0)

    def find(self, units: int) -> Seats | None:
        """Return seats without moving gangs: on the fullest node that fits or, if wide, on empty nodes; else None."""
        if units <= self.widest:
            node = self._tightest(units)
            return ((node, units),) if node >= 0 else None
        return self._across_empty(units)

    def take(self, gang: int, seats: Seats) -> None:
        """Seat a gang on these seats, which must be free."""
        self.seats[gang] = seats
        for node, units in seats:
            self._change(node, -units)
            if not self._gangs_on[node]:
                self._empty[self.node_units[node]] ^= 1 << node
            self._gangs_on[node].append(gang)
            if len(seats) > 1:
                self._spanned[node] = self._spanned.get(node, 0) + 1

    def leave(self, gang: int) -> None:
        """Free the seats of a gang."""
        seats = self.seats.pop(gang)
        for node, units in seats:
            self._change(node, units)
            self._gangs_on[node].remove(gang)
            if not self._gangs_on[node]:
                self._empty[self.node_units[node]] ^= 1 << node
            if len(seats) > 1:
                self._spanned[node] -= 1

    # ── seats by moving others ─────────────────────────────────────────────────────────────────────────────────

    def _seats_by_moving(self, units: int) -> Seats | None:
        """Return seats after moving other gangs away or, if wide, on parts of nodes that no gang spans; else None."""
        if units <= self.widest:
            return self._cleared_node(units)
        seats = self._cleared_nodes(units)
        if seats is None:
            open_nodes = [n for n in self.node_units if self.free[n] and not self._spanned.get(n)]
            seats = _across(self.free, open_nodes, units)
        return seats

    def _cleared_node(self, units: int) -> Seats | None:
        """Seats on the node that is cheapest to clear, if its gangs find seats elsewhere."""
        if sum(self.free.values()) < units:
            return None
        plans = [(*plan, node) for node in self.node_units if (plan := self._leaving(node, units)) is not None]
        for _, gangs, node in sorted(plans):
            if self._moved_out(gangs, {node: units}):
                return ((node, units),)
        return None

    def _cleared_nodes(self, units: int) -> Seats | None:
        """Whole nodes for a wide gang: the empty ones, and those cheapest to empty."""
        if sum(self.free.values()) < units:
            return None
        plans = [(*plan, n) for n in self.node_units if (plan := self._leaving(n, self.node_units[n])) is not None]
        taken: dict[int, int] = {}
        gangs: list[int] = []
        want = units
        for _, leaving, node in sorted(plans):
            taken[node] = min(want, self.node_units[node])
            gangs += leaving
            want -= taken[node]
            if not want:
                return tuple(sorted(taken.items())) if self._moved_out(gangs, taken) else None
        return None

    def _leaving(self, node: int, units: int) -> tuple[float, list[int]] | None:
        """Return the cost and the gangs to move so that ``units`` are free on a node; None where that is impossible."""
        if self.node_units[node] < units:
            return None
        need, cost, gangs = units - self.free[node], 0.0, list[int]()
        gangs_here = [(self._cost.get(g, inf), self.seats[g][0][1], g) for g in self._gangs_on[node] if self._narrow(g)]
        for price, there, gang in sorted(gangs_here, key=lambda entry: (entry[0] / entry[1], entry[2])):
            if need <= 0 or price == inf:
                break
            need, cost = need - there, cost + price
            gangs.append(gang)
        return (cost, gangs) if need <= 0 else None

    def _moved_out(self, gangs: Sequence[int], kept: Mapping[int, int]) -> bool:
        """Move gangs, all or none, leaving ``kept`` units of some nodes free; return whether it succeeded."""
        before = {gang: self.seats[gang] for gang in gangs}
        for gang in gangs:
            self.leave(gang)
        for node, units in kept.items():
            self._change(node, -units)
        done: list[int] = []
        for gang in sorted(gangs, key=lambda g: (-before[g][0][1], g)):
            node = self._tightest(before[gang][0][1])
            if node < 0:
                break
            self.take(gang, ((node, before[gang][0][1]),))
            done.append(gang)
        for node, units in kept.items():
            self._change(node, units)
        if len(done) == len(gangs):
            self.moved.update(gangs)
            return True
        for gang in done:
            self.leave(gang)
        for gang, seats in before.items():
            self.take(gang, seats)
        return False

    # ── free units and seats ────────────────────────────────────────────────────────────────────────────────────────

    def _narrow(self, gang: int) -> bool:
        return len(self.seats[gang]) == 1

    def _across_empty(self, units: int) -> Seats | None:
        """Return seats over empty nodes, as `_across` does over others."""
        empty = self._empty.copy()
        taken: dict[int, int] = {}
        while units:
            enough = next((size for size in range(units, len(empty)) if empty[size]), 0)
            size = enough or next((size for size in range(self.widest, 0, -1) if empty[size]), 0)
            if not size:
                return None
            node = (empty[size] & -empty[size]).bit_length() - 1
            empty[size] ^= 1 << node
            taken[node] = min(units, size)
            units -= taken[node]
        return tuple(sorted(taken.items()))

    def _tightest(self, units: int) -> int:
        for free in range(units, self.widest + 1):
            nodes = self._holes[free]
            if nodes:
                return (nodes & -nodes).bit_length() - 1
        return -1

    def _change(self, node: int, by: int) -> None:
        before, bit = self.free[node], 1 << node
        self._holes[before] ^= bit
        self._holes[before + by] ^= bit
        self.free[node] = before + by


def _across(free: Mapping[int, int], nodes: Iterable[int], units: int) -> Seats | None:
    """Return seats over these nodes, those with most free units first; None if there are too few units.

    The last part goes to the node with the fewest free units that holds it.
    """
    rest = sorted(nodes, key=lambda n: (-free[n], n))
    taken: dict[int, int] = {}
    while units and rest:
        last = [n for n in rest if free[n] >= units]
        node = min(last, key=lambda n: (free[n], n)) if last else rest[0]
        taken[node] = min(units, free[node])
        units -= taken[node]
        rest.remove(node)
    return None if units else tuple(sorted(taken.items()))
