"""Counts laid out in rounds: gangs whole, no round over capacity, nobody twice in a round, and who goes first.

Rounds are filled in the order asked for, except that a gang whose rounds are as many as the window has left goes
before all others: put off once more, it could not have them all. Where gangs do not divide the cluster this may leave
some of the counts over; then the widest are laid out first, each in the rounds with most room, what stays free in a
round is filled by a small exact knapsack, and the rounds are put in order afterwards.

References: McNaughton (1959) for wrapping around; Shockwave (NSDI '23) §7 prefers rounds that follow each other.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.solve.first_fit import first_fit
from shoal.solve.knapsack import zero_one
from shoal.solve.window.round_counts import Claims

_EARLY = 1.5
"""Gang widths a round is kept free for the knapsack, in multiples of the widest gang."""

_PASSES, _LOYAL = 4, 1e-9
"""How often all rounds are gone through again, and by what part more who is there already counts."""


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
    """Round after round in ``order``, before it those with no round to lose of the ones they were promised.

    A count may come out short where gangs do not divide the cluster, or where more was wanted than promised.
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
    """The same with the GPUs that are free given, in ``order``, to gangs to which another round is worth anything."""
    runs, counts = layout.runs.copy(), layout.counts
    rows = np.arange(len(counts))
    for t in np.flatnonzero(claims.widths @ runs < capacity).tolist():
        room = capacity - int(claims.widths @ runs[:, t])
        more = claims.worth[rows, np.minimum(counts + 1, claims.rounds)] > claims.worth[rows, counts]
        line = order[(more & ~runs[:, t] & (claims.widths <= room))[order]]
        taken = line[first_fit(claims.widths[line], room)]
        runs[taken, t] = True
        counts[taken] += 1
    return Layout(runs)


def packed(claims: Claims, envelope: Floats, counts: Int32s, forced: Int32s, capacity: int) -> Layout:
    """The same counts with the widest laid out first, and what stays free filled for the most worth."""
    widths, rounds = claims.widths, claims.rounds
    runs = np.zeros((len(widths), rounds), dtype=bool)
    free = np.full(rounds, capacity)
    for j in np.lexsort((-counts, -widths, forced == 0)).tolist():
        if counts[j]:
            roomy = np.argsort(-free, kind="stable")[: counts[j]]
            roomy = roomy[free[roomy] >= widths[j]]
            runs[j, roomy] = True
            free[roomy] -= widths[j]
    for t in np.argsort(-free, kind="stable").tolist():
        _filled(claims, envelope, runs, int(free[t]), t)
    return Layout(runs)


def eased(claims: Claims, envelope: Floats, counts: Int32s, forced: Int32s, capacity: int) -> Int32s:
    """The counts less their least steps, until every round keeps some GPUs free for the knapsack to fill exactly."""
    spare = min(int(_EARLY * claims.widths.max(initial=1)), capacity) * claims.rounds
    room = capacity * claims.rounds - int(claims.widths @ counts)
    who, which = np.nonzero(np.arange(claims.rounds)[None, :] < counts[:, None])
    own = which >= forced[who]
    who, which = who[own], which[own]
    per_gpu = (envelope[who, which + 1] - envelope[who, which]) / claims.widths[who]
    order = np.lexsort((-which, per_gpu))
    gone = np.cumsum(claims.widths[who[order]]) <= spare - room
    return counts - np.bincount(who[order[gone]], minlength=len(counts)).astype(np.int32)


def improved(claims: Claims, layout: Layout, forced: Int32s, capacity: int) -> Layout:
    """Round by round, whoever is worth most in it as long as all other rounds stay as they are, until none changes."""
    runs = layout.runs.copy()
    rows = np.arange(len(runs))
    # More than everything else together: a round that the level forces is never given up.
    sure = 1.0 + float((claims.worth[:, -1] - claims.worth[:, 0]).sum())
    for _ in range(_PASSES):
        before = runs.copy()
        for t in range(claims.rounds):
            others = runs.sum(axis=1) - runs[:, t]
            adds = claims.worth[rows, others + 1] - claims.worth[rows, others] + sure * (others < forced)
            # Of sets worth the same the present one stays, or the search would go round in circles.
            able = np.flatnonzero(adds > 0.0)
            chosen = _knapsack(claims.widths[able], adds[able] * (1.0 + _LOYAL * runs[able, t]), capacity)
            runs[:, t] = False
            runs[able[chosen], t] = True
        if (runs == before).all():
            break
    return Layout(runs)


def _filled(claims: Claims, envelope: Floats, runs: Flags, room: int, t: int) -> None:
    """Add to round t the gangs not in it whose next steps are worth most together and fit in what is free."""
    counts = runs.sum(axis=1)
    able = np.flatnonzero(~runs[:, t] & (claims.widths <= room) & (counts < claims.rounds))
    adds = envelope[able, counts[able] + 1] - envelope[able, counts[able]]
    able, adds = able[adds > 0.0], adds[adds > 0.0]
    runs[able[_knapsack(claims.widths[able], adds, room)], t] = True


def _knapsack(widths: Int32s, values: Floats, room: int) -> Indices:
    """Which items are worth most together and fit; of equal widths only as many as fit are looked at."""
    offered: list[int] = []
    for width in np.unique(widths[widths <= room]).tolist():
        same = np.flatnonzero(widths == width)
        offered += same[np.argsort(-values[same], kind="stable")[: room // width]].tolist()
    chosen, _ = zero_one(widths[offered].tolist(), values[offered].tolist(), room)
    return np.array(offered, dtype=np.intp)[chosen]


def in_order(layout: Layout, widths: Int32s, order: Indices) -> Layout:
    """The same rounds in another order: those of the first in ``order`` first, who share most with the one before."""
    pressure = np.empty(len(order))
    pressure[order] = np.linspace(1.0, 0.0, len(order), endpoint=False)
    runs = layout.runs.astype(float)
    shared = runs.T @ ((widths * pressure)[:, None] * runs)
    worth, waiting, taken = shared.diagonal().copy(), list(range(len(shared))), list[int]()
    while waiting:
        last = shared[taken[-1]] if taken else np.zeros(len(shared))
        taken.append(waiting.pop(int(np.argmax((worth + last)[waiting]))))
    return Layout(layout.runs[:, taken])
