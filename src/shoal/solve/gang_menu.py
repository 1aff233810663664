"""The options among which an allotment chooses, for many gangs in arrays and for few in plain numbers.

Both give the same answers in the same order. Options may be excluded between choices, and units rounded up to nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.solve.few_choices import FewChoices, Option, best_of_few
from shoal.solve.multiple_choice import LARGEST_SEARCH, best_choices
from shoal.solve.node_packing import Seats

STAY = 0
"""The column that means keeping the present seats."""


class MenuChoice(NamedTuple):
    """By gang served, ascending, its option; a bound on the best total worth, and the prices by pool."""

    picks: dict[int, Option]
    bound: float
    prices: list[float]


class PlainMenu:
    """Options of each gang in order of their columns, without the impossible ones."""

    def __init__(
        self,
        gangs: Sequence[Sequence[Option]],
        seats: Sequence[Seats | None],
        node_units: Sequence[Mapping[int, int]],
    ) -> None:
        self.gangs = gangs
        self.seats = seats
        self.node_units = node_units
        self.capacity = [sum(nodes.values()) for nodes in node_units]
        self._excluded: set[tuple[int, int]] = set()
        self._widest: list[int] | None = None

    def choose(self, tolerance: float) -> MenuChoice:
        """The choices of most worth within the capacity of the pools."""
        if not self._excluded and self._widest is None:
            return self._chosen(self.gangs, self.capacity, tolerance)
        left = [
            [self._rounded(option) for option in options if (gang, option[3]) not in self._excluded]
            for gang, options in enumerate(self.gangs)
        ]
        return self._chosen(left, self.capacity, tolerance)

    def unchanged(self, tolerance: float) -> dict[int, Option]:
        """Return choices in which every gang that may stay does so; the others choose among the free units."""
        free, waiting, stays = self.capacity.copy(), list[Sequence[Option]](), dict[int, Option]()
        for gang, options in enumerate(self.gangs):
            if options and options[0][3] == STAY:
                stays[gang] = options[0]
                free[options[0][2]] -= options[0][1]
                waiting.append(())
            else:
                waiting.append(options)
        if any(free) and any(waiting):
            stays |= self._chosen(waiting, free, tolerance).picks
        return stays

    def _chosen(self, gangs: Sequence[Sequence[Option]], capacity: list[int], tolerance: float) -> MenuChoice:
        rows = [[o for o in options if o[0] > 0 and o[1] <= capacity[o[2]]] for options in gangs]
        if not any(rows):
            return MenuChoice({}, 0.0, [0.0] * len(capacity))
        found = best_of_few(FewChoices(rows, capacity), tolerance, LARGEST_SEARCH)
        picks = {gang: self._original(gang, pick) for gang, pick in enumerate(found.picks) if pick}
        return MenuChoice(picks, found.bound, found.prices)

    def _original(self, gang: int, pick: Option) -> Option:
        if self._widest is None:
            return pick
        return next(option for option in self.gangs[gang] if option[3] == pick[3])

    def _rounded(self, option: Option) -> Option:
        if self._widest is None or not option[1] < self._widest[option[2]] < 2 * option[1]:
            return option
        return option[0], self._widest[option[2]], option[2], option[3]

    def exclude(self, options: Iterable[tuple[int, int]]) -> None:
        """Take options, each a gang and a column, out of later choices."""
        self._excluded.update(options)

    def round_up(self) -> None:
        """Count more than half a node as a whole node in later choices, since few gangs fit beside such a gang."""
        self._widest = [max(nodes.values(), default=0) for nodes in self.node_units]

    def moved(self, gang: int) -> Option:
        """The first option of a staying gang with the units and pool of its seats, on other seats."""
        found = self._moved(gang)
        assert found is not None
        return found

    def _moved(self, gang: int) -> Option | None:
        options = self.gangs[gang]
        same = (o for o in options[1:] if o[1] == options[0][1] and o[2] == options[0][2])
        return next(same, None)

    def moving_costs(self, gangs: Iterable[int]) -> dict[int, float]:
        """Return the loss of these staying gangs by a move to other seats; gangs that cannot move are left out."""
        return {gang: self.gangs[gang][0][0] - to[0] for gang in gangs if (to := self._moved(gang)) is not None}

    def by_density(self, served: Mapping[int, Option], free: Sequence[int]) -> Iterator[tuple[int, Option]]:
        """The options of all other gangs that the free units of a pool could hold, the most worth per unit first."""
        others = (
            (gang, option)
            for gang, options in enumerate(self.gangs)
            if gang not in served
            for option in options
            if option[0] > 0 and option[3] != STAY and option[1] <= free[option[2]]
        )
        return iter(sorted(others, key=lambda other: -(other[1][0] / other[1][1])))

    def wider(self, served: Mapping[int, Option], free: Sequence[int]) -> Iterator[tuple[int, Option]]:
        """The options of gangs served that are worth more on more units, the most gain per unit first."""
        found: list[tuple[float, int, Option]] = []
        for gang in sorted(served):
            worth, units, pool, _ = served[gang]
            for option in self.gangs[gang]:
                room = free[option[2]] + (units if option[2] == pool else 0)
                if option[0] > worth and units < option[1] <= room and option[3] != STAY:
                    found.append(((option[0] - worth) / (option[1] - units), gang, option))
        return ((gang, option) for _, gang, option in sorted(found, key=lambda one: -one[0]))


class ArrayMenu:
    """Options in arrays, gangs × columns, few of them impossible; ``columns`` are the numbers that callers use.

    Choices are made at the ``prices`` of the pools, or at prices that are found for each.
    """

    def __init__(
        self,
        worth: Floats,
        units: Indices,
        pools: Indices,
        columns: Indices,
        seats: Sequence[Seats | None],
        node_units: Sequence[Mapping[int, int]],
        prices: Floats | None = None,
    ) -> None:
        self.worth, self.units, self.pools, self.columns = worth, units, pools, columns
        self.seats = seats
        self.node_units = node_units
        self.capacity = [sum(nodes.values()) for nodes in node_units]
        self._prices = prices
        self._left, self._counted = worth.copy(), units
        self._whole = True
        self._chosen: MenuChoice | None = None
        """The choice among all options, while none is excluded or rounded."""
        same = (units == units[:, [STAY]]) & (pools == pools[:, [STAY]]) & np.isfinite(worth)
        same[:, STAY] = False
        self._moved = np.where(same.any(axis=1), same.argmax(axis=1), -1)
        """By gang the first column with the units and pool of its present seats on other seats; −1 for none."""

    @classmethod
    def of(
        cls,
        worth: Floats,
        units: Indices,
        pools: Indices,
        seats: Sequence[Seats | None],
        node_units: Sequence[Mapping[int, int]],
        prices: Floats | None = None,
    ) -> "ArrayMenu":
        """The options without the impossible ones, in the same order.

        A rigid gang has an option or two where others have dozens.
        """
        able = np.isfinite(worth)
        able[:, STAY] = True
        width = int(able.sum(axis=1).max())
        if width == able.shape[1]:
            columns = np.broadcast_to(np.arange(width), able.shape)
            return cls(worth, units, pools, columns, seats, node_units, prices)
        row, column = np.nonzero(able)
        place = np.arange(len(row)) - np.searchsorted(row, np.arange(len(able)))[row]
        columns = np.zeros((len(able), width), dtype=np.intp)
        columns[row, place] = column
        narrow = np.full(columns.shape, -np.inf)
        narrow[row, place] = worth[row, column]
        units, pools = np.take_along_axis(units, columns, 1), np.take_along_axis(pools, columns, 1)
        return cls(narrow, units, pools, columns, seats, node_units, prices)

    def choose(self, tolerance: float) -> MenuChoice:
        """The choices of most worth within the capacity of the pools."""
        if self._whole and self._chosen is not None:
            return self._chosen
        chosen = best_choices(self._left, self._counted, self.pools, self.capacity, tolerance, self._prices)
        prices = chosen.prices.tolist() or [0.0] * len(self.capacity)
        self._chosen = MenuChoice(self._options(chosen.picks), chosen.bound, prices)
        return self._chosen

    def unchanged(self, tolerance: float) -> dict[int, Option]:
        """Return choices in which every gang that may stay does so; the others choose among the free units."""
        stays = np.isfinite(self.worth[:, STAY])
        if self._whole and not stays.any():
            return self.choose(tolerance).picks
        worth = np.where(stays[:, None], -np.inf, self.worth)
        free = np.array(self.capacity, dtype=np.intp)
        np.subtract.at(free, self.pools[stays, STAY], self.units[stays, STAY])
        chosen = best_choices(worth, self.units, self.pools, free.tolist(), tolerance, self._prices)
        return self._options(np.where(stays, STAY, chosen.picks))

    def _options(self, picks: Indices) -> dict[int, Option]:
        rows = np.flatnonzero(picks >= 0)
        return dict(zip(rows.tolist(), self._at(rows, picks[rows]), strict=True))

    def _at(self, rows: Indices, places: Indices) -> Iterator[Option]:
        columns = (self.worth, self.units, self.pools, self.columns)
        return zip(*(column[rows, places].tolist() for column in columns), strict=True)

    def exclude(self, options: Iterable[tuple[int, int]]) -> None:
        """Take options, each a gang and a column, out of later choices."""
        self._whole = False
        for gang, column in options:
            self._left[gang, self.columns[gang] == column] = -np.inf

    def round_up(self) -> None:
        """Count more than half a node as a whole node in later choices, since few gangs fit beside such a gang."""
        self._whole = False
        widest = np.array([max(nodes.values(), default=0) for nodes in self.node_units], dtype=np.intp)[self.pools]
        self._counted = np.where((2 * self.units > widest) & (self.units < widest), widest, self.units)

    def moved(self, gang: int) -> Option:
        """The first option of a staying gang with the units and pool of its seats, on other seats."""
        return next(self._at(np.array([gang]), self._moved[[gang]]))

    def moving_costs(self, gangs: Iterable[int]) -> dict[int, float]:
        """Return the loss of these staying gangs by a move to other seats; gangs that cannot move are left out."""
        at = np.array(list(gangs), dtype=np.intp)
        at = at[self._moved[at] >= 0]
        return dict(zip(at.tolist(), (self.worth[at, STAY] - self.worth[at, self._moved[at]]).tolist(), strict=True))

    def by_density(self, served: Mapping[int, Option], free: Sequence[int]) -> Iterator[tuple[int, Option]]:
        """The options of all other gangs that the free units of a pool could hold, the most worth per unit first."""
        others = np.ones(len(self.worth), dtype=bool)
        others[list(served)] = False
        waiting = others.nonzero()[0]
        fits = (self.worth[waiting] > 0) & (self.units[waiting] <= np.array(free)[self.pools[waiting]])
        fits[:, STAY] = False
        row, place = fits.nonzero()
        row = waiting[row]
        order = np.argsort(-(self.worth[row, place] / self.units[row, place]), kind="stable")
        row, place = row[order], place[order]
        return zip(row.tolist(), self._at(row, place), strict=True)

    def wider(self, served: Mapping[int, Option], free: Sequence[int]) -> Iterator[tuple[int, Option]]:
        """The options of gangs served that are worth more on more units, the most gain per unit first."""
        gangs = sorted(served)
        now = np.array([served[gang][:3] for gang in gangs], dtype=np.float64).reshape(len(gangs), 3)
        worth, units, pool = now[:, [0]], now[:, [1]], now[:, [2]]
        there = self.pools[gangs]
        room = np.array(free)[there] + np.where(there == pool, units, 0.0)
        fits = (self.worth[gangs] > worth) & (self.units[gangs] > units) & (self.units[gangs] <= room)
        fits[:, STAY] = False
        at, place = fits.nonzero()
        row = np.array(gangs, dtype=np.intp)[at]
        gain = (self.worth[row, place] - worth[at, 0]) / (self.units[row, place] - units[at, 0])
        order = np.argsort(-gain, kind="stable")
        row, place = row[order], place[order]
        return zip(row.tolist(), self._at(row, place), strict=True)
