"""The heaviest packing of rows into kinds of seats: each row takes one of its options or none, widths within capacity.

With few enough states (every number of seats left of every kind) the answer is exact, by dynamic programming over them.
Beyond that kinds are packed in turn, each exactly, with the others' rows at what they would gain by moving, until no
kind gains: never lighter than where it began, and heaviest where there is one kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from shoal.core.arrays import Floats, Indices

MOST_STATES = 4096
"""States up to which packing is exact over several kinds."""

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class KnapsackSolution:
    """By row the option taken, ``NONE`` for none; what all of them weigh; whether nothing can be heavier."""

    taken: Indices
    worth: float
    exact: bool


def heaviest(
    row: Indices,
    kind: Indices,
    width: Indices,
    worth: Floats,
    capacity: Sequence[int],
    taken: Indices,
    most_states: int = MOST_STATES,
) -> KnapsackSolution:
    """The heaviest packing of options, option o being ``width[o]`` seats of ``kind[o]`` for ``row[o]``.

    ``taken`` is a packing to begin with; options that weigh nothing or less are never taken.
    """
    useful = np.flatnonzero((worth > 0) & (width <= np.asarray(capacity)[kind]))
    if len(capacity) == 1 or prod(seats + 1 for seats in capacity) <= most_states:
        found = _exactly(row, kind, width, worth, capacity, useful, len(taken))
        return KnapsackSolution(found, float(worth[found[found >= 0]].sum()), exact=True)
    found = np.where((taken >= 0) & np.isin(taken, useful), taken, NONE)
    while True:
        before = float(worth[found[found >= 0]].sum())
        for k, seats in enumerate(capacity):
            _pack_one(row, width, worth, useful[kind[useful] == k], seats, found)
        after = float(worth[found[found >= 0]].sum())
        if after <= before + 1e-9 * (1.0 + abs(before)):
            return KnapsackSolution(found, after, exact=False)


def _exactly(
    row: Indices, kind: Indices, width: Indices, worth: Floats, capacity: Sequence[int], useful: Indices, rows: int
) -> Indices:
    """Dynamic programming over what is left of every kind, row by row."""
    order = useful[np.argsort(row[useful], kind="stable")]
    starts = np.flatnonzero(np.diff(row[order], prepend=NONE))
    groups = [group.tolist() for group in np.split(order, starts[1:])] if len(order) else []
    best = np.zeros([seats + 1 for seats in capacity])
    choices = []
    for options in groups:
        following, choice = best.copy(), np.full(best.shape, NONE, dtype=np.int32)
        for option in options:
            k, seats = int(kind[option]), int(width[option])
            ahead = (slice(None),) * k
            here, there = (*ahead, slice(seats, None)), (*ahead, slice(None, best.shape[k] - seats))
            offered = best[there] + worth[option]
            better = offered > following[here]
            np.copyto(following[here], offered, where=better)
            choice[here][better] = option
        choices.append(choice)
        best = following
    taken, left = np.full(rows, NONE, dtype=np.intp), list(capacity)
    for choice in reversed(choices):
        option = int(choice[tuple(left)])
        if option >= 0:
            taken[row[option]] = option
            left[int(kind[option])] -= int(width[option])
    return taken


def _pack_one(row: Indices, width: Indices, worth: Floats, options: Indices, seats: int, taken: Indices) -> None:
    """Pack one kind anew; a row that has an option of another kind counts with what it gains. Writes to ``taken``."""
    held = taken[row[options]]
    elsewhere = (held >= 0) & (held != options)
    gain = worth[options] - np.where(elsewhere, worth[held], 0.0)
    options, gain = options[gain > 0], gain[gain > 0]
    chosen = _exactly(row, np.zeros_like(row), width, _spread(gain, options, len(worth)), [seats], options, len(taken))
    here = np.isin(taken, options)
    taken[here & (taken >= 0)] = NONE
    picked = chosen[chosen >= 0]
    taken[row[picked]] = picked


def _spread(gain: Floats, options: Indices, count: int) -> Floats:
    by_option = np.zeros(count)
    by_option[options] = gain
    return by_option
