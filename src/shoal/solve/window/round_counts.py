"""The window program without rounds: how many rounds each gang runs, as a knapsack over steps of concave worth.

    maximise   Σ_j worth[j, n_j]  subject to Σ_j width_j · n_j ≤ capacity · rounds,  n_j ≥ forced_j(level).

Worth depends on a gang's rounds only through their number. Each gang's worth is replaced by its least concave majorant,
and all steps are taken by worth per GPU until the window is full. The sum, with the last step taken in part, bounds
every plan. O(S log S) in the number of steps S, once, then O(S) for each level.

References: Shockwave (NSDI '23) eq. 2 and 10; Dantzig (1957) for the bound.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.core.arrays import Floats, Indices, Int32s
from shoal.core.errors import InputError
from shoal.solve.knapsack import doubling

_SLACK = 1e-9
"""Relative: worths, or rounds left, that differ by less are equal."""


@dataclass(frozen=True, eq=False)
class Claims:
    """The gangs: ``widths`` in GPUs, ``worth[j, n]`` of n rounds in the window, ``left`` in rounds.

    Worth is finite and never falls with n. ``left`` are the rounds a gang still has to run, in and after the window.
    """

    widths: Int32s
    worth: Floats
    left: Floats

    def __post_init__(self) -> None:
        if self.worth.ndim != 2 or not len(self.widths) == len(self.left) == len(self.worth):
            raise InputError("worth", self.worth.shape, "must have a row for every width and every time left")
        if len(self.widths) and (self.widths < 1).any():
            raise InputError("widths", int(self.widths.min()), "must be at least 1 GPU")
        if not np.isfinite(self.worth).all() or (self.worth.size and (np.diff(self.worth, axis=1) < 0).any()):
            raise InputError("worth", "", "must be finite and never fall with the number of rounds")
        if not (np.isfinite(self.left).all() and (self.left >= 0).all()):
            raise InputError("left", "", "must be finite numbers of rounds, at least 0")

    @property
    def rounds(self) -> int:
        """Rounds in the window."""
        return int(self.worth.shape[1]) - 1

    def forced(self, level: float) -> Int32s:
        """The fewest rounds each gang must run so that at most ``level`` rounds of it are left after the window."""
        scale = _SLACK * np.maximum(self.left, 1.0)
        return np.clip(np.ceil(self.left - level - scale), 0, self.rounds).astype(np.int32)

    def level(self, counts: Int32s) -> float:
        """Rounds left after the window of the gang that has most left."""
        return float(np.max(self.left - counts, initial=0.0))


def majorant(worth: Floats) -> Floats:
    """The least concave function at or above each row."""
    steps = np.diff(worth, axis=1)
    bent = (np.diff(steps, axis=1) > _SLACK * (1.0 + np.abs(steps[:, 1:]))).any(axis=1)
    if not bent.any():
        return worth
    rows = worth[bent]
    reach = np.arange(rows.shape[1])
    apart = np.maximum(reach[None, :] - reach[:, None], 1)
    means = (rows[:, None, :] - rows[:, :, None]) / apart
    means[:, reach[:, None] >= reach[None, :]] = -np.inf
    # Isotonic regression by its min-max formula: the pooled step n is the least, over where a pool that holds it may
    # begin, of the largest mean such a pool can have.
    ahead = np.maximum.accumulate(means[:, :, ::-1], axis=2)[:, :, ::-1]
    pooled = np.minimum.accumulate(ahead, axis=1)[:, reach[:-1], reach[1:]]
    answer = worth.copy()
    answer[bent, 1:] = rows[:, :1] + np.cumsum(pooled, axis=1)
    return answer


def usable(widths: Int32s, capacity: int) -> int:
    """The most GPUs any set of these gangs can fill side by side."""
    reach, full = 1, 1 << capacity
    for width, many in zip(*np.unique(widths[widths <= capacity], return_counts=True), strict=True):
        for block in doubling(min(int(many), capacity // int(width))):
            reach |= reach << (block * int(width))
        reach &= 2 * full - 1
        if reach & full:
            return capacity
    return reach.bit_length() - 1


@dataclass(frozen=True, slots=True, eq=False)
class RoundCounts:
    """Counts that the window's GPUs allow in total, not yet laid out, and a bound on every plan's worth.

    ``price`` is the worth per GPU of the step taken in part, 0 where all are taken.
    """

    counts: Int32s
    bound: float
    price: float


@dataclass(frozen=True, eq=False)
class Ladder:
    """All steps of all gangs, the most worth per GPU first; ``capacity`` is the GPUs gangs can fill in a round."""

    claims: Claims
    capacity: int

    @cached_property
    def envelope(self) -> Floats:
        """The least concave majorant of each gang's worth."""
        return majorant(self.claims.worth)

    @cached_property
    def _rungs(self) -> tuple[Indices, Indices, Floats]:
        """The gang, the number and the added worth of each step; steps that add nothing are left out."""
        steps = np.maximum(np.diff(self.envelope, axis=1), 0.0)
        per_gpu = steps / self.claims.widths[:, None]
        who, which = np.nonzero(steps > 0.0)
        order = np.argsort(-per_gpu[who, which], kind="stable")
        who, which = who[order], which[order]
        return who, which, steps[who, which]

    def steps(self, forced: Int32s) -> tuple[Indices, Floats]:
        """The gang and worth of each step beyond the forced ones, the most worth per GPU first."""
        who, which, adds = self._rungs
        own = which >= forced[who]
        return who[own], adds[own]

    @cached_property
    def most(self) -> float:
        """A bound on every plan's worth, whatever its level."""
        climb = self.climb(float(self.claims.left.max(initial=0.0)))
        assert climb is not None  # nothing is forced at the level of the longest
        return climb.bound

    def climb(self, level: float) -> RoundCounts | None:
        """Return the counts worth most that leave no gang over ``level`` rounds; None if the window is too small."""
        claims, gpu_rounds = self.claims, self.capacity * self.claims.rounds
        forced = claims.forced(level)
        free = gpu_rounds - int(claims.widths @ forced)
        if free < 0 or claims.level(forced) > level * (1.0 + _SLACK) + _SLACK:
            return None
        who, adds = self.steps(forced)
        width = claims.widths[who]
        filled = np.cumsum(width)
        cut = int(np.searchsorted(filled, free, side="right"))
        counts = forced + np.bincount(who[:cut], minlength=len(forced)).astype(np.int32)
        rows = np.arange(len(forced))
        bound, price = float(self.envelope[rows, forced].sum() + adds[:cut].sum()), 0.0
        if cut < len(who):
            spare = free - (int(filled[cut - 1]) if cut else 0)
            bound += float(adds[cut]) * spare / int(width[cut])
            price = float(adds[cut]) / int(width[cut])
        return RoundCounts(counts, bound, price)
