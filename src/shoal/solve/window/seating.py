"""Gangs assigned to seats: a number of seats of each width in each round, no gang twice in a round, for the most worth.

Counts are possible if and only if no k gangs have more rounds than there are seats for k of them, each round's counted
up to k (Gale, Ryser). The best steps are taken without regard to that; the gangs that violate it most get all the
seats there are for them and the others the rest, recursively, which is exact for concave worth. Rounds are then filled
by most rounds still to run.

References: Gale (1957) and Ryser (1957); Fujishige (1980) and Groenevelt (1991) for the decomposition.
"""

from collections.abc import Iterator

import numpy as np

from shoal.core.arrays import Flags, Indices, Int32s, Int64s
from shoal.solve.window.layout import Layout
from shoal.solve.window.round_counts import Ladder


def seated(ladder: Ladder, seats: Int64s, widths: Int64s, forced: Int32s, order: Indices) -> Layout:
    """The layout of most concave worth on these seats, by round and class.

    ``widths`` are those of the columns of ``seats``; columns of one width are added. Of gangs with equally many rounds
    to run the first in ``order`` come first.
    """
    claims = ladder.claims
    runs = np.zeros((len(claims.widths), claims.rounds), dtype=bool)
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    kinds, of = np.unique(claims.widths, return_inverse=True)
    for (mine, line), width in zip(_lines(ladder, of, forced), kinds.tolist(), strict=True):
        available = seats[:, widths == width].sum(axis=1)
        runs[mine] = _largest_first(_possible(line, len(mine), available), available, rank[mine])
    return Layout(runs)


def apart(ladder: Ladder, seats: Int64s, of: Indices, forced: Int32s) -> Indices:
    """Return finer classes, splitting off the gangs of each class whose counts exceed these seats by most."""
    finer, many = of.copy(), seats.shape[1]
    for s, (mine, line) in enumerate(_lines(ladder, of, forced)):
        counts = np.bincount(line[: int(seats[:, s].sum())], minlength=len(mine))
        few = _too_many(counts, seats[:, s])
        if few:
            finer[mine[np.argsort(-counts, kind="stable")[:few]]] = many
            many += 1
    return finer


def _lines(ladder: Ladder, of: Indices, forced: Int32s) -> Iterator[tuple[Indices, Indices]]:
    """Yield, by class, its gangs, and the gang (by place among them) of each step: forced first, then by worth."""
    who = np.concatenate([np.repeat(np.arange(len(forced)), forced), ladder.steps(forced)[0]])
    of_step = of[who]
    for s in range(int(of.max(initial=-1)) + 1):
        mine = np.flatnonzero(of == s)
        yield mine, np.searchsorted(mine, who[of_step == s])


def _possible(line: Indices, many: int, available: Int64s) -> Indices:
    """The possible counts of most worth of ``many`` gangs, with steps in ``line``, on ``available`` seats by round."""
    counts = np.zeros(many, dtype=np.intp)
    waiting = [(np.arange(many), line, available)]
    while waiting:
        gangs, steps, seats = waiting.pop()
        counts[gangs] = np.bincount(steps[: int(seats.sum())], minlength=many)[gangs]
        few = _too_many(counts[gangs], seats)
        if few:
            first = np.zeros(many, dtype=bool)
            first[gangs[np.argsort(-counts[gangs], kind="stable")[:few]]] = True
            lower = np.minimum(seats, few)
            waiting.append((gangs[first[gangs]], steps[first[steps]], lower))
            waiting.append((gangs[~first[gangs]], steps[~first[steps]], seats - lower))
    return counts


def _too_many(counts: Indices, available: Int64s) -> int:
    """The k whose k largest counts exceed the seats for k gangs by most; 0 where none do."""
    most = np.minimum(available[:, None], np.arange(1, len(counts) + 1)).sum(axis=0)
    over = np.cumsum(-np.sort(-counts)) - most
    return int(over.argmax()) + 1 if over.max(initial=0) > 0 else 0


def _largest_first(counts: Indices, available: Int64s, rank: Indices) -> Flags:
    """The layout that gives each round to the gangs with most rounds still to run."""
    runs = np.zeros((len(counts), len(available)), dtype=bool)
    left = counts.copy()
    for t in range(len(available)):
        line = np.lexsort((rank, -left))[: available[t]]
        line = line[left[line] > 0]
        runs[line, t] = True
        left[line] -= 1
    return runs
