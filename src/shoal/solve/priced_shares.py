"""The most gain of many jobs on few types: prices decide most of them, small linear programs the others.

    maximise Σ gain · x  subject to x ≥ 0,  Σ x of a job ≤ 1,  Σ need · x ≤ capacity of each row in common.

At the best prices of the rows in common (GPUs of a type, places on nodes) each job takes the activity of most gain less
price, or idles; few are tied. So prices are estimated from a sample of the jobs. Jobs whose choice only the largest
changes of prices would alter are settled; the others share the rest by a linear program, whose prices are the next
estimate. The iteration ends when the gap to the bound of the prices,

    Σ capacity · price + Σ over jobs of max(0, gain − price of the need),

is at most `GOAL`. The bound holds for all jobs at any prices, so nothing is lost by what was settled.

References: Dantzig and Wolfe (1960) for prices of the rows in common.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.equal_jobs import EqualJobs
from shoal.solve.linear_program import LpSession, Program, relative_gap
from shoal.solve.time_share_lp import NO_PARTNER, Activities

MANY = 2_000
"""Jobs beyond which prices are used: the objective is as good, but of equally good shares others may be found."""
GOAL = 1e-9
"""Relative gap at which an answer is final."""
_EACH = 4
"""The sample has one group in this many."""
_DOUBTFUL = 600
"""Groups of equal jobs in the first linear program; the number is doubled each time a program does not reduce the gap
tenfold. Up to this number of groups no sample is taken."""
_PROGRAMS = 12
_TIED = 3e-10
"""Activities of a job whose gains less price differ by less, as a fraction of the largest gain, are equally good."""
_GOLDEN = 0.6180339887498949
_BALANCED = 8
"""Turns in which tied activities are moved from the rows that they would fill first."""


@dataclass(frozen=True, slots=True)
class PricedShares:
    """Amounts by activity, their gain, and the prices of the rows in common (types, then limits) with their bound."""

    x: Floats
    gain: float
    prices: Floats
    bound: float

    @property
    def gap(self) -> float:
        """The relative distance of the gain to the bound; infinite where a program failed."""
        return relative_gap(self.gain, self.bound)


def many_alone(activities: Activities) -> bool:
    """Return whether there are more than `MANY` jobs, none of which shares GPUs."""
    return len(activities.counts) > MANY and activities.size > 0 and bool((activities.second == NO_PARTNER).all())


def most_gain(activities: Activities, gain: Floats, whole: int | None = None) -> PricedShares:
    """The amounts of most gain of activities without pairs, each group one job.

    The job ``whole`` has all its time on its fastest types, whatever it costs the others.
    """
    alone = np.zeros(len(activities.counts), dtype=bool)
    wanted = gain
    if whole is not None:
        alone[whole] = True
        slower = (activities.first == whole) & (activities.first_speed < activities.top_speed()[whole])
        wanted = np.where(slower, 0.0, gain)
    equal = EqualJobs.of(activities, wanted, alone.astype(np.float64))
    of = equal.activities
    market = _GroupMarket(
        of.first,
        wanted[equal.at],
        of.width,
        _needs(of),
        of.counts,
        np.isin(np.arange(len(of.counts)), equal.group[alone]),
        np.concatenate([of.capacity, of.limits.most]),
    )
    found = market.solved()
    x = equal.in_order(found.x, activities, wanted)
    return PricedShares(x, float(gain @ x), found.prices, found.bound)


@dataclass(frozen=True, slots=True)
class _Choice:
    """By group the most gain less price of an activity, whether it runs, and how firm that is; its best activities.

    ``firm`` is the least change of prices per GPU that changes the choice. ``tied`` are the activities that are equally
    good, ``first`` the place in ``tied`` of each group's first.
    """

    worth: Floats
    runs: Flags
    firm: Floats
    tied: Indices
    first: Indices


@dataclass(frozen=True, slots=True)
class _GroupMarket:
    """Groups of equal jobs, every one with an activity, and the rows in common.

    By activity, in order of groups: its ``group``, ``gain``, ``width`` in GPUs, and ``need`` of each row (activities ×
    rows). Groups marked ``whole`` may not idle.
    """

    group: Indices
    gain: Floats
    width: Floats
    need: Floats
    counts: Floats
    whole: Flags
    capacity: Floats

    def solved(self) -> PricedShares:
        """The amounts of most gain."""
        groups, doubtful, prices = len(self.counts), _DOUBTFUL, np.zeros(len(self.capacity))
        if not groups:
            return PricedShares(np.zeros(0), 0.0, prices, 0.0)
        if groups > doubtful:
            prices = self._sample().solved().prices
        best = PricedShares(np.zeros(len(self.group)), 0.0, prices, self.bound(prices))
        for _ in range(_PROGRAMS):
            found = self._improved(best.prices, doubtful)
            if found is None:
                break
            before = best.gap
            x, gain = (found.x, found.gain) if found.gain > best.gain else (best.x, best.gain)
            proof = found if found.bound < best.bound else best
            best = PricedShares(x, gain, proof.prices, proof.bound)
            if best.gap <= GOAL or doubtful >= groups:
                break
            doubtful *= 2 if best.gap > before / 10 else 1
        return best

    def bound(self, prices: Floats) -> float:
        """Return a bound on the gain of any amounts, valid for any prices."""
        worth = self._choice(prices).worth
        return float(self.capacity @ prices + self.counts @ np.where(self.whole, worth, np.maximum(worth, 0.0)))

    def _choice(self, prices: Floats) -> _Choice:
        start = np.searchsorted(self.group, np.arange(len(self.counts)))
        worth = self.gain - self.need @ prices
        most = np.maximum.reduceat(worth, start)
        tied = np.flatnonzero(worth >= most[self.group] - _TIED * float(self.gain.max()))
        worth[tied] = -np.inf
        others = np.maximum(np.maximum.reduceat(worth, start), 0.0)
        firm = np.where(most > 0, most - others, -most) / self.width[start]
        firm[self.whole] = np.inf
        first = np.searchsorted(self.group[tied], np.arange(len(self.counts)))
        return _Choice(most, (most > 0) | self.whole, firm, tied, first)

    def _balanced(self, choice: _Choice) -> Indices:
        """Return a tied activity of each group, so that running groups use all rows in common about equally."""
        tied, first = choice.tied, choice.first
        owner, need = self.group[tied], self.need[tied]
        room, many = self.capacity.copy(), np.where(choice.runs, self.counts, 0.0)[owner]
        for _ in range(_BALANCED):
            part = np.where(need > 0, room, np.inf).min(axis=1)
            total = np.add.reduceat(part, first)
            room *= self.capacity / np.maximum((many * part / total[owner]) @ need, 1e-3 * self.capacity)
            room /= room.max()
        end = np.cumsum(part)
        # Multiples of the golden ratio are even at every length, so the groups taken first are spread alike.
        goal = (end - part)[first] + total * (np.arange(len(total)) * _GOLDEN % 1.0)
        at = np.searchsorted(end, goal, side="right")
        found: Indices = tied[np.clip(at, first, np.append(first[1:], len(tied)) - 1)]
        return found

    def _sample(self) -> "_GroupMarket":
        """Every fourth group in order of gain per GPU, with its part of the rows in common."""
        start = np.searchsorted(self.group, np.arange(len(self.counts)))
        order = np.argsort(np.maximum.reduceat(self.gain / self.width, start), kind="stable")
        sample = np.sort(order[~self.whole[order]][_EACH // 2 :: _EACH])
        size = self.counts * self.width[start]
        place = np.full(len(self.counts), -1)
        place[sample] = np.arange(len(sample))
        at = np.flatnonzero(place[self.group] >= 0)
        return _GroupMarket(
            place[self.group[at]],
            self.gain[at],
            self.width[at],
            self.need[at],
            self.counts[sample],
            self.whole[sample],
            self.capacity * float(size[sample].sum() / size.sum()),
        )

    def _improved(self, prices: Floats, doubtful: int) -> PricedShares | None:
        """The gain with all groups but the most doubtful settled by these prices; None where the program fails."""
        choice = self._choice(prices)
        activity, firm = choice.tied[choice.first], choice.firm
        # Groups between tied activities are in doubt too. Where all jobs are as fast on one type as on another, most
        # are tied whatever the prices: some of them stay in doubt.
        loose = np.flatnonzero(choice.runs & (np.diff(choice.first, append=len(choice.tied)) > 1) & ~self.whole)
        if len(loose) > doubtful:
            activity, loose = self._balanced(choice), loose[:: -(-len(loose) // doubtful)]
        firm[loose] = -1.0
        firmest = np.argsort(-firm, kind="stable")
        chosen = np.where(choice.runs, activity, -1)[firmest]
        used = np.cumsum(np.where(chosen >= 0, self.counts[firmest], 0.0)[:, None] * self.need[chosen], axis=0)
        fits = int((used <= self.capacity).all(axis=1).argmin()) if (used[-1] > self.capacity).any() else len(used)
        settled = max(min(fits, len(used) - doubtful - len(loose)), 0)
        x, kept = np.zeros(len(self.group)), chosen[:settled]
        x[kept[kept >= 0]] = self.counts[self.group[kept[kept >= 0]]]
        left = self.capacity - (used[settled - 1] if settled else 0.0)
        others = np.sort(firmest[settled:])
        amounts, found, solved = self._program(others, left)
        if not solved:
            return None
        x[np.isin(self.group, others)] = amounts
        return PricedShares(x, float(self.gain @ x), found, self.bound(found))

    def _program(self, groups: Indices, capacity: Floats) -> tuple[Floats, Floats, bool]:
        """The best amounts of these groups within this capacity, the prices, and whether the solver found them."""
        place = np.full(len(self.counts), -1)
        place[groups] = np.arange(len(groups))
        at = np.flatnonzero(place[self.group] >= 0)
        activity, row = np.nonzero(self.need[at])
        own, rows = place[self.group[at]], len(groups) + len(capacity)
        least = np.where(self.whole[groups], self.counts[groups], -np.inf)
        program = Program(
            rows=np.concatenate([own, len(groups) + row]),
            columns=np.concatenate([np.arange(len(at)), activity]),
            values=np.concatenate([np.ones(len(at)), self.need[at][activity, row]]),
            lower=np.concatenate([least, np.full(len(capacity), -np.inf)]),
            upper=np.concatenate([self.counts[groups], capacity]),
            reach=self.counts[self.group[at]],
        )
        vertex = LpSession(program).maximise(self.gain[at])
        return vertex.x, np.maximum(vertex.prices[len(groups) : rows], 0.0), vertex.solved


def _needs(activities: Activities) -> Floats:
    """What each activity needs of the rows in common: its width of its type, and 1 of each of its limits."""
    types, limits = len(activities.capacity), activities.limits
    need = np.zeros((activities.size, types + len(limits.most)))
    need[np.arange(activities.size), activities.types] = activities.width
    need[limits.activity, types + limits.row] = 1.0
    return need
