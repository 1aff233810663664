"""Auctions of named machines: winners and payments by integer programs.

    maximise Σ gain · z,  z binary by bundle
    subject to at most one bundle a bidder,  units taken of a machine ≤ free units.

The relaxation is solved first. By weak duality its row prices bound every further program, so only the bundles that
could beat the best known value go to the integer solver. Without a bidder the others can at least keep what they have
and at best reach the relaxation without it: where the two meet, its payment needs no search.

References: HiGHS, Huangfu and Hall (2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from highspy import HighsModelStatus

from shoal.core.arrays import Flags, Floats, Int64s
from shoal.solve.auction.outcome import AuctionOutcome, judged
from shoal.solve.linear_program import LpSession, Program, load, quiet_highs

Bundle: TypeAlias = tuple[tuple[int, int], ...]
"""Units on machines: (machine, units), machines ascending."""

_EXACT = 1e-9
"""Sums of logarithms closer than this are equal."""

_CORE = 0.05
"""Bundles up to this far below their price are searched first, before any gap is known."""

_WIDER = 1.1
"""The next gap is expected to be at most this much larger than any so far."""


@dataclass(frozen=True, slots=True, eq=False)
class MachineBid:
    """Bundles and the logarithm of each one's value; the first bundle is empty."""

    bundles: tuple[Bundle, ...]
    worth: Floats

    def __post_init__(self) -> None:
        if len(self.bundles) != len(self.worth) or not self.bundles or self.bundles[0]:
            raise ValueError("a bid has a worth for every bundle, and the first bundle is nothing")
        if not np.isfinite(self.worth).all():
            raise ValueError("the logarithm of a value must be finite: a bidder that gets nothing must be worth some")


def auction_machines(bids: Sequence[MachineBid], free: Sequence[int]) -> AuctionOutcome:
    """The bundles with the largest product of values on these free units, and the part each bidder keeps."""
    market = _Market.of(bids, np.array(free, dtype=np.int64))
    best = market.best((), core=_CORE)
    chosen = np.zeros(len(bids), dtype=np.int64)
    chosen[market.bidder[best.columns]] = market.option[best.columns]
    idle = np.array([bid.worth[0] for bid in bids])
    gains = np.zeros(len(bids))
    gains[market.bidder[best.columns]] = market.gain[best.columns]
    base = float(idle.sum())
    without, unproven = best.value - gains, np.zeros(len(bids))
    core = max(best.relaxed - best.value, _EXACT)
    for i in np.flatnonzero(gains > 0).tolist():  # a bidder without a bundle pays nothing
        alone = market.best((i,), floor=best.columns[market.bidder[best.columns] != i], core=_WIDER * core)
        core = max(core, alone.relaxed - alone.value)
        without[i], unproven[i] = alone.value, alone.bound - alone.value
    return judged(chosen, idle + gains, base + best.bound, base - idle + without, unproven)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Compatible columns, their gain, a bound on the most gain, and the value of the relaxation."""

    columns: Int64s
    value: float
    bound: float
    relaxed: float


@dataclass(frozen=True, slots=True, eq=False)
class _Market:
    """The integer program of an auction: a column for each bundle that gains its bidder something."""

    bidder: Int64s
    option: Int64s
    gain: Floats
    rows: Int64s
    columns: Int64s
    values: Floats
    upper: Floats
    session: LpSession

    @classmethod
    def of(cls, bids: Sequence[MachineBid], free: Int64s) -> "_Market":
        kept = [
            (i, o, float(bid.worth[o] - bid.worth[0]), bundle)
            for i, bid in enumerate(bids)
            for o, bundle in enumerate(bid.bundles)
            if bid.worth[o] > bid.worth[0] and all(0 < n <= free[m] for m, n in bundle)
        ]
        taken = [(len(bids) + m, c, float(n)) for c, (_, _, _, bundle) in enumerate(kept) for m, n in bundle]
        bidder = np.array([k[0] for k in kept], dtype=np.int64)
        rows = np.concatenate([bidder, np.array([t[0] for t in taken], dtype=np.int64)])
        columns = np.concatenate([np.arange(len(kept)), np.array([t[1] for t in taken], dtype=np.int64)])
        values = np.concatenate([np.ones(len(kept)), np.array([t[2] for t in taken])])
        upper = np.concatenate([np.ones(len(bids)), free.astype(np.float64)])
        reach, lower = np.ones(len(kept)), np.full(len(upper), -np.inf)
        session = LpSession(Program(rows, columns, values, lower, upper, reach))
        option = np.array([k[1] for k in kept], dtype=np.int64)
        return cls(bidder, option, np.array([k[2] for k in kept]), rows, columns, values, upper, session)

    def best(self, absent: tuple[int, ...], core: float, floor: Int64s | None = None) -> _Found:
        """Return the compatible columns with the most gain, none of them of a bidder in ``absent``.

        The search begins with ``floor``, compatible columns that are known, and with the bundles whose gain is at most
        ``core`` below their price.
        """
        there = ~np.isin(self.bidder, absent)
        gain = np.where(there, self.gain, 0.0)
        known = np.zeros(0, dtype=np.int64) if floor is None else floor
        value = float(gain[known].sum())
        if not there.any():
            return _Found(known, 0.0, 0.0, 0.0)
        vertex = self.session.maximise(gain)
        bound = self.session.bound(gain, vertex.prices)
        whole = vertex.solved and bool((np.abs(vertex.x - np.rint(vertex.x)) < 1e-9)[there].all())
        if whole:
            picked = np.flatnonzero(there & (vertex.x > 0.5))
            if self._fits(picked) and gain[picked].sum() > value:
                known, value = picked, float(gain[picked].sum())
        if bound - value <= _EXACT:
            return _Found(known, value, max(bound, value), bound)
        return self._search(gain, there, vertex.prices, bound, core, known, value)

    def _search(
        self,
        gain: Floats,
        there: Flags,
        prices: Floats,
        bound: float,
        core: float,
        known: Int64s,
        value: float,
    ) -> _Found:
        """Search, by integer program, the columns that an answer better than the known one could have."""
        # Weak duality: a column costs the bound as much as its gain is below its price. The optimum is seldom far below
        # the bound, so a few columns are searched first; what they reach limits the others.
        short = np.maximum(-self.session.worth(gain, np.maximum(prices, 0.0)), 0.0)
        reach = min(core, bound - value)
        while True:
            solved, proven = self._integer(np.flatnonzero(there & (short <= reach)), gain)
            if solved is not None and gain[solved].sum() > value:
                known, value = solved, float(gain[solved].sum())
            if bound - value <= reach:
                return _Found(known, value, max(min(bound, proven), value), bound)
            reach = bound - value

    def _fits(self, picked: Int64s) -> bool:
        part = np.isin(self.columns, picked)
        used = np.bincount(self.rows[part], self.values[part], minlength=len(self.upper))
        return bool((used <= self.upper).all())

    def _integer(self, open_columns: Int64s, gain: Floats) -> tuple[Int64s | None, float]:
        """The best of these columns by branch and bound, checked in whole numbers, and its bound."""
        place = np.full(len(gain), -1)
        place[open_columns] = np.arange(len(open_columns))
        part = place[self.columns] >= 0
        program = Program(
            self.rows[part],
            place[self.columns[part]],
            self.values[part],
            np.full(len(self.upper), -np.inf),
            self.upper,
            np.ones(len(open_columns)),
        )
        highs = quiet_highs(mip_rel_gap=0.0, mip_abs_gap=_EXACT / 10)
        load(highs, program, gain[open_columns], program.reach, integer=True)
        highs.run()
        if highs.getModelStatus() != HighsModelStatus.kOptimal:
            return None, np.inf
        picked = open_columns[np.array(highs.getSolution().col_value) > 0.5]
        return (picked if self._fits(picked) else None), float(highs.getInfo().mip_dual_bound)
