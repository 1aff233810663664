"""Units, pool and nodes for each gang: choices of most worth that can be placed on nodes, with a bound.

    maximise   Σ_i worth[i, c_i]  over one column c_i (or none) for each gang i
    subject to the chosen units can be packed on the nodes of their pools.

`multiple_choice` solves the relaxation in which each pool is a single node; its bound holds for every packing.
`node_packing` then places the choices. If gangs that were to stay must move, or some find no nodes, the choice is
repeated with the move charged or the option removed, at most `_ROUNDS` times, and compared with changing no gang and
filling free units. Units that are still free go to gangs without any, then to gangs for which more are worth more.
``Allotment.gap`` covers both the choosing and the packing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.solve.few_choices import Option
from shoal.solve.gang_menu import STAY, ArrayMenu, PlainMenu
from shoal.solve.multiple_choice import FEW
from shoal.solve.node_packing import Packer, Seats

__all__ = ["STAY", "Allotment", "AllotmentOptions", "Option", "PlainAllotment", "allot", "allot_plainly"]

_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class AllotmentOptions:
    """Options of each gang (gangs × columns): worth over none, units and pool; and the seats each holds now.

    Column ``STAY`` keeps the present seats; a worth of −inf is no option. ``node_units`` is by pool: units by node. The
    seats held must fit on those nodes together.
    """

    worth: Floats
    units: Indices
    pools: Indices
    seats: Sequence[Seats | None]
    node_units: Sequence[Mapping[int, int]]

    @property
    def capacity(self) -> list[int]:
        """Units by pool."""
        return [sum(nodes.values()) for nodes in self.node_units]


@dataclass(frozen=True, slots=True)
class Allotment:
    """By gang the column chosen, −1 for none, and its seats; the total worth, and a bound on the best total worth.

    ``prices`` are by pool: the price of a unit at which the demand of all gangs fits.
    """

    picks: Indices
    seats: Mapping[int, Seats]
    value: float
    bound: float
    prices: Floats

    @property
    def gap(self) -> float:
        """How far the value may be below the best, as a fraction of the bound; never below 0."""
        return max(self.bound - self.value, 0.0) / self.bound if self.bound > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PlainAllotment:
    """An `Allotment` in plain numbers: ``picks`` by gang served."""

    picks: Mapping[int, Option]
    seats: Mapping[int, Seats]
    value: float
    bound: float
    prices: list[float]

    @property
    def gap(self) -> float:
        """How far the value may be below the best, as a fraction of the bound; never below 0."""
        return max(self.bound - self.value, 0.0) / self.bound if self.bound > 0 else 0.0


def allot(menu: AllotmentOptions, tolerance: float = 0.0, prices: Floats | None = None) -> Allotment:
    """The best allotment found; never worth less than changing no gang and filling free units.

    The search ends at choices within ``tolerance`` of the bound, as a fraction of it. If the ``prices`` of the pools
    are given, it tries no others.
    """
    picks = np.full(len(menu.worth), -1, dtype=np.intp)
    if not menu.worth.size:
        return Allotment(picks, {}, 0.0, 0.0, np.zeros(len(menu.node_units)))
    able = np.isfinite(menu.worth)
    if prices is None and np.count_nonzero(able) <= FEW:
        row, column = able.nonzero()
        numbers = (menu.worth[row, column], menu.units[row, column], menu.pools[row, column], column)
        gangs: list[list[Option]] = [[] for _ in menu.worth]
        for gang, *option in zip(row.tolist(), *(of.tolist() for of in numbers), strict=True):
            gangs[gang].append(tuple(option))
        found = allot_plainly(gangs, menu.seats, menu.node_units, tolerance)
    else:
        columns = (menu.worth, menu.units, menu.pools, menu.seats, menu.node_units)
        found = _allotted(ArrayMenu.of(*columns, prices), tolerance)
    picks[list(found.picks)] = [option[3] for option in found.picks.values()]
    return Allotment(picks, found.seats, found.value, found.bound, np.array(found.prices))


def allot_plainly(
    gangs: Sequence[Sequence[Option]],
    seats: Sequence[Seats | None],
    node_units: Sequence[Mapping[int, int]],
    tolerance: float = 0.0,
) -> PlainAllotment:
    """As `allot`, for few options, each gang's in order of their columns without the impossible ones."""
    return _allotted(PlainMenu(gangs, seats, node_units), tolerance)


def _allotted(menu: "ArrayMenu | PlainMenu", tolerance: float) -> PlainAllotment:
    unchanged = menu.unchanged(tolerance)
    at_least = _value(unchanged)
    best: _Trial | None = None
    bound, prices = 0.0, list[float]()
    for turn in range(_ROUNDS):
        chosen = menu.choose(tolerance)
        if turn == 0:
            bound, prices = chosen.bound, chosen.prices
        trial = _Trial(menu, chosen.picks)
        if best is None and trial.value <= at_least:  # else the unchanged gangs need not be placed
            best = _Trial(menu, unchanged, settled=True)
        if best is None or trial.value > best.value:
            best = trial
        if (not trial.moved and not trial.left) or best.value >= (1.0 - tolerance) * bound:
            break
        menu.exclude((gang, STAY) for gang in trial.moved)
        if trial.left and turn == 0:
            menu.round_up()
        elif trial.left:
            menu.exclude((gang, chosen.picks[gang][3]) for gang in trial.left)
    assert best is not None
    best.fill()
    best.widen()
    value = _value(best.picks)
    return PlainAllotment(best.picks, best.seats, value, max(bound, value), prices)


def _value(picks: Mapping[int, Option]) -> float:
    """The total worth of choices by gang."""
    return float(np.add.reduce(np.array([picks[gang][0] for gang in sorted(picks)], dtype=np.float64)))


class _Trial:
    """Choices placed on nodes, pool by pool; ``moved`` gangs had to leave their seats, those in ``left`` found none."""

    def __init__(self, menu: "ArrayMenu | PlainMenu", picks: Mapping[int, Option], *, settled: bool = False) -> None:
        self.menu = menu
        self.picks = dict(picks)
        self.moved: set[int] = set()
        self.left: set[int] = set()
        self.packers: list[Packer] = []
        pools = range(len(menu.node_units))
        staying: list[dict[int, Seats]] = [{} for _ in pools]
        coming: list[dict[int, int]] = [{} for _ in pools]
        for gang, (_, units, pool, column) in picks.items():
            if column == STAY and (seats := menu.seats[gang]) is not None:
                staying[pool][gang] = seats
            else:
                coming[pool][gang] = units
        for pool, nodes in enumerate(menu.node_units):
            needed = not settled and coming[pool]
            packer = Packer(nodes, staying[pool], menu.moving_costs(staying[pool]) if needed else {})
            packer.seat(coming[pool])
            self.packers.append(packer)
            self.moved |= packer.moved
            self.left |= packer.left
        for gang in self.left:
            del self.picks[gang]
        for gang in self.moved:
            self.picks[gang] = menu.moved(gang)
        self.value = _value(self.picks)
        """The total worth of the choices placed, without those that fill free units."""

    def fill(self) -> None:
        """Place gangs without seats wherever they fit, the most worth per unit first."""
        free = [sum(packer.free.values()) for packer in self.packers]
        if not any(free):
            return
        for gang, option in self.menu.by_density(self.picks, free):
            packer = self.packers[option[2]]
            if gang not in self.picks and (seats := packer.find(option[1])) is not None:
                packer.take(gang, seats)
                self.picks[gang] = option

    def widen(self) -> None:
        """Give free units to gangs served that are worth more with them, the most gain per unit first."""
        free = [sum(packer.free.values()) for packer in self.packers]
        if not any(free):
            return
        for gang, option in self.menu.wider(self.picks, free):
            worth, units, pool, _ = self.picks[gang]
            there = self.packers[option[2]]
            if option[0] <= worth or there.widest_hole + units < option[1] <= there.widest:
                continue
            held = self.packers[pool].seats[gang]
            self.packers[pool].leave(gang)
            seats = there.find(option[1])
            if seats is None:
                self.packers[pool].take(gang, held)
            else:
                there.take(gang, seats)
                self.picks[gang] = option

    @property
    def seats(self) -> dict[int, Seats]:
        """The seats of every gang served."""
        return {gang: seats for packer in self.packers for gang, seats in packer.seats.items()}
