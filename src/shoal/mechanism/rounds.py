"""Time shares carried out in rounds: who runs in the next one, so that time received follows the shares.

A *cell* is one combination (a job alone, or two on the same GPUs) on one kind of GPU, with a share of wall-clock time.
Each round every job runs in at most one cell; a pair excludes every other combination of its members. What a cell is
*owed* is its share of the time that has passed less the time it received, in rounds: a cell that is not picked rises.

Gavel orders cells by share over fraction received and takes the highest first. We order by what is owed instead, as
steeply as the sixth power, a job's total counting beside each of its cells, and then exchange single-GPU jobs between
kinds as long as that serves more debt. The ratio is blind to how much is at stake: with one share of a half and fifty
of a hundredth on one GPU, all fifty run before the first has its second turn, and a job that must run every round to
get its share loses turns it can never make up. On shares that one GPU each could take, every cell stays within about a
round of its share, and so within 2 points over 60 rounds.

Nobody starves, wide gangs included. Whole gangs cannot always be packed to the shares; then debts grow. All GPUs are
given anew each round, and a cell owed ``RESERVED_AFTER`` rounds goes before everybody else, with every GPU still free;
among several such, the one that has had the smallest fraction of its share, which is Gavel's order: each rises to the
top in time.

References: Gavel (OSDI '20) §5; Tassiulas and Ephremides (1992) for serving the largest debt.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.core.decision import Floats

Ints = NDArray[np.intp]

RESERVED_AFTER = 2.0
"""Rounds a cell may be owed before it goes first."""

NOBODY = -1
"""No second job, no cell."""

_STEEP = 6
_TOTAL = 3.0
"""How much a job's total counts beside each cell: who has all its time on several kinds must not miss a turn."""

_KEEP = 0.1
"""Among equals, whoever sits there stays: its lease is extended and nothing restarts."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Combinations on kinds with a positive share, as columns; ``second`` is ``NOBODY`` for a job alone."""

    first: Ints
    second: Ints
    kind: Ints
    gang: Ints
    share: Floats

    def __len__(self) -> int:
        return len(self.share)

    def totals(self, values: Floats, jobs: int) -> Floats:
        """Each job's sum of a value over its cells, pairs included."""
        total: Floats = np.bincount(self.first, values, jobs).astype(np.float64, copy=False)
        shared = self.second >= 0
        if shared.any():
            total += np.bincount(self.second[shared], values[shared], jobs)
        return total


def cells_of(alone: Floats, gangs: NDArray[np.int32], pairs: Ints, together: Floats) -> Cells:
    """The cells of shares given as job × kind for jobs alone, and pair × kind for pairs of positions."""
    job, kind = np.nonzero(alone > 0)
    if not len(pairs):
        return Cells(job, np.full(len(job), NOBODY), kind, gangs[job].astype(np.intp), alone[job, kind])
    pair, shared_kind = np.nonzero(together > 0)
    first = np.concatenate([job, pairs[pair, 0]])
    return Cells(
        first=first,
        second=np.concatenate([np.full(len(job), NOBODY), pairs[pair, 1]]),
        kind=np.concatenate([kind, shared_kind]),
        gang=gangs[first].astype(np.intp),
        share=np.concatenate([alone[job, kind], together[pair, shared_kind]]),
    )


def next_round(
    cells: Cells,
    owed: Floats,
    span: float,
    capacity: Ints,
    jobs: int,
    *,
    sits: NDArray[np.bool_] | None = None,
    idle: bool = False,
) -> Ints:
    """The cell each of the ``jobs`` runs in during a round of ``span`` (in rounds; 1 unless it is cut short).

    ``owed`` is by cell, in rounds, until now. ``sits`` marks the cells that run now. With ``idle`` GPUs may stay free
    rather than run someone ahead of its share; without, a round runs everything that fits.
    """
    urgency = _urgency(cells, owed, span, jobs)
    if sits is not None:
        urgency[sits] += _KEEP
    behind = np.where(owed > RESERVED_AFTER, owed / cells.share, 0.0)
    order = np.lexsort((-cells.share, -urgency, -behind))
    if idle:
        order = order[(urgency > 0)[order]]
    chosen, free = _greedy(cells, order, capacity, jobs)
    if len(capacity) > 1:
        movable = (cells.gang == 1) & (cells.second < 0) & (behind == 0.0)
        _exchange(cells, urgency, chosen, free, movable, idle=idle)
    return chosen


def _urgency(cells: Cells, owed: Floats, span: float, jobs: int) -> Floats:
    """How much (debt at the round's end)^6 falls if the cell runs, for the cell and for its jobs' totals."""
    due = owed + cells.share * span
    total = cells.totals(due, jobs)
    relief: Floats = _relief(due, span)
    by_job = _TOTAL * _relief(total, span)
    relief += by_job[cells.first]
    shared = cells.second >= 0
    if shared.any():
        relief[shared] += by_job[cells.second[shared]]
    return relief


def _relief(debt: Floats, span: float) -> Floats:
    relief: Floats = debt**_STEEP - (debt - span) ** _STEEP
    return relief


def _greedy(cells: Cells, order: Ints, capacity: Ints, jobs: int) -> tuple[Ints, list[int]]:
    """Highest first: whatever fits and whose jobs are not running yet."""
    free, chosen = capacity.tolist(), [NOBODY] * jobs
    left = sum(free)
    line = zip(*(column[order].tolist() for column in (cells.first, cells.second, cells.kind, cells.gang)), strict=True)
    for cell, (a, b, kind, gang) in zip(order.tolist(), line, strict=True):
        if chosen[a] >= 0 or free[kind] < gang or (b >= 0 and chosen[b] >= 0):
            continue
        chosen[a] = cell
        if b >= 0:
            chosen[b] = cell
        free[kind] -= gang
        left -= gang
        if not left:
            break
    return np.array(chosen, dtype=np.intp), free


def _exchange(
    cells: Cells, urgency: Floats, chosen: Ints, free: list[int], movable: NDArray[np.bool_], *, idle: bool
) -> None:
    """Move single-GPU jobs between kinds, in and out, while that raises the urgency served; writes to ``chosen``."""
    picked = chosen[chosen >= 0]
    bound = np.zeros(len(chosen), dtype=bool)
    stuck = picked[~movable[picked]]
    bound[cells.first[stuck]] = True
    shared = cells.second[stuck]
    bound[shared[shared >= 0]] = True
    open_cells = np.flatnonzero(movable & ~bound[cells.first])
    jobs = cells.first[open_cells]
    # Only a job with two ways to run can pass a seat from one kind to another.
    if not len(jobs) or np.bincount(jobs).max() < 2:
        return
    worth = urgency[open_cells] if idle else urgency[open_cells] - urgency.min() + 1e3 * (1.0 + np.ptp(urgency))
    place = np.full(len(cells), NOBODY)
    place[open_cells] = np.arange(len(open_cells))
    at = np.where(chosen >= 0, place[chosen], NOBODY)
    at[bound] = NOBODY
    better = exchanged(jobs, cells.kind[open_cells], worth, at, free)
    moved = np.flatnonzero(better != at)
    chosen[moved] = np.where(better[moved] >= 0, open_cells[better[moved]], NOBODY)


def exchanged(row: Ints, kind: Ints, worth: Floats, taken: Ints, free: list[int]) -> Ints:
    """The assignment of the largest worth, reached from ``taken`` by moving rows: each row's option, or ``NOBODY``.

    Option o belongs to ``row[o]`` and needs one seat of ``kind[o]``; ``taken`` is by row, ``free`` the seats left by
    kind. With few kinds no matrix of rows by seats is needed: the best move between every two kinds makes a tiny graph
    (the kinds, and being out), and nothing better exists if and only if no cycle in it gains.
    """
    if not len(row):
        return taken
    taken, free, out = taken.copy(), list(free), len(free)
    nodes = out + 1
    option = np.concatenate([np.arange(len(row)), np.full(len(taken), NOBODY)])
    owner, to = np.concatenate([row, np.arange(len(taken))]), np.concatenate([kind, np.full(len(taken), out)])
    value = np.concatenate([worth, np.zeros(len(taken))])
    least = 1e-9 * (1.0 + float(np.abs(worth).max(initial=0.0)))
    while True:
        seated = taken >= 0
        gain = value - np.where(seated, worth[taken], 0.0)[owner]
        move = np.where(seated, kind[taken], out)[owner] * nodes + to
        # Of several writes to one place the last one stays: in ascending order, the best move.
        order = gain.argsort(kind="stable")
        best, who = np.full(nodes * nodes, -np.inf), np.full(nodes * nodes, NOBODY)
        best[move[order]], who[move[order]] = gain[order], order
        for k, seats in enumerate(free):  # a free seat may go out in a row's stead, and a seat may be left free
            for at, possible in ((k * nodes + out, seats > 0), (out * nodes + k, True)):
                if possible and best[at] < 0.0:
                    best[at], who[at] = 0.0, NOBODY
        cycle = _gaining_cycle(best.tolist(), nodes, least)
        if cycle is None:
            return taken
        for a, b in cycle:
            mover = int(who[a * nodes + b])
            if mover >= 0:
                taken[owner[mover]] = option[mover]
            elif b == out:
                free[a] -= 1
            else:
                free[b] += 1


def _gaining_cycle(gain: list[float], nodes: int, least: float) -> list[tuple[int, int]] | None:
    """The steps of a cycle whose gains add up to more than next to nothing, if there is one (Bellman and Ford)."""
    edges = [(a, b, gain[a * nodes + b]) for a in range(nodes) for b in range(nodes) if a != b]
    edges = [edge for edge in edges if edge[2] > -np.inf]
    height, before, last = [0.0] * nodes, [-1] * nodes, -1
    for _ in range(nodes):
        last = -1
        for a, b, rise in edges:
            if height[a] + rise > height[b] + least:
                height[b], before[b], last = height[a] + rise, a, b
        if last < 0:
            return None
    for _ in range(nodes):
        last = before[last]
    cycle, at = [], last
    while True:
        cycle.append((before[at], at))
        at = before[at]
        if at == last:
            return cycle
