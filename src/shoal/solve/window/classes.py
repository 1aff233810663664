"""The window program in counts of seats: gangs of one width, or some of them, as one class with a concave worth.

A class's worth of n seats is that of its gangs' n best steps, those that the level forces before all others. Which
gang sits on which seat is no matter of this room; a gang cannot have two seats of a round, so a class has no more of
them in a round than it has gangs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s, Int64s
from shoal.solve.window.round_counts import Ladder


@dataclass(frozen=True, eq=False)
class Classes:
    """Of each class: the width of its gangs, the most seats it can have in a round, the rounds forced on it, its steps.

    ``steps`` are what further seats add, the best first, as many as the window can hold. ``base`` is the worth of what
    is forced.
    """

    widths: Int64s
    most: Int64s
    forced: Int64s
    steps: tuple[Floats, ...]
    base: float
    capacity: int
    rounds: int

    @cached_property
    def sums(self) -> tuple[Floats, ...]:
        """By class: what its first n steps add."""
        return tuple(np.concatenate([[0.0], np.cumsum(steps)]) for steps in self.steps)

    @cached_property
    def _rising(self) -> tuple[Floats, ...]:
        return tuple(-steps for steps in self.steps)

    def taken(self, price: Floats) -> Int64s:
        """Seats each class would take at a price for a seat of each, by class in the last axis."""
        free = [np.searchsorted(steps, -price[..., s]) for s, steps in enumerate(self._rising)]
        return self.forced + np.stack(free, axis=-1)

    def adds(self, taken: Int64s) -> Floats:
        """What so many seats, no fewer than are forced, add to each class beyond what is forced."""
        free = taken - self.forced
        return np.stack([sums[free[..., s]] for s, sums in enumerate(self.sums)], axis=-1)


def classes(ladder: Ladder, of: Indices, forced: Int32s, capacity: int) -> Classes:
    """The gangs as classes: ``of`` says which each is in, numbered from 0; gangs of a class are of one width."""
    rounds, many = ladder.claims.rounds, int(of.max(initial=-1)) + 1
    widths = np.zeros(many, dtype=np.int64)
    widths[of] = ladder.claims.widths
    most = np.minimum(np.bincount(of, minlength=many), capacity // widths)
    owed = np.bincount(of, forced, many).astype(np.int64)
    who, adds = ladder.steps(forced)
    mine = of[who]
    steps = tuple(adds[mine == s][: max(int(most[s]) * rounds - int(owed[s]), 0)] for s in range(many))
    base = float(ladder.envelope[np.arange(len(of)), forced].sum())
    return Classes(widths, most, owed, steps, base, capacity, rounds)
