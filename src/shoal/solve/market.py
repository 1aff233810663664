"""The volatile Fisher market: goods that cannot be kept, sold round by round to buyers with a budget for all rounds.

A buyer's utility is the sum over rounds of what it gets from a round's goods, linear or Leontief in them. Allocation
and prices come from one Eisenberg–Gale program, max Σ budget · log utility, by an interior-point method, and are not
taken on trust: every answer says by how much each property of an equilibrium fails (`Equilibrium.residuals`), and no
allocation has a welfare above ``bound``, which follows from the prices alone.

Both utilities are sums over *purchases*: a linear buyer may buy each good of each round by itself, a Leontief buyer
only each round's whole bundle. There is one unit of every good in every round.

References: Shockwave (NSDI '23) §4 and appendices C to E; Eisenberg and Gale (1959).
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.errors import InputError

_STEPS = 100
"""Newton steps at most; a count, so that answers are the same on every machine. Some 25 are usual."""
_EXACT = 1e-10
"""Relative to all budgets: the complementarity at which the search ends. Infeasibility falls at least as fast."""
_EVEN = 1e-13
"""Keeps a step unique where prices are not."""
_CENTRED, _BACK = 0.1, 0.99
"""How much of the complementarity a step aims to leave, and how far towards the boundary it may go."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """By how much each property of an equilibrium fails, as a part of what it is about; 0 is never to fail.

    ``bang_per_buck``: money spent where it buys less than it could elsewhere. ``market_clearing``: the price of goods
    left over. ``budget_clearing``: money not spent, or spent twice. ``capacity``: goods sold that are not there.
    ``envy``: the most a buyer would gain with another's allocation, scaled to its own budget. ``proportionality``: the
    most a buyer falls short of its budget's part of every good. Envy and proportionality are parts of a utility.
    """

    bang_per_buck: float
    market_clearing: float
    budget_clearing: float
    capacity: float
    envy: float
    proportionality: float

    @property
    def worst(self) -> float:
        """The largest of them."""
        return float(max(getattr(self, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Equilibrium:
    """Who buys how much of what and when, at which prices.

    ``allocation[i, j, t]`` is buyer i's part of good j in round t and ``prices[j, t]`` what all of it costs. ``gap`` is
    (bound − welfare) / Σ budgets: no allocation has a weighted geometric mean of utilities e^gap times as large.
    """

    allocation: Floats
    prices: Floats
    utilities: Floats
    proportional: Floats
    """Each buyer's utility from its budget's part of every good."""
    welfare: float
    bound: float
    gap: float
    residuals: Residuals

    @property
    def finish_time_fairness(self) -> Floats:
        """Each buyer's ρ: its proportional utility over what it has; at most 1 in an equilibrium (corollary 4.0.1)."""
        rho: Floats = self.proportional / self.utilities
        return rho


def linear(worth: Floats, budgets: Floats) -> Equilibrium:
    """The equilibrium of buyers to whom all of good j in round t is worth ``worth[i, j, t]``, and a part that part."""
    buyers, goods, rounds = _checked("worth", worth, budgets)
    if not (worth.reshape(buyers, -1).max(axis=1) > 0.0).all():
        raise InputError("worth", "", "every buyer must find some good of some round worth something")
    who, good, when = np.nonzero(worth > 0.0)
    uses = np.zeros((goods * rounds, len(who)))
    uses[good * rounds + when, np.arange(len(who))] = 1.0
    bought, prices = _solved(who, worth[who, good, when], uses, budgets)
    allocation = np.zeros(worth.shape)
    allocation[who, good, when] = bought
    return _judged(allocation, prices.reshape(goods, rounds), budgets, _LinearTaste(worth))


def leontief(needs: Floats, budgets: Floats) -> Equilibrium:
    """The equilibrium of buyers that need ``needs[i, j, t]`` of good j for each unit of utility in round t.

    A round in which a buyer needs nothing of anything gives it nothing.
    """
    buyers, goods, rounds = _checked("needs", needs, budgets)
    wants = needs.max(axis=1) > 0.0
    if not wants.any(axis=1).all():
        raise InputError("needs", "", "every buyer must need something in some round")
    who, when = np.nonzero(wants)
    uses = np.zeros((goods, rounds, len(who)))
    uses[:, when, np.arange(len(who))] = needs[who, :, when].T
    bought, prices = _solved(who, np.ones(len(who)), uses.reshape(goods * rounds, -1), budgets)
    units = np.zeros((buyers, rounds))
    units[who, when] = bought
    return _judged(needs * units[:, None, :], prices.reshape(goods, rounds), budgets, _LeontiefTaste(needs))


def _checked(name: str, table: Floats, budgets: Floats) -> tuple[int, int, int]:
    if table.ndim != 3 or len(table) != len(budgets) or not table.size:
        raise InputError(name, table.shape, "must be buyers × goods × rounds, with a budget for every buyer")
    if not (np.isfinite(table).all() and (table >= 0.0).all()):
        raise InputError(name, "", "must be finite numbers, at least 0")
    if not (np.isfinite(budgets).all() and (budgets > 0.0).all()):
        raise InputError("budgets", budgets.tolist(), "must be finite numbers above 0")
    buyers, goods, rounds = table.shape
    return buyers, goods, rounds


@dataclass(frozen=True, slots=True)
class _LinearTaste:
    worth: Floats

    def utility(self, allocation: Floats) -> Floats:
        """What each buyer (rows) gets from each allocation (columns)."""
        flat: Floats = self.worth.reshape(len(self.worth), -1) @ allocation.reshape(len(allocation), -1).T
        return flat

    def cost(self, prices: Floats) -> Floats:
        """By buyer: the least price of a unit of utility."""
        wanted = self.worth > 0.0
        each = np.where(wanted, prices / np.where(wanted, self.worth, 1.0), np.inf)
        least: Floats = each.reshape(len(self.worth), -1).min(axis=1)
        return least


@dataclass(frozen=True, slots=True)
class _LeontiefTaste:
    needs: Floats

    def utility(self, allocation: Floats) -> Floats:
        """What each buyer (rows) gets from each allocation (columns)."""
        wants = self.needs > 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(wants[:, None], allocation[None] / self.needs[:, None], np.inf)
        units = parts.min(axis=2)
        answer: Floats = np.where(np.isfinite(units), units, 0.0).sum(axis=2)
        return answer

    def cost(self, prices: Floats) -> Floats:
        """By buyer: the least price of a unit of utility."""
        bundle = (self.needs * prices).sum(axis=1)
        least: Floats = np.where(self.needs.max(axis=1) > 0.0, bundle, np.inf).min(axis=1)
        return least


def _judged(allocation: Floats, prices: Floats, budgets: Floats, taste: _LinearTaste | _LeontiefTaste) -> Equilibrium:
    """The allocation, within what there is, and everything that can be held against it."""
    sold = allocation.sum(axis=0)
    allocation = allocation / np.maximum(sold, 1.0)
    crossed = taste.utility(allocation)
    utilities: Floats = crossed.diagonal().copy()
    spent = (allocation * prices).sum(axis=(1, 2))
    least = taste.cost(prices)
    proportional = taste.utility(np.ones((1, *prices.shape)))[:, 0] * budgets / budgets.sum()
    scaled = crossed * (budgets[:, None] / budgets[None, :])
    welfare = float(budgets @ np.log(utilities))
    bound = max(float(prices.sum() - budgets.sum() + budgets @ np.log(budgets / least)), welfare)
    residuals = Residuals(
        bang_per_buck=float(((spent - utilities * least) / budgets).max(initial=0.0)),
        market_clearing=float((prices * np.maximum(1.0 - sold, 0.0)).sum() / budgets.sum()),
        budget_clearing=float(np.abs(spent / budgets - 1.0).max()),
        capacity=float((allocation.sum(axis=0) - 1.0).max(initial=0.0)),
        envy=float((scaled / utilities[:, None] - 1.0).max(initial=0.0)),
        proportionality=float((1.0 - utilities / proportional).max(initial=0.0)),
    )
    gap = (bound - welfare) / float(budgets.sum())
    return Equilibrium(allocation, prices, utilities, proportional, welfare, bound, gap, residuals)


def _solved(who: Indices, gains: Floats, uses: Floats, budgets: Floats) -> tuple[Floats, Floats]:
    """Amounts of every purchase and a price for every good: max Σ B log(gains · amounts), uses · amounts ≤ 1."""
    wanted = uses.any(axis=1)
    if not wanted.all():
        amounts, prices = _solved(who, gains, uses[wanted], budgets)
        every = np.zeros(len(uses))
        every[wanted] = prices
        return amounts, every  # what nobody can use is free
    of = np.zeros((len(budgets), len(who)))
    of[who, np.arange(len(who))] = gains
    amounts = 1.0 / (uses.max(axis=0) * np.maximum((uses > 0.0).sum(axis=1).max(), 1))
    amounts *= 0.5 / float((uses @ amounts).max())
    prices = np.full(len(uses), float(budgets.sum()) / len(uses))
    rents = np.maximum(uses.T @ prices - (budgets / (of @ amounts)) @ of, budgets.mean() / amounts.mean() / len(who))
    point = _Point(amounts, 1.0 - uses @ amounts, prices, rents)
    for _ in range(_STEPS):
        step = _newton(point, of, uses, budgets)
        if step is None:
            break
        point = point.moved(*step)
    return point.amounts, point.prices


@dataclass(frozen=True, slots=True)
class _Point:
    """Amounts bought and goods left over; prices, and by how much each purchase costs more than it is worth."""

    amounts: Floats
    slack: Floats
    prices: Floats
    rents: Floats

    def moved(self, amounts: Floats, slack: Floats, prices: Floats, rents: Floats) -> "_Point":
        """As far along these changes as everything stays above 0."""
        pairs = ((self.amounts, amounts), (self.slack, slack), (self.prices, prices), (self.rents, rents))
        step = min(1.0, _BACK * min(_room(values, change) for values, change in pairs))
        return _Point(*(values + step * change for values, change in pairs))


def _newton(at: _Point, of: Floats, uses: Floats, budgets: Floats) -> tuple[Floats, Floats, Floats, Floats] | None:
    """The change that would bring the point nearer to complementary and feasible; None when it is.

    Each buyer's utility adds a matrix of rank one to a diagonal, so a step costs no more than solving for the prices.
    """
    utility = of @ at.amounts
    paid = (budgets / utility) @ of
    complementary = float(at.rents @ at.amounts + at.prices @ at.slack)
    stationary = uses.T @ at.prices - paid - at.rents
    feasible = uses @ at.amounts + at.slack - 1.0
    if complementary <= _EXACT * float(budgets.sum()):
        return None
    target = _CENTRED * complementary / (len(paid) + len(feasible))
    diagonal = at.rents / at.amounts
    ranks = of / diagonal
    weighed = ranks / (utility**2 / budgets + (of * ranks).sum(axis=1))[:, None]
    right = target / at.amounts - stationary - at.rents
    bent = uses / diagonal - (uses @ ranks.T) @ weighed
    normal = bent @ uses.T + np.diag(at.slack / at.prices)
    scale = 1.0 / np.sqrt(normal.diagonal())
    wanted = feasible + bent @ right - at.slack + target / at.prices
    # Goods that every buyer needs together have one price between them; how it splits is for the last term to say.
    even = normal * scale * scale[:, None] + _EVEN * np.eye(len(scale))
    prices = scale * np.linalg.solve(even, scale * wanted)
    pull = right - uses.T @ prices
    amounts = pull / diagonal - weighed.T @ (ranks @ pull)
    return amounts, -feasible - uses @ amounts, prices, target / at.amounts - at.rents - diagonal * amounts


def _room(values: Floats, change: Floats) -> float:
    """How much of a change keeps values above 0."""
    falling = change < 0.0
    return float((values[falling] / -change[falling]).min(initial=np.inf))
