"""Knapsacks by dynamic programming, and the heaviest packing of rows into several kinds of seats.

    maximise   Σ_o worth_o · z_o,  z binary
    subject to at most one option z_o = 1 for each row,  Σ_{o of kind k} width_o · z_o ≤ capacity_k.

`best_options` is exact: dynamic programming over all numbers of seats left of every kind, Π_k (capacity_k + 1) states
times the number of options. `zero_one` is the same for one kind and one option a row, and `zero_one_by_core` leaves out
the options that cannot matter. `heaviest` is exact up to `MOST_STATES` states. Beyond that it packs one kind after the
other, each exactly. An option of a row that holds one of another kind counts with its gain over that one. The search
ends when no kind gains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices

MOST_STATES = 4096
"""States up to which packing is exact over several kinds."""

MOST_ITEMS = 2_000
"""Items of one kind beyond which all but a core of them are decided by their value per unit of width: as exact, but of
equally heavy packings it may find another."""

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class KnapsackSolution:
    """By row the option taken, ``NONE`` for none; their total worth; whether that is proven to be the optimum."""

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
    """The packing of most worth; option o takes ``width[o]`` seats of ``kind[o]`` for ``row[o]``.

    ``taken`` is a packing to start from; options worth 0 or less are never taken.
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


def best_options(
    options: Sequence[Sequence[tuple[int, int, float]]], skips: Sequence[bool], capacity: Sequence[int]
) -> list[int]:
    """By row the place of the option taken, ``NONE`` for none: the most worth within capacity, the first of equals.

    An option is (kind, width, worth). A row that may not be skipped takes one; if the capacity does not allow that, the
    answer is meaningless.
    """
    best = np.zeros([seats + 1 for seats in capacity])
    choices = []
    for row, may in zip(options, skips, strict=True):
        reached = best.copy() if may else np.full(best.shape, -np.inf)
        choice = np.full(best.shape, NONE, dtype=np.int16)
        for place, (kind, width, worth) in enumerate(row):
            if width > capacity[kind]:
                continue
            ahead = (slice(None),) * kind
            to, source = (*ahead, slice(width, None)), (*ahead, slice(None, best.shape[kind] - width))
            offered = best[source] + worth
            better = offered > reached[to]
            np.copyto(reached[to], offered, where=better)
            choice[to][better] = place
        choices.append(choice)
        best = reached
    taken, left = [NONE] * len(options), list(capacity)
    for at in reversed(range(len(options))):
        taken[at] = int(choices[at][tuple(left)])
        if taken[at] >= 0:
            kind, width, _ = options[at][taken[at]]
            left[kind] -= width
    return taken


def best_options_apart(
    options: Sequence[Sequence[tuple[int, int, float]]], skips: Sequence[bool], capacity: Sequence[int]
) -> list[int]:
    """As `best_options`, one kind after the other if no row has options of two kinds: states add up, not multiply."""
    kind_of = [row[0][0] if row else 0 for row in options]
    if len(capacity) == 1 or any(kind != own for row, own in zip(options, kind_of, strict=True) for kind, _, _ in row):
        return best_options(options, skips, capacity)
    taken = [NONE] * len(options)
    for k, seats in enumerate(capacity):
        rows = [i for i, own in enumerate(kind_of) if own == k]
        alone = [[(0, width, worth) for _, width, worth in options[i]] for i in rows]
        for i, place in zip(rows, best_options(alone, [skips[i] for i in rows], [seats]), strict=True):
            taken[i] = place
    return taken


def zero_one(widths: Sequence[int], values: Sequence[float], capacity: int) -> tuple[list[int], float]:
    """The items of most value within ``capacity``, the last first, and their value; no width exceeds ``capacity``."""
    best = np.zeros(capacity + 1)
    better: list[Flags] = []
    for width, value in zip(widths, values, strict=True):
        without = best[width:]
        with_it = best[: len(without)] + value
        better.append(with_it > without)
        np.maximum(without, with_it, out=without)
    chosen, total = list[int](), float(best[capacity])
    for item in reversed(range(len(better))):
        left = capacity - widths[item]
        if left >= 0 and better[item][left]:
            chosen.append(item)
            capacity = left
    return chosen, total


def zero_one_by_core(widths: Indices, values: Floats, capacity: int) -> tuple[Indices, float]:
    """The items of most value within ``capacity``, ascending, and their value; exact, like `zero_one`.

    For many items: widths from 1 to ``capacity``, values above 0. First all items are taken in order of value per unit
    of width until one, the break item, does not fit. With Δ the largest width, fewer than 2Δ exchanges lead from these
    items to a best choice: in a longer list of exchanges, ordered so that the widths added less those dropped stay
    within ±Δ, a part without effect on the width could be left out at no loss. Of equal widths the more valuable are
    always taken first. And an item is decided if its exchange loses more than the linear bound could gain. So only few
    items of each width around the break are left to dynamic programming: the core.

    References: Balas and Zemel (1980) for cores; Eisenbrand and Weismantel (2018) for the number of exchanges.
    """
    order = np.argsort(-(values / widths), kind="stable")
    used = np.cumsum(widths[order])
    fitting = int(np.searchsorted(used, capacity, side="right"))
    if fitting == len(order):
        return np.arange(len(order)), float(values.sum())
    taken = np.zeros(len(order), dtype=bool)
    taken[order[:fitting]] = True
    price = values[order[fitting]] / widths[order[fitting]]
    bound_gap = price * (capacity - (used[fitting - 1] if fitting else 0))
    core = np.abs(values - price * widths) <= bound_gap + 1e-9 * values
    exchanges = 2 * int(widths.max())
    for width in np.unique(widths):
        alike = order[widths[order] == width]
        first, last = int(taken[alike].sum()) - exchanges, int(taken[alike].sum()) + exchanges
        core[alike[: max(first, 0)]] = core[alike[last:]] = False
    within, settled = np.flatnonzero(core), np.flatnonzero(taken & ~core)
    left = capacity - int(widths[settled].sum())
    chosen, _ = zero_one(widths[within].tolist(), values[within].tolist(), left)
    found = np.sort(np.concatenate([settled, within[np.array(chosen, dtype=np.intp)]]))
    return found, float(values[found].sum())


def doubling(many: int) -> list[int]:
    """Sizes 1, 2, 4, … and the rest, which add up to ``many``: sums of them reach every number up to it."""
    sizes: list[int] = []
    while many > 0:
        sizes.append(min(2 ** len(sizes), many))
        many -= sizes[-1]
    return sizes


def _exactly(
    row: Indices, kind: Indices, width: Indices, worth: Floats, capacity: Sequence[int], useful: Indices, rows: int
) -> Indices:
    order = useful[np.argsort(row[useful], kind="stable")]
    starts = np.flatnonzero(np.diff(row[order], prepend=NONE))
    taken = np.full(rows, NONE, dtype=np.intp)
    if len(capacity) == 1 and len(starts) == len(order):  # one option a row
        if len(order) > MOST_ITEMS:
            chosen = order[zero_one_by_core(width[order], worth[order], capacity[0])[0]]
        else:
            chosen = order[zero_one(width[order].tolist(), worth[order].tolist(), capacity[0])[0]]
        taken[row[chosen]] = chosen
        return taken
    groups = np.split(order, starts[1:]) if len(order) else []
    options = [list(zip(kind[g].tolist(), width[g].tolist(), worth[g].tolist(), strict=True)) for g in groups]
    for group, place in zip(groups, best_options(options, [True] * len(groups), capacity), strict=True):
        if place >= 0:
            taken[row[group[0]]] = group[place]
    return taken


def _pack_one(row: Indices, width: Indices, worth: Floats, options: Indices, seats: int, taken: Indices) -> None:
    """Repack one kind in ``taken``; an option of a row that has one of another kind counts only the worth it adds."""
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
