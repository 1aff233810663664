"""The multiple-choice knapsack for few options: the same answer as `multiple_choice`, computed in plain numbers.

With a hundred options or less an array operation costs as much as a loop over all of them. Every step here takes the
same choices in the same order as its array form, and adds in the same order, so both answers are equal to the last bit;
a property test compares them.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from shoal.core.arrays import Floats
from shoal.solve.knapsack import best_options_apart
from shoal.solve.pool_prices import FewRows, bisected

Option: TypeAlias = tuple[float, int, int, int]
"""Worth (above 0), units (at least 1, at most the capacity), pool and column."""

_CYCLES = 3
_STEPS = 60
_TIE = 1e-12
_HALF = 0.5
_NONE = float("-inf")
_NEVER = float("inf")


class FewChoices:
    """Options by row, each row's in order of their columns; a choice is by row one of them, or None."""

    def __init__(self, rows: Sequence[Sequence[Option]], capacity: Sequence[int]) -> None:
        self.rows = rows
        self.capacity = list(capacity)
        self._sizes: Floats = np.array(capacity, dtype=np.float64)

    @property
    def apart(self) -> bool:
        """Whether no row has options of two pools."""
        return all(option[2] == row[0][2] for row in self.rows for option in row)

    def value(self, picks: Sequence[Option | None]) -> float:
        """The total worth of the choices."""
        return _total([pick[0] for pick in picks if pick])

    def bound(self, prices: Sequence[float]) -> float:
        """The bound on the best total worth at these prices."""
        return self._bound([max(top, 0.0) for top in self._tops(prices)], prices)

    def _bound(self, tops: list[float], prices: Sequence[float]) -> float:
        return _total(tops) + float(np.dot(np.array(prices, dtype=np.float64), self._sizes))

    def _tops(self, prices: Sequence[float]) -> list[float]:
        """By row the most worth less price of any option; −inf without one."""
        return [max([o[0] - prices[o[2]] * o[1] for o in row], default=_NONE) for row in self.rows]

    def at_prices(self, prices: Sequence[float]) -> list[Option | None]:
        """By row its option of most worth less price, the first of equals; None where no option is worth its price."""
        picks: list[Option | None] = []
        for row in self.rows:
            best, pick = 0.0, None
            for option in row:
                net = option[0] - prices[option[2]] * option[1]
                if net > best:
                    best, pick = net, option
            picks.append(pick)
        return picks

    def free(self, picks: Sequence[Option | None]) -> list[int]:
        """By pool the units that the choices leave."""
        free = self.capacity.copy()
        for pick in picks:
            if pick:
                free[pick[2]] -= pick[1]
        return free

    # ── prices ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def clearing_prices(self, tolerance: float) -> list[float]:
        """By pool the price of a unit: `pool_prices.clearing_prices`."""
        pools = range(len(self.capacity))
        prices, highest = [0.0 for _ in pools], max((o[0] / o[1] for row in self.rows for o in row), default=0.0)
        by_pool = [[[(o[0], float(o[1])) for o in row if o[2] == k] for row in self.rows] for k in pools]
        if len(by_pool) == 1:
            demand = [(0.0, options) for options in by_pool[0] if options]
            return [_clearing_price(demand, self.capacity[0], highest, tolerance)]
        tops = [[_top(options, 0.0) for options in pool] for pool in by_pool]
        for _ in range(_CYCLES):
            before = prices.copy()
            for k, pool in enumerate(by_pool):
                elsewhere = [max(0.0, *others) for others in zip(*(tops[m] for m in pools if m != k), strict=True)]
                demand = [
                    (other, better)
                    for other, options in zip(elsewhere, pool, strict=True)
                    if (better := [option for option in options if option[0] > other])
                ]
                prices[k] = _clearing_price(demand, self.capacity[k], highest, tolerance)
                tops[k] = [_top(options, prices[k]) for options in pool]
            near = max(1e-9, tolerance)
            if all(abs(b - p) <= near * abs(p) for b, p in zip(before, prices, strict=True)):
                break
        return prices

    def polished(self, prices: list[float], value: float) -> list[float]:
        """Prices that give a lower bound, by Polyak's subgradient steps towards ``value``."""
        best, lowest, patience = prices, self.bound(prices), 1.0
        at = prices.copy()
        for _ in range(_STEPS):
            free, tops = self.capacity.copy(), []
            for row in self.rows:
                top, units, pool = 0.0, 0, 0
                for option in row:
                    net = option[0] - at[option[2]] * option[1]
                    if net > top:
                        top, units, pool = net, option[1], option[2]
                tops.append(top)
                free[pool] -= units
            bound = self._bound(tops, at)
            if bound < lowest:
                best, lowest = at.copy(), bound
            else:
                patience *= 0.9
            steepness = float(sum(units * units for units in free))
            if steepness == 0 or bound <= value:
                break
            step = patience * (bound - value) / steepness
            at = [max(price - step * units, 0.0) for price, units in zip(at, free, strict=True)]
        return best

    # ── a good answer ──────────────────────────────────────────────────────────────────────────────────────────────

    def repaired(self, picks: list[Option | None]) -> list[Option | None]:
        """Choices that fit into every pool: those that lose least for each unit they free are changed first."""
        picks = picks.copy()
        free = self.free(picks)
        pool = -1
        changes: dict[int, tuple[float, Option | None]] = {}
        while min(free) < 0:
            if pool != free.index(min(free)):  # or the units free elsewhere have changed
                pool = free.index(min(free))
                changes = {i: self._cheapest_change(i, p, free) for i, p in enumerate(picks) if p and p[2] == pool}
            i = min(changes, key=lambda i: changes[i][0])
            pick, to = picks[i], changes[i][1]
            assert pick is not None
            free[pool] += pick[1]
            picks[i] = to
            if to is None:
                changes[i] = _NEVER, None
                continue
            free[to[2]] -= to[1]
            if to[2] == pool:
                changes[i] = self._cheapest_change(i, to, free)
            else:
                pool = -1
        return picks

    def _cheapest_change(self, i: int, held: Option, free: list[int]) -> tuple[float, Option | None]:
        """The least loss per unit that another choice of a row frees, and that choice."""
        least, cheapest = _NEVER, None
        for option in self.rows[i]:
            if option[2] == held[2]:
                freed = held[1] - option[1]
                if freed <= 0:
                    continue
            elif option[1] <= free[option[2]]:
                freed = held[1]
            else:
                continue
            loss = (held[0] - option[0]) / freed
            if loss < least:
                least, cheapest = loss, option
        none = held[0] / held[1]
        return (none, None) if none <= least else (least, cheapest)

    def filled(self, picks: list[Option | None]) -> list[Option | None]:
        """The choices raised as long as units are free, each time where a unit gains most."""
        picks = picks.copy()
        free = self.free(picks)
        left = list(range(len(picks))) if any(free) else []
        while left:
            gains = [(i, *raised) for i in left if (raised := self._raise(i, picks[i], free)) is not None]
            if not gains:
                break
            left = [i for i, _, _ in gains]  # what once fits nowhere never fits again
            i, _, to = max(gains, key=lambda gain: gain[1])
            pick = picks[i]
            if pick:
                free[pick[2]] += pick[1]
            free[to[2]] -= to[1]
            picks[i] = to
        return picks

    def _raise(self, i: int, pick: Option | None, free: list[int]) -> tuple[float, Option] | None:
        """Return the row's largest gain per further unit within the free units, and its option; None without a gain."""
        worth, held, pool = (pick[0], pick[1], pick[2]) if pick else (0.0, 0, -1)
        best, to = _NONE, None
        for option in self.rows[i]:
            gain = option[0] - worth
            if gain > 0:
                more = option[1] - held if option[2] == pool else option[1]
                if more <= free[option[2]]:
                    density = gain / (more if more > _HALF else _HALF)
                    if density > best:
                        best, to = density, option
        return None if to is None else (best, to)

    # ── the exact search ───────────────────────────────────────────────────────────────────────────────────────────

    def searched(
        self, prices: Sequence[float], picks: list[Option | None], bound: float, largest: int
    ) -> tuple[list[Option | None], float, bool]:
        """The best of the options that a better answer could have, its value, and whether it is the optimum."""
        value = self.value(picks)
        slack = bound - value
        if slack <= _TIE * max(bound, 1.0):
            return picks, value, True
        fixed, core = self._core(prices, slack * (1.0 + 1e-9))
        if not core:
            return picks, value, True
        found = self._best_of_core(fixed, core, largest)
        if found is None:
            return picks, value, False
        best = self.value(found)
        return (picks, value, True) if best <= value else (found, best, True)

    def _core(
        self, prices: Sequence[float], near: float
    ) -> tuple[list[Option | None], list[tuple[int, list[Option], bool]]]:
        """By row the option that is certain; and the other rows: number, options, and whether none may be taken."""
        fixed: list[Option | None] = []
        core: list[tuple[int, list[Option], bool]] = []
        for i, row in enumerate(self.rows):
            nets = [option[0] - prices[option[2]] * option[1] for option in row]
            top = max(0.0, *nets) if nets else 0.0
            kept = [option for option, net in zip(row, nets, strict=True) if top - net <= near]
            none = top <= near
            if len(kept) + none > 1:
                core.append((i, kept, none))
                fixed.append(None)
            else:
                fixed.append(None if none else kept[0])
        return fixed, core

    def _best_of_core(
        self, fixed: list[Option | None], core: list[tuple[int, list[Option], bool]], largest: int
    ) -> list[Option | None] | None:
        """The best choices for the core beside the certain ones; None where the search would take too long."""
        free, reach = self.free(fixed), [0 for _ in self.capacity]
        least: list[int] = []
        for _, kept, none in core:
            pool = kept[0][2]
            must = not none and all(option[2] == pool for option in kept)
            least.append(min(option[1] for option in kept) if must else 0)
            free[pool] -= least[-1]
            for k in range(len(reach)):
                reach[k] += max([option[1] - least[-1] for option in kept if option[2] == k], default=0)
        free = [min(units, most) for units, most in zip(free, reach, strict=True)]
        states = prod(units + 1 for units in free)
        if min(free) < 0 or states * sum(len(kept) + 1 for _, kept, _ in core) > largest:
            return None
        options = [
            [(option[2], option[1] - units, option[0]) for option in kept]
            for (_, kept, _), units in zip(core, least, strict=True)
        ]
        taken = best_options_apart(options, [none for _, _, none in core], free)
        found = fixed.copy()
        for (i, kept, _), at in zip(core, taken, strict=True):
            found[i] = kept[at] if at >= 0 else None
        return found


class FewChosen(NamedTuple):
    """By row the option chosen or None; the fields are those of `multiple_choice.Chosen`."""

    picks: list[Option | None]
    value: float
    bound: float
    exact: bool
    prices: list[float]


def best_of_few(options: FewChoices, tolerance: float, largest: int) -> FewChosen:
    """The choices of most worth, as of `multiple_choice.best_choices`; ``largest`` limits the exact search."""
    prices = options.clearing_prices(tolerance)
    picks = options.filled(options.repaired(options.at_prices(prices)))
    value, bound = options.value(picks), options.bound(prices)
    if bound - value <= tolerance * bound:
        return FewChosen(picks, value, max(bound, value), bound <= value, prices)
    if len(options.capacity) > 1 and not options.apart:  # else the prices of the pools are the best ones already
        prices = options.polished(prices, value)
        other = options.filled(options.repaired(options.at_prices(prices)))
        picks = other if options.value(other) > value else picks
        bound = options.bound(prices)
    picks, value, exact = options.searched(prices, picks, bound, largest)
    return FewChosen(picks, value, max(bound, value) if exact else bound, exact, prices)


def _total(values: list[float]) -> float:
    """Return the sum of the values, added in numpy's order."""
    return float(np.add.reduce(np.array(values, dtype=np.float64)))


def _top(options: list[tuple[float, float]], price: float) -> float:
    return max([worth - price * units for worth, units in options], default=_NONE)


def _clearing_price(
    demand: list[tuple[float, list[tuple[float, float]]]], capacity: int, highest: float, tolerance: float
) -> float:
    """The lowest price at which the demand of these rows fits; a row has a worth elsewhere, and its options."""
    if not demand:
        return 0.0
    nothing = [0.0] * len(demand)
    return bisected(FewRows(demand, nothing, nothing, capacity), highest, tolerance)
