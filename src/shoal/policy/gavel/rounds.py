"""Time shares carried out in rounds: who runs in the next one, so that time received follows the shares.

A *cell* is one combination (a job alone, or two on the same GPUs) on one kind of GPU, with a share of wall-clock time;
a job to which it makes a difference has one cell for its time on one node (*consolidated*) and one for the rest.
Each round every job runs in at most one cell; a pair excludes every other combination of its members. What a cell is
*owed* is its share of the time that has passed less the time it received, in rounds: a cell that is not picked rises.

Gavel orders cells by share over fraction received and takes the highest first. That ratio is blind to how much is at
stake: with one share of a half and fifty of a hundredth on one GPU, all fifty run before the first has its second turn,
and a job that must run every round to get its share loses turns it can never make up. We serve what is owed instead,
a job's total counting beside each of its cells. What is owed counts twice: since the shares are in force, squared, so
that in the long run everyone has its share; and over the last ``WINDOW`` rounds, to the eighth power, so that no
stretch of them is far off. Taking the highest first is only where the search for a round begins: single-GPU jobs are
exchanged between kinds, and with gangs everything is packed anew, as long as that serves more of it. To serve the most
of it each round is what keeps every share that can be kept (Tassiulas and Ephremides); highest first does not.

Keeping each prefix within a round, as chairman assignment and deadlines do, leaves 2 rounds for a stretch between two
prefixes. Less is possible, for what ran ``WINDOW`` rounds ago, run again, leaves all debts over the last ``WINDOW``
rounds as they are. So where somebody would be more than 1.2 rounds (2 points) short, and would not be then, that is
done: once within 2 points, single-GPU jobs stay there while the shares last.

That they get there is seen, not proven. Where every job has one GPU, max-min shares were followed within 2 points over
every ``WINDOW`` rounds in a row, kind by kind, in each of 3,469 random sets. Of 1,000 random shares that leave no GPU a
moment free three had some job's time on one kind 2.0 to 2.2 points off in the first window, but none its time in all by
more than 1.72. Among gangs whose shares can be packed no single-GPU job was more than 1.91 points short in any of 1,200
sets (gangs 2.61), none of which was looked at before.

Gangs cannot always be packed to the shares: two jobs with all the time of a GPU each and one with half the time of
three on four GPUs leave somebody short. Then debts are spread, and nobody starves: all GPUs are given anew each round,
and a gang that is owed half its share of the last ``WINDOW`` rounds, and ``RESERVED_AFTER`` at least, goes before
everybody else, with every GPU still free; of several, the one owed the most of its share.

References: Gavel (OSDI '20) §5; Tassiulas and Ephremides (1992) for serving the largest debt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int32s
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.knapsack import heaviest

WINDOW = TUNING.window
"""Rounds in a row over which time received follows the shares."""

RESERVED_AFTER = TUNING.reserved_after
"""Rounds a gang may be owed, whatever its share, before it goes first."""

NOBODY = -1
"""No second job, no cell."""

_LATELY = TUNING.lately
"""How much the debt of the last rounds, to the eighth power, counts beside the whole, squared."""

_TOTAL = TUNING.total
"""How much a job's total counts beside each cell: who has all its time on several kinds must not miss a turn."""

_RECOVERS = TUNING.recovers
"""Beside gangs, a turn missed weighs the more the less time a job has to make up for it: all but this much of a round
where all its time is its share, four times as much as where next to none is."""

_SHORT = TUNING.short
"""Rounds that a single-GPU job may be short of over ``WINDOW`` before what ran so long ago is repeated: two points."""

_KEEP = TUNING.keep
"""What sitting there already counts: a lease is extended and nothing restarts. More would cost the 2 points."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Combinations on kinds with a positive share, as columns; ``second`` is ``NOBODY`` for a job alone.

    ``consolidated`` marks time that is to be on one node.
    """

    first: Indices
    second: Indices
    kind: Indices
    gang: Indices
    share: Floats
    consolidated: Flags

    def __len__(self) -> int:
        return len(self.share)

    def taken(self, at: Indices) -> "Cells":
        """Some of them."""
        first, second, kind, gang = self.first[at], self.second[at], self.kind[at], self.gang[at]
        return Cells(first, second, kind, gang, self.share[at], self.consolidated[at])

    def totals(self, values: Floats, jobs: int) -> Floats:
        """Each job's sum of a value over its cells, pairs included."""
        total: Floats = np.bincount(self.first, values, jobs).astype(np.float64, copy=False)
        shared = self.second >= 0
        if shared.any():
            total += np.bincount(self.second[shared], values[shared], jobs)
        return total


def cells_of(
    alone: Floats, gangs: Int32s, pairs: Indices, together: Floats, consolidated: Floats | None = None
) -> Cells:
    """The cells of shares given as job × kind for jobs alone, and pair × kind for pairs of positions.

    ``consolidated`` is the part of the time alone that is to be on one node.
    """
    near = np.zeros_like(alone) if consolidated is None else consolidated
    job, kind = np.nonzero(alone - near > 0)
    whole, whole_kind = np.nonzero(near)
    pair, shared_kind = np.nonzero(together > 0) if len(pairs) else (job[:0], kind[:0])
    shared = together[pair, shared_kind] if len(pairs) else np.zeros(0)
    first = np.concatenate([job, whole, pairs[pair, 0]])
    single = len(job) + len(whole)
    return Cells(
        first=first,
        second=np.concatenate([np.full(single, NOBODY), pairs[pair, 1]]),
        kind=np.concatenate([kind, whole_kind, shared_kind]),
        gang=gangs[first].astype(np.intp),
        share=np.concatenate([(alone - near)[job, kind], near[whole, whole_kind], shared]),
        consolidated=(np.arange(len(first)) >= len(job)) & (np.arange(len(first)) < single),
    )


def next_round(
    cells: Cells,
    owed: Floats,
    lately: Floats,
    span: float,
    capacity: Indices,
    jobs: int,
    *,
    sits: Flags | None = None,
    idle: bool = False,
    nodes: Sequence[Sequence[int]] = (),
    again: Indices | None = None,
) -> Indices:
    """The cell each of the ``jobs`` runs in during a round of ``span`` (in rounds; 1 unless it is cut short).

    ``owed`` is by cell, in rounds, until now, and ``lately`` what of it came up in the last ``WINDOW`` − 1 rounds.
    ``sits`` marks the cells that run now. With ``idle`` GPUs may stay free rather than run someone ahead of its share;
    without, a round runs everything that fits. ``nodes`` are the sizes of each kind's nodes, for cells that are to be
    on one: they go round in the order of service, each on the tightest node. ``again`` is the answer of ``WINDOW``
    rounds ago: given once more, it leaves every job as it stands over the last ``WINDOW`` rounds.
    """
    urgency = _urgency(cells, owed, lately, span, jobs)
    if sits is not None:
        urgency[sits] += _KEEP
    movable = (cells.gang == 1) & (cells.second < 0)
    late = lately > np.maximum(RESERVED_AFTER, WINDOW / 2 * cells.share)
    behind = np.where(late & ~movable, lately / cells.share, 0.0)
    order = np.lexsort((-cells.share, -urgency, -behind))
    if idle:
        order = order[(urgency > 0)[order]]
    chosen = np.full(jobs, NOBODY, dtype=np.intp)
    free = _greedy(cells, order, capacity, chosen, nodes)
    if len(capacity) > 1:
        _exchange(cells, urgency, chosen, free, movable, idle=idle)
    if not movable.all() and not cells.consolidated.any() and (cells.second < 0).all():
        _repack(cells, urgency, behind, order, capacity, chosen)
    if again is not None and _short(cells, lately, span, chosen) > max(_SHORT, _short(cells, lately, span, again)):
        return again
    return chosen


def _short(cells: Cells, lately: Floats, span: float, chosen: Indices) -> float:
    """The most that a job of one GPU will be short of over the last ``WINDOW`` rounds at the end of this one."""
    single = (cells.gang == 1) & (cells.second < 0)
    short = lately + cells.share * span
    short[chosen[chosen >= 0]] -= span
    alone = np.bincount(cells.first[single], short[single], len(chosen))
    return float(max(short[single].max(initial=0.0), alone.max(initial=0.0)))


def _repack(cells: Cells, urgency: Floats, behind: Floats, order: Indices, capacity: Indices, chosen: Indices) -> None:
    """Serve more of what is urgent than taking the highest first does, where gangs allow it; writes to ``chosen``."""
    worth = urgency + behind * (1.0 + urgency[urgency > 0].sum())
    served = np.maximum(worth[chosen[chosen >= 0]], 0.0).sum()
    packing = heaviest(cells.first, cells.kind, cells.gang, worth, capacity.tolist(), chosen)
    if packing.worth > served * (1.0 + 1e-12):
        chosen[:] = packing.taken
        _greedy(cells, order, capacity, chosen, ())


def _urgency(cells: Cells, owed: Floats, lately: Floats, span: float, jobs: int) -> Floats:
    """How much smaller debts count at the round's end if the cell runs, its own and its jobs' totals."""
    due, due_lately = owed + cells.share * span, lately + cells.share * span
    relief: Floats = _relief(due, due_lately, span)
    by_job = _TOTAL * _relief(cells.totals(due, jobs), cells.totals(due_lately, jobs), span)
    if (cells.gang > 1).any():
        share = cells.totals(cells.share, jobs)
        by_job *= 1.0 + share**2 / (np.maximum(1.0 - share, 0.0) + _RECOVERS)
    relief += by_job[cells.first]
    shared = cells.second >= 0
    if shared.any():
        relief[shared] += by_job[cells.second[shared]]
    return relief


def _relief(debt: Floats, lately: Floats, span: float) -> Floats:
    relief: Floats = debt**2 - (debt - span) ** 2 + _LATELY * (_eighth_power(lately) - _eighth_power(lately - span))
    return relief


def _eighth_power(debt: Floats) -> Floats:
    squared = debt * debt
    squared *= squared
    squared *= squared
    return squared


def _greedy(
    cells: Cells, order: Indices, capacity: Indices, chosen: Indices, nodes: Sequence[Sequence[int]]
) -> list[int]:
    """Highest first: whatever fits beside what is ``chosen`` and whose jobs are not running yet; the GPUs then free."""
    taken = chosen[chosen >= 0]
    used = np.bincount(cells.kind[taken], cells.gang[taken], len(capacity)).astype(np.intp)
    free: list[int] = (capacity - used).tolist()
    left, room, given = sum(free), [list(sizes) for sizes in nodes], chosen.tolist()
    columns = (cells.first, cells.second, cells.kind, cells.gang, cells.consolidated)
    line = zip(*(column[order].tolist() for column in columns), strict=True)
    for cell, (a, b, kind, gang, near) in zip(order.tolist(), line, strict=True):
        if not left:
            break
        if given[a] >= 0 or free[kind] < gang or (b >= 0 and given[b] >= 0):
            continue
        if near and not _seated(room[kind], gang):
            continue
        given[a] = cell
        if b >= 0:
            given[b] = cell
        free[kind] -= gang
        left -= gang
    chosen[:] = given
    return free


def _seated(room: list[int], gang: int) -> bool:
    """Take the tightest node with this much room, if there is one."""
    tightest = min((at for at, gpus in enumerate(room) if gpus >= gang), key=room.__getitem__, default=NOBODY)
    if tightest >= 0:
        room[tightest] -= gang
    return tightest >= 0


def _exchange(cells: Cells, urgency: Floats, chosen: Indices, free: list[int], movable: Flags, *, idle: bool) -> None:
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


def exchanged(row: Indices, kind: Indices, worth: Floats, taken: Indices, free: list[int]) -> Indices:
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
