"""Counts laid out in rounds: gangs whole, no round over capacity, no gang twice in a round.

`ranked` fills rounds in a given order, except that a gang with as many rounds to run as the window has left goes first.
Where gangs do not divide the cluster this may leave some counts over: `packed` lays out the widest first, each in the
rounds with most free GPUs, fills what stays free by an exact knapsack per round, and `in_order` sorts the rounds.

References: McNaughton (1959) for wrapping around; Shockwave (NSDI '23) §7 prefers rounds that follow each other.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.solve.first_fit import first_fit
from shoal.solve.knapsack import zero_one
from shoal.solve.window.round_counts import Claims

_EARLY = 1.5
"""GPUs of a round kept free for the knapsack, in widths of the widest gang."""

_PASSES, _STAY_BONUS = 4, 1e-9
"""Passes over all rounds at most, and the relative bonus of a gang already in the round."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """``runs[j, t]``: whether gang j runs in round t of the window."""

    runs: Flags

    @property
    def counts(self) -> Int32s:
        """Rounds each gang runs."""
        counts: Int32s = self.runs.sum(axis=1, dtype=np.int32)
        return counts


def ranked(widths: Int32s, counts: Int32s, promised: Int32s, capacity: int, rounds: int, order: Indices) -> Layout:
    """Return the layout by first fit in ``order``, round by round; gangs that need every round left go first.

    A count may come out short where gangs do not divide the cluster, or where it exceeds the rounds promised.
    """
    runs = np.zeros((len(widths), rounds), dtype=bool)
    line = order[counts[order] > 0]
    left, owed = counts.copy(), promised.copy()
    for t in range(rounds):
        pressing = owed[line] >= rounds - t
        queue = np.concatenate([line[pressing], line[~pressing]]) if pressing.any() else line
        taken = queue[first_fit(widths[queue], capacity)]
        runs[taken, t] = True
        left[taken] -= 1
        owed[taken] -= 1
        line = line[left[line] > 0]
        if not len(line):
            break
    return Layout(runs)


def topped_up(claims: Claims, layout: Layout, capacity: int, order: Indices) -> Layout:
    """The layout with free GPUs given, in ``order``, to gangs that gain by another round."""
    runs, counts = layout.runs.copy(), layout.counts
    rows = np.arange(len(counts))
    for t in np.flatnonzero(claims.widths @ runs < capacity).tolist():
        free = capacity - int(claims.widths @ runs[:, t])
        more = claims.worth[rows, np.minimum(counts + 1, claims.rounds)] > claims.worth[rows, counts]
        line = order[(more & ~runs[:, t] & (claims.widths <= free))[order]]
        taken = line[first_fit(claims.widths[line], free)]
        runs[taken, t] = True
        counts[taken] += 1
    return Layout(runs)


def packed(claims: Claims, envelope: Floats, counts: Int32s, forced: Int32s, capacity: int) -> Layout:
    """A layout that gives each gang its count of rounds, the widest gangs first.

    GPUs that stay free in a round go to the gangs that add the most worth.
    """
    widths, rounds = claims.widths, claims.rounds
    runs = np.zeros((len(widths), rounds), dtype=bool)
    free = np.full(rounds, capacity)
    for j in np.lexsort((-counts, -widths, forced == 0)).tolist():
        if counts[j]:
            widest_free = np.argsort(-free, kind="stable")[: counts[j]]
            widest_free = widest_free[free[widest_free] >= widths[j]]
            runs[j, widest_free] = True
            free[widest_free] -= widths[j]
    for t in np.argsort(-free, kind="stable").tolist():
        _filled(claims, envelope, runs, int(free[t]), t)
    return Layout(runs)


def eased(claims: Claims, envelope: Floats, counts: Int32s, forced: Int32s, capacity: int) -> Int32s:
    """Return the counts without their steps of least worth, so that every round keeps GPUs free for the knapsack."""
    spare = min(int(_EARLY * claims.widths.max(initial=1)), capacity) * claims.rounds
    free = capacity * claims.rounds - int(claims.widths @ counts)
    who, which = np.nonzero(np.arange(claims.rounds)[None, :] < counts[:, None])
    own = which >= forced[who]
    who, which = who[own], which[own]
    per_gpu = (envelope[who, which + 1] - envelope[who, which]) / claims.widths[who]
    order = np.lexsort((-which, per_gpu))
    gone = np.cumsum(claims.widths[who[order]]) <= spare - free
    return counts - np.bincount(who[order[gone]], minlength=len(counts)).astype(np.int32)


def improved(claims: Claims, layout: Layout, forced: Int32s, capacity: int) -> Layout:
    """The layout after replacing each round by its best set of gangs given the others, until none changes."""
    runs = layout.runs.copy()
    rows = np.arange(len(runs))
    # More than all other worth together: a round that the level forces is never given up.
    sure = 1.0 + float((claims.worth[:, -1] - claims.worth[:, 0]).sum())
    for _ in range(_PASSES):
        before = runs.copy()
        for t in range(claims.rounds):
            others = runs.sum(axis=1) - runs[:, t]
            adds = claims.worth[rows, others + 1] - claims.worth[rows, others] + sure * (others < forced)
            # Of sets worth the same the present one stays, or the search could cycle.
            able = np.flatnonzero(adds > 0.0)
            chosen = _knapsack(claims.widths[able], adds[able] * (1.0 + _STAY_BONUS * runs[able, t]), capacity)
            runs[:, t] = False
            runs[able[chosen], t] = True
        if (runs == before).all():
            break
    return Layout(runs)


def _filled(claims: Claims, envelope: Floats, runs: Flags, free: int, t: int) -> None:
    """Add to round t the gangs not in it that fit its free GPUs and add most worth together."""
    counts = runs.sum(axis=1)
    able = np.flatnonzero(~runs[:, t] & (claims.widths <= free) & (counts < claims.rounds))
    adds = envelope[able, counts[able] + 1] - envelope[able, counts[able]]
    able, adds = able[adds > 0.0], adds[adds > 0.0]
    runs[able[_knapsack(claims.widths[able], adds, free)], t] = True


def _knapsack(widths: Int32s, values: Floats, free: int) -> Indices:
    """The items of most value that fit; of each width only as many as fit are considered."""
    offered: list[int] = []
    for width in np.unique(widths[widths <= free]).tolist():
        same = np.flatnonzero(widths == width)
        offered += same[np.argsort(-values[same], kind="stable")[: free // width]].tolist()
    chosen, _ = zero_one(widths[offered].tolist(), values[offered].tolist(), free)
    return np.array(offered, dtype=np.intp)[chosen]


def in_order(layout: Layout, widths: Int32s, order: Indices) -> Layout:
    """Return the rounds reordered: rounds of the first gangs in ``order`` first, then rounds that share most gangs."""
    pressure = np.empty(len(order))
    pressure[order] = np.linspace(1.0, 0.0, len(order), endpoint=False)
    runs = layout.runs.astype(float)
    shared = runs.T @ ((widths * pressure)[:, None] * runs)
    worth, waiting, taken = shared.diagonal().copy(), list(range(len(shared))), list[int]()
    while waiting:
        last = shared[taken[-1]] if taken else np.zeros(len(shared))
        taken.append(waiting.pop(int(np.argmax((worth + last)[waiting]))))
    return Layout(layout.runs[:, taken])
