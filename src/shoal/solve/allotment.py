"""Units, pool and nodes for each gang: choices of most worth that can be placed on nodes, with a bound.

    maximise   Σ_i worth[i, c_i]  over one column c_i (or none) for each gang i
    subject to the chosen units can be packed on the nodes of their pools.

`multiple_choice` solves the relaxation in which a pool is one heap of units; its bound holds for every packing.
`node_packing` then places the choices. If gangs that were to stay must move, or some find no nodes, the choice is
repeated with the move charged or the option removed, at most `_ROUNDS` times, and compared with changing no gang and
filling free units. ``Allotment.gap`` covers both the choosing and the packing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.solve.multiple_choice import best_choices
from shoal.solve.node_packing import Packer, Seats

STAY = 0
"""The column that means keeping the present seats."""

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

    def moved_columns(self) -> Indices:
        """By gang the first column with the units and pool of its present seats on other seats; −1 for none."""
        same = (self.units == self.units[:, [STAY]]) & (self.pools == self.pools[:, [STAY]]) & np.isfinite(self.worth)
        same[:, STAY] = False
        return np.where(same.any(axis=1), same.argmax(axis=1), -1)


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


def allot(menu: AllotmentOptions, tolerance: float = 0.0) -> Allotment:
    """The best allotment found; never worth less than changing no gang and filling free units.

    Choices within ``tolerance`` of the bound, as a fraction of it, are good enough.
    """
    if not menu.worth.size:
        nothing = np.full(len(menu.worth), -1, dtype=np.intp)
        return Allotment(nothing, {}, 0.0, 0.0, np.zeros(len(menu.node_units)))
    narrow, columns = _narrowed(menu)
    found = _allotted(narrow, tolerance)
    picks = np.where(found.picks >= 0, columns[np.arange(len(columns)), found.picks], -1)
    return replace(found, picks=picks)


def _narrowed(menu: AllotmentOptions) -> tuple[AllotmentOptions, Indices]:
    """The same options with those that are none left out, in the same order; and by option its column in ``menu``.

    A rigid gang has an option or two where others have dozens.
    """
    able = np.isfinite(menu.worth)
    able[:, STAY] = True
    width = int(able.sum(axis=1).max())
    if width == able.shape[1]:
        return menu, np.broadcast_to(np.arange(width), able.shape)
    row, column = np.nonzero(able)
    place = np.arange(len(row)) - np.searchsorted(row, np.arange(len(able)))[row]
    columns = np.zeros((len(able), width), dtype=np.intp)
    columns[row, place] = column
    worth = np.full(columns.shape, -np.inf)
    worth[row, place] = menu.worth[row, column]
    units, pools = np.take_along_axis(menu.units, columns, 1), np.take_along_axis(menu.pools, columns, 1)
    return AllotmentOptions(worth, units, pools, menu.seats, menu.node_units), columns


def _allotted(menu: AllotmentOptions, tolerance: float) -> Allotment:
    worth, units = menu.worth.copy(), menu.units
    moved, unchanged = menu.moved_columns(), _unchanged(menu, tolerance)
    at_least = _value(menu, unchanged)
    best: _Trial | None = None
    bound, prices = 0.0, np.zeros(len(menu.node_units))
    for turn in range(_ROUNDS):
        chosen = best_choices(worth, units, menu.pools, menu.capacity, tolerance)
        if turn == 0:
            bound, prices = chosen.bound, chosen.prices
        trial = _Trial(menu, chosen.picks, moved)
        if best is None and trial.value <= at_least:  # else the unchanged gangs need not be placed
            best = _Trial(menu, unchanged, moved, settled=True)
        if best is None or trial.value > best.value:
            best = trial
        if (not trial.moved and not trial.left) or best.value >= (1.0 - tolerance) * bound:
            break
        for gang in trial.moved:
            worth[gang, STAY] = -np.inf
        if trial.left and turn == 0:
            units = _rounded(menu)
        elif trial.left:
            for gang in trial.left:
                worth[gang, chosen.picks[gang]] = -np.inf
    assert best is not None
    best.fill()
    value = _value(menu, best.picks)
    return Allotment(best.picks, best.seats, value, max(bound, value), prices)


def _rounded(menu: AllotmentOptions) -> Indices:
    """Return the units, more than half a node rounded up to the node: such gangs leave gaps that few gangs fit."""
    widest = np.array([max(nodes.values(), default=0) for nodes in menu.node_units], dtype=np.intp)[menu.pools]
    return np.where((2 * menu.units > widest) & (menu.units < widest), widest, menu.units)


def _unchanged(menu: AllotmentOptions, tolerance: float) -> Indices:
    """Return choices in which every gang that may stay does so; the others choose among the free units."""
    stays = np.isfinite(menu.worth[:, STAY])
    worth = np.where(stays[:, None], -np.inf, menu.worth)
    free = np.array(menu.capacity, dtype=np.intp)
    np.subtract.at(free, menu.pools[stays, STAY], menu.units[stays, STAY])
    chosen = best_choices(worth, menu.units, menu.pools, free.tolist(), tolerance)
    return np.where(stays, STAY, chosen.picks)


def _value(menu: AllotmentOptions, picks: Indices) -> float:
    """The total worth of choices."""
    served = np.flatnonzero(picks >= 0)
    return float(menu.worth[served, picks[served]].sum())


class _Trial:
    """Choices placed on nodes, pool by pool; ``moved`` had to leave their seats, ``left`` found none."""

    def __init__(self, menu: AllotmentOptions, picks: Indices, moved: Indices, *, settled: bool = False) -> None:
        self.menu = menu
        self.picks = picks.copy()
        self.moved: set[int] = set()
        self.left: set[int] = set()
        self.packers: list[Packer] = []
        served = np.flatnonzero(picks >= 0)
        chosen = picks[served]
        pools, units, stays = menu.pools[served, chosen], menu.units[served, chosen], chosen == STAY
        for pool, nodes in enumerate(menu.node_units):
            here = pools == pool
            staying = {g: seats for g in served[here & stays].tolist() if (seats := menu.seats[g]) is not None}
            wanted = zip(served[here].tolist(), units[here].tolist(), strict=True)
            coming = {gang: count for gang, count in wanted if gang not in staying}
            packer = Packer(nodes, staying, {} if settled or not coming else self._costs(list(staying), moved))
            packer.seat(coming)
            self.packers.append(packer)
            self.moved |= packer.moved
            self.left |= packer.left
        self.picks[list(self.left)] = -1
        movers = list(self.moved)
        self.picks[movers] = moved[movers]
        self.value = _value(menu, self.picks)
        """The total worth of the choices placed, without those that fill free units."""

    def _costs(self, gangs: list[int], moved: Indices) -> dict[int, float]:
        """Return what these staying gangs would lose by a move to other seats; gangs without such are left out."""
        worth, at = self.menu.worth, np.array(gangs, dtype=np.intp)
        at = at[moved[at] >= 0]
        return dict(zip(at.tolist(), (worth[at, STAY] - worth[at, moved[at]]).tolist(), strict=True))

    def fill(self) -> None:
        """Place gangs without seats wherever they fit, the most worth per unit first."""
        waiting = np.flatnonzero(self.picks < 0)
        if not len(waiting) or not any(any(p.free.values()) for p in self.packers):
            return
        density = np.where(self.menu.worth[waiting] > 0, self.menu.worth[waiting] / self.menu.units[waiting], -np.inf)
        density[:, STAY] = -np.inf
        order = np.argsort(-density, axis=None, kind="stable")
        for flat in order[: int(np.isfinite(density).sum())].tolist():
            at, column = divmod(flat, density.shape[1])
            gang = int(waiting[at])
            packer = self.packers[self.menu.pools[gang, column]]
            if self.picks[gang] < 0 and (seats := packer.find(int(self.menu.units[gang, column]))) is not None:
                packer.take(gang, seats)
                self.picks[gang] = column

    @property
    def seats(self) -> dict[int, Seats]:
        """The seats of every gang served."""
        return {gang: seats for packer in self.packers for gang, seats in packer.seats.items()}
