"""The window program in counts of seats: gangs of one width as one class with a concave worth.

The worth of n seats of a class is that of its gangs' n best steps, those that the level forces first. `seating` assigns
gangs to seats; as a gang cannot have two seats of a round, a class has no more seats in a round than gangs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s, Int64s
from shoal.solve.window.round_counts import Ladder


@dataclass(frozen=True, eq=False)
class Classes:
    """By class: the width of its gangs in GPUs, its most seats in a round, its forced rounds, its steps.

    ``steps`` is the worth further seats add, best first, as many as the window holds; ``base`` the worth of the forced
    rounds.
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
        """By class: the worth its first n steps add."""
        return tuple(np.concatenate([[0.0], np.cumsum(steps)]) for steps in self.steps)

    @cached_property
    def _rising(self) -> tuple[Floats, ...]:
        return tuple(-steps for steps in self.steps)

    def taken(self, price: Floats) -> Int64s:
        """Seats each class takes at these prices for a seat; classes are the last axis."""
        free = [np.searchsorted(steps, -price[..., s]) for s, steps in enumerate(self._rising)]
        return self.forced + np.stack(free, axis=-1)

    def adds(self, taken: Int64s) -> Floats:
        """The worth that ``taken`` seats, at least the forced ones, add to each class beyond the forced."""
        free = taken - self.forced
        return np.stack([sums[free[..., s]] for s, sums in enumerate(self.sums)], axis=-1)


def classes(ladder: Ladder, of: Indices, forced: Int32s, capacity: int) -> Classes:
    """The classes of the gangs; ``of`` is the class of each gang, from 0, and gangs of a class have one width."""
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
