"""Local search over the pattern of seats of each round, in the space of counts.

The worth of a plan in counts depends only on the seats each class has in all rounds, so an exchange is evaluated by a
table lookup. The neighbourhoods are exchanges of a few seats within a round that keep the GPUs in use nearly equal,
another pattern for one round, and for two; the search ends where none gains.

References: Gilmore and Gomory (1961); Graver (1975) for exchanges that lead to an optimum.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from shoal.core.arrays import Floats, Indices, Int64s
from shoal.solve.window.classes import Classes
from shoal.solve.window.prices import Priced

_REACH, _MOVES = 8, 20_000
"""Seats of one class that an exchange adds or removes at most, and the most exchanges."""

_PAIRED, _CELLS = 30, 300_000
"""The dearest patterns, tried two at a time, and the most numbers that may evaluate."""

_STEPS, _AT_ONCE = 200, 64
"""Passes over all exchanges, a count, so that a plan is the same on every machine; and exchanges tried together."""

_GAIN = 1e-9
"""Relative: exchanges that gain less are not made, or rounding could make the search cycle."""


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Local search for the seats of most worth in the window program in counts, beginning at its prices."""

    classes: Classes
    priced: Priced

    def best(self, now: Int64s, close: float) -> Int64s:
        """Seats by round and class, worth no less than ``now``; the search ends ``close`` to the bound."""
        least = self.priced.bound - self.classes.base - close
        found = self._improved(self._split(), least)
        if self._worth(found.sum(axis=0)) >= least:
            return found
        other = self._improved(now, least)
        return max(found, other, key=lambda seats: float(self._worth(seats.sum(axis=0))))

    def _split(self) -> Int64s:
        """Return rounds by pattern: each pattern's share rounded down, the rest to the patterns that lack most."""
        shares, rounds = self.priced.shares, self.classes.rounds
        whole = np.floor(shares + 1e-9).astype(np.int64)
        lacking = np.argsort(whole - shares, kind="stable")
        whole += np.bincount(np.resize(lacking, max(rounds - int(whole.sum()), 0)), minlength=len(whole))
        return np.repeat(self.priced.patterns, whole, axis=0)[:rounds]

    def _improved(self, seats: Int64s, least: float) -> Int64s:
        """The seats after exchanges until none gains or they are worth ``least``."""
        seats, pool = seats.copy(), self._pool
        for _ in range(_STEPS):
            worth = float(self._worth(seats.sum(axis=0)))
            gain = _GAIN * (1.0 + abs(worth))
            if worth >= least or not (
                self._within(seats, gain) or self._another(seats, pool, gain) or self._pair(seats, pool[:_PAIRED], gain)
            ):
                break
        return seats

    @cached_property
    def _pool(self) -> Int64s:
        """The patterns found while pricing, the dearest first."""
        return self.priced.patterns[np.argsort(-(self.priced.patterns @ self.priced.price), kind="stable")]

    @cached_property
    def _table(self) -> Floats:
        """Worth by class and seats in the window; uncovered forced rounds cost more than all worth."""
        most = int((self.classes.most * self.classes.rounds).max(initial=0)) + _REACH
        seats = np.arange(most + 1)
        sure = 1.0 + sum(float(sums[-1]) for sums in self.classes.sums)
        rows = []
        for sums, owed in zip(self.classes.sums, self.classes.forced.tolist(), strict=True):
            rows.append(sums[np.clip(seats - owed, 0, len(sums) - 1)] - sure * np.maximum(owed - seats, 0))
        return np.array(rows)

    def _worth(self, total: Int64s) -> Floats:
        worth: Floats = self._table[np.arange(total.shape[-1]), total].sum(axis=-1)
        return worth

    @cached_property
    def _moves(self) -> tuple[Indices, Int64s, Int64s]:
        """Exchanges of up to three classes: the classes, the change in seats of each, and the change in GPUs used."""
        widths = self.classes.widths
        narrow = int(widths.min(initial=1))
        found = []
        for size in range(1, min(len(widths), 3) + 1):
            which = np.array(list(combinations(range(len(widths)), size)))
            reach = next((r for r in range(_REACH, 0, -1) if len(which) * (2 * r) ** size <= _MOVES), 0)
            steps = np.concatenate([np.arange(-reach, 0), np.arange(1, reach + 1)])
            change = np.stack(np.meshgrid(*[steps] * size, indexing="ij"), axis=-1).reshape(-1, size)
            used = widths[which] @ change.T
            a, b = np.nonzero(np.abs(used) <= narrow)
            pad = ((0, 0), (0, 3 - size))
            found.append((np.pad(which[a], pad), np.pad(change[b], pad), used[a, b]))
        which, change, used = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return which, change, used

    def _within(self, seats: Int64s, gain: float) -> bool:
        """Make the best exchanges of seats within one round, each while it still gains after the ones before it."""
        which, change, used = self._moves
        total = seats.sum(axis=0)
        free = self.classes.capacity - seats @ self.classes.widths
        adds = self._adds(total, slice(None))
        better = np.flatnonzero(adds > gain)
        better = better[np.argsort(-adds[better], kind="stable")]
        made = 0
        for begin in range(0, len(better), _AT_ONCE):
            some = better[begin : begin + _AT_ONCE]
            after = seats[:, which[some]] + change[some]
            fits = ((after >= 0) & (after <= self.classes.most[which[some]])).all(axis=2) & (
                used[some] <= free[:, None]
            )
            for move in some[fits.any(axis=0)].tolist():
                made += self._made(seats, total, free, move, gain)
            if made:
                return True
        return False

    def _adds(self, total: Int64s, moves: slice | int) -> Floats:
        which, change, _ = self._moves
        now = total[which[moves]]
        table = self._table
        adds: Floats = (table[which[moves], np.maximum(now + change[moves], 0)] - table[which[moves], now]).sum(axis=-1)
        return adds

    def _made(self, seats: Int64s, total: Int64s, free: Int64s, move: int, gain: float) -> bool:
        """Make one exchange in the first round that allows it, if it gains."""
        which, change, used = (part[move] for part in self._moves)
        if self._adds(total, move) <= gain:
            return False
        after = seats[:, which] + change
        able = ((after >= 0) & (after <= self.classes.most[which])).all(axis=1) & (used <= free)
        t = int(able.argmax())
        if not able[t]:
            return False
        np.add.at(seats[t], which, change)
        np.add.at(total, which, change)
        free[t] -= used
        return True

    def _another(self, seats: Int64s, pool: Int64s, gain: float) -> bool:
        """Give one round another pattern, the best there is, if that gains."""
        total = seats.sum(axis=0)
        worth = self._worth((total - seats)[:, None, :] + pool)
        t, p = np.unravel_index(int(worth.argmax()), worth.shape)
        if worth[t, p] <= self._worth(total) + gain:
            return False
        seats[t] = pool[p]
        return True

    def _pair(self, seats: Int64s, pool: Int64s, gain: float) -> bool:
        """Give two rounds other patterns at once, the best there are, if that gains."""
        _, first, many = np.unique(seats, axis=0, return_index=True, return_counts=True)
        last = len(seats) - 1 - np.unique(seats[::-1], axis=0, return_index=True)[1]
        a, b = np.triu_indices(len(first))
        apart = (a != b) | (many[a] > 1)
        out, other = first[a[apart]], last[b[apart]]
        e, f = np.triu_indices(len(pool))
        if len(out) * len(e) * seats.shape[1] > _CELLS:
            return False
        total = seats.sum(axis=0)
        worth = self._worth((total - seats[out] - seats[other])[:, None, :] + pool[e] + pool[f])
        i, j = np.unravel_index(int(worth.argmax()), worth.shape)
        if worth[i, j] <= self._worth(total) + gain:
            return False
        seats[out[i]], seats[other[i]] = pool[e[j]], pool[f[j]]
        return True
