"""Properties of one auction (theorem 3.2), counted on random auctions small enough to try all allocations.

Each auction has up to four bidders for up to eight GPUs. A bidder's value is 1/ρ, and 0 without GPUs:

- ``linear``, as the theorem assumes (homogeneous of degree one); ``limited``: linear up to a number of GPUs;
- ``concave``, with a slowdown that grows with the GPUs; in ``gangs``: only at multiples of a gang;
- ``late``: linear but with time already elapsed, as in equation 1.

The arbiter counts a bundle without GPUs as 1/``nothing`` of the value of the fewest GPUs. The properties are judged of
the winners' bundles, of what is left of them after payment and random rounding, in expectation, and of the GPUs after
the rest was handed out.

- PE: no allocation is better for one bidder and worse for none.
- EF: no bidder values another's bundle more than its own; EF1: nor the other's less one GPU.
- SI: every bidder has at least the value of 1/N of the GPUs, in proportion where that is not whole.
- SP: none of twelve random bids gives the first bidder more, in expectation, than the truth.
"""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import inf

import numpy as np

from shoal.core.arrays import Floats
from shoal.policy.themis.arbiter import Arbiter
from shoal.policy.themis.protocol import Bid, GpuOffer, Level, Row
from shoal.research.repro.context import ReproContext
from shoal.research.repro.paired import all_hold
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Cell, Column, Table, table
from shoal.solve.auction import CountBid, auction_counts, with_finite_worth

KINDS = ("linear", "limited", "concave", "gangs", "late")
NOTHINGS = (2.0, inf)
AUCTIONS = 200
SEEDS = 5
_LIES = 12
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class PropertyCounts:
    """Auctions, and those with each property; ``gain`` is the largest gain of a lie, as a fraction of the value."""

    auctions: int = 0
    pe_won: int = 0
    ef_won: int = 0
    ef1_won: int = 0
    si_won: int = 0
    ef_paid: int = 0
    si_paid: int = 0
    sp: int = 0
    pe_settled: int = 0
    gain: float = 0.0

    def plus(self, other: "PropertyCounts") -> "PropertyCounts":
        """Return the counts of both together, and the larger gain."""
        added = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return PropertyCounts(**{**added, "gain": max(self.gain, other.gain)})

    def share(self, name: str) -> float:
        """Return the fraction of the auctions with a property."""
        return float(getattr(self, name)) / self.auctions


@dataclass(frozen=True, eq=False)
class RandomAuction:
    """Values by bidder and number of GPUs; 0 of none, −1 where a number is unusable."""

    units: int
    values: tuple[Floats, ...]
    nothing: float

    def value(self, bidder: int, gpus: float) -> float:
        """The value of a number of GPUs that need not be whole or usable: in proportion between usable ones."""
        usable = np.flatnonzero(self.values[bidder] >= 0.0)
        return float(np.interp(gpus, usable, self.values[bidder][usable]))

    def bids(self, values: Sequence[Floats]) -> list[CountBid]:
        """The bids of bidders with these values."""
        usable = [np.flatnonzero(value >= 0.0) for value in values]
        with np.errstate(divide="ignore"):
            logs = [np.log(self.counted(v)[at]) for v, at in zip(values, usable, strict=True)]
        return list(map(CountBid, usable, with_finite_worth(logs)))

    def counted(self, values: Floats) -> Floats:
        """Return the values, with that of a bundle without GPUs as the arbiter counts it."""
        counted = values.copy()
        counted[0] = float(values[values > 0.0][0]) / self.nothing
        return counted


def random_auction(kind: str, nothing: float, chance: np.random.Generator) -> RandomAuction:
    """Draw an auction with values of this kind."""
    units, bidders = int(chance.integers(2, 9)), int(chance.integers(2, 5))
    values = []
    for _ in range(bidders):
        gpus = np.arange(units + 1, dtype=np.float64)
        slope, limit = float(chance.uniform(0.5, 5.0)), int(chance.integers(1, units + 1))
        value = slope * gpus
        if kind == "limited":
            value = slope * np.minimum(gpus, limit)
        elif kind == "concave":
            value = slope * gpus / (1.0 + float(chance.uniform(0.0, 0.5)) * np.maximum(gpus - 1.0, 0.0))
        elif kind == "late":
            value[1:] = 1.0 / (float(chance.uniform(0.0, 1.0)) + 1.0 / value[1:])
        elif kind == "gangs":
            gang = int(chance.integers(1, min(units, 4) + 1))
            value = np.where(gpus % gang == 0, slope * gpus, -1.0)
        value[0] = 0.0
        values.append(value)
    return RandomAuction(units, tuple(values), nothing)


def judge(auction: RandomAuction, chance: np.random.Generator) -> PropertyCounts:
    """Return which properties one auction has."""
    count, bids = len(auction.values), auction.bids(auction.values)
    outcome = auction_counts(bids, auction.units)
    won = [int(bid.units[option]) for bid, option in zip(bids, outcome.chosen, strict=True)]
    kept = outcome.kept.tolist()
    mine = [auction.value(i, won[i]) for i in range(count)]
    paid = [auction.value(i, kept[i] * won[i]) for i in range(count)]
    part = [auction.value(i, auction.units / count) for i in range(count)]
    pairs = list(itertools.permutations(range(count), 2))
    settled = _settled(auction, chance)
    gain = max(_gain(auction, paid[0], chance) for _ in range(_LIES))
    return PropertyCounts(
        1,
        pareto_efficient(auction, won),
        all(mine[i] >= auction.value(i, won[j]) - _SLACK for i, j in pairs),
        all(mine[i] >= auction.value(i, max(won[j] - 1, 0)) - _SLACK for i, j in pairs),
        all(mine[i] >= part[i] - _SLACK for i in range(count)),
        all(paid[i] >= auction.value(i, kept[j] * won[j]) - _SLACK for i, j in pairs),
        all(paid[i] >= part[i] - _SLACK for i in range(count)),
        gain <= _SLACK,
        pareto_efficient(auction, settled),
        max(gain, 0.0),
    )


def pareto_efficient(auction: RandomAuction, given: Sequence[int]) -> bool:
    """Whether no allocation of usable numbers is better for one bidder and worse for none."""
    mine = [auction.value(i, gpus) for i, gpus in enumerate(given)]
    usable = [np.flatnonzero(values >= 0.0).tolist() for values in auction.values]
    for other in itertools.product(*usable):
        if sum(other) > auction.units:
            continue
        more = [float(auction.values[i][gpus]) - mine[i] for i, gpus in enumerate(other)]
        if min(more) >= -_SLACK and max(more) > _SLACK:
            return False
    return True


def _gain(auction: RandomAuction, honest: float, chance: np.random.Generator) -> float:
    """Gain of a random bid of the first bidder over the truth, as a fraction of the most it could have."""
    first = auction.values[0]
    lie = np.where(first > 0.0, first * np.exp(chance.normal(0.0, 1.0, len(first))), first)
    bids = auction.bids((lie, *auction.values[1:]))
    outcome = auction_counts(bids, auction.units)
    gpus = int(bids[0].units[outcome.chosen[0]])
    got = auction.value(0, float(outcome.kept[0]) * gpus)
    return (got - honest) / float(first.max())


def _settled(auction: RandomAuction, chance: np.random.Generator) -> list[int]:
    """Whole GPUs by bidder after payments, random rounding, and handing out what is left."""
    bids = []
    for app, values in enumerate(auction.values):
        usable, counted = np.flatnonzero(values >= 0.0).tolist(), auction.counted(values)
        rhos = [1.0 / float(counted[n]) if counted[n] > 0.0 else inf for n in usable]
        rows = tuple(Row(n, Level.SLOT, rho) for n, rho in zip(usable, rhos, strict=True))
        bids.append(Bid(app, rows, tuple(usable)))
    offer = GpuOffer(0, ((0, "r0", auction.units),), 600.0)
    awards = Arbiter(0.0, "random").settle(offer, bids, [], chance).awards
    return [awards[app].gpus for app in range(len(bids))]


def count_properties(kind: str, nothing: float, seed: int, auctions: int) -> PropertyCounts:
    """Count the properties of random auctions of one kind."""
    chance = np.random.default_rng([seed, KINDS.index(kind)])
    counts = PropertyCounts()
    for _ in range(auctions):
        counts = counts.plus(judge(random_auction(kind, nothing, chance), chance))
    return counts


def property_table(found: dict[tuple[str, float], PropertyCounts]) -> Table:
    """The fractions of auctions with each property, by kind of values and reading of nothing."""
    names = ("pe_won", "ef_won", "ef1_won", "si_won", "ef_paid", "si_paid", "sp", "pe_settled")
    rows: list[list[Cell]] = [
        [kind, "∞" if nothing == inf else f"{nothing:g}", *(counts.share(name) for name in names), counts.gain]
        for (kind, nothing), counts in found.items()
    ]
    theorem = found["linear", inf]
    claims = {
        f"{what} in every auction of linear values (ours {theorem.share(name):.0%})": theorem.share(name) == 1.0
        for what, name in (("SP", "sp"), ("PE of the winners", "pe_won"), ("EF after payment", "ef_paid"))
    }
    claims["SI fails in some"] = theorem.si_paid < theorem.auctions
    heads = ("PE won", "EF won", "EF1 won", "SI won", "EF paid", "SI paid", "SP", "PE settled")
    columns = [*(Column(name, ".1%") for name in heads), Column("largest gain of a lie", ".1%")]
    return table(
        f"theorem 3.2: auctions with each property, of {theorem.auctions:.0f} of each kind",
        ["values", "nothing", *columns],
        rows,
        "a one-shot auction guarantees SP, PE and EF, but not SI",
        "GPUs are whole here; the proof has any fraction of a bundle",
        verdict=all_hold(claims),
    )


def _tables(context: ReproContext) -> list[Table]:
    seeds, auctions = (range(2), AUCTIONS // 4) if context.quick else (range(SEEDS), AUCTIONS)
    found: dict[tuple[str, float], PropertyCounts] = {}
    for kind, nothing in itertools.product(KINDS, NOTHINGS):
        counts = PropertyCounts()
        for seed in seeds:
            key = {"themis-properties": kind, "nothing": str(nothing), "seed": seed, "auctions": auctions}
            label = f"{auctions} auctions, {kind} values, nothing={nothing:g}, seed {seed}"
            row = context.run(key, label, _counted, kind, nothing, seed, auctions)
            counts = counts.plus(PropertyCounts(**row))
        found[kind, nothing] = counts
    return [property_table(found)]


def _counted(kind: str, nothing: float, seed: int, auctions: int) -> dict[str, float]:
    return {name: float(value) for name, value in asdict(count_properties(kind, nothing, seed, auctions)).items()}


REPRODUCTIONS = (
    Reproduction("themis-properties", "Themis (NSDI '20)", "properties of random auctions (theorem 3.2)", _tables),
)
