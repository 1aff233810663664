"""Jobs of a few classes, any two of which may share GPUs: from jobs to groups of equal jobs, and back to jobs.

Equal jobs (same class, weight, floor) form one group, so 2,048 jobs of 26 classes need 26 rows instead of 2,048, and
351 pairs instead of 2 million. Averaging an allocation over equal jobs changes no total, so nothing is lost. On the way
back every job of a group gets the same time: two groups are paired like two evenly divided lines laid side by side, and
the jobs of one group in a ring, each with its neighbours, so no job is paired with itself.

A pair whose two speeds, each over the speed alone, add up to 1 or less is left out: time slicing is as good. Where all
pairs of groups would take too much memory and time, some are left out: see `MOST_PAIRS`.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.errors import InputError
from shoal.solve.linear_objectives import refuse, table
from shoal.solve.time_share_lp import NO_PARTNER, Activities

MOST_PAIRS = 6_000
"""Pairs of groups beyond which some are left out; about 100 different jobs have this many."""
KEPT_PAIRS = 4_000
"""How many are then kept. First each group meets fewer groups of every kind, spread evenly; if that is not enough, the
best pairs (by what both get of their speed alone) are taken until both groups of a pair have an equal part of this
number, so that not all are left with the same few good partners. With 2,048 unlike jobs under contention this cost up
to 6 % of the makespan; keeping 10,000 cost under 1 % and took 5 times as long."""


@dataclass(frozen=True, slots=True)
class JobClasses:
    """The class (``kinds``) of each job; by class its speed alone (classes × types) and its gang; GPUs by type; pairs.

    ``pair_speed[p, 0, j]`` is the speed of a job of class ``pairs[p, 0]`` on type j beside one of class ``pairs[p,
    1]``, and ``pair_speed[p, 1, j]`` that of the other; if either is 0 the two cannot share. Both need the same gang.
    For two jobs of one class the mean of both numbers counts. Pairs not named cannot share. Where no two jobs are
    equal, each has a class of its own.
    """

    kinds: Indices
    speed: Floats
    gangs: Floats
    capacity: Floats
    pairs: Indices
    pair_speed: Floats

    def __post_init__(self) -> None:
        """Raise an `InputError` that names the field for shapes and values out of range."""
        speed, gangs = table("speed", self.speed, 2), table("gangs", self.gangs, 1)
        capacity, pair_speed = table("capacity", self.capacity, 1), table("pair_speed", self.pair_speed, 3)
        if speed.shape != (len(gangs), len(capacity)):
            raise InputError(
                "speed", speed.shape, f"one row per kind, one column per type: {len(gangs), len(capacity)}"
            )
        refuse("gangs", gangs, gangs <= 0, "must be greater than 0")
        kinds, pairs = np.asarray(self.kinds), np.asarray(self.pairs)
        known = f"must be one of the {len(gangs)} kinds, counted from 0"
        refuse("kinds", kinds, (kinds < 0) | (kinds >= len(gangs)), known)
        if pairs.shape != (len(pair_speed), 2) or pair_speed.shape[1:] != (2, len(capacity)):
            raise InputError("pair_speed", pair_speed.shape, f"must be {len(pairs)} pairs × 2 × {len(capacity)} types")
        refuse("pairs", pairs, (pairs < 0) | (pairs >= len(gangs)), known)
        uneven = gangs[pairs[:, 0]] != gangs[pairs[:, 1]]
        if uneven.any():
            at = int(np.flatnonzero(uneven)[0])
            raise InputError(f"pairs[{at}]", tuple(pairs[at].tolist()), "both must use the same number of GPUs")
        low, high = pairs.min(axis=1, initial=len(gangs)), pairs.max(axis=1, initial=0)
        if len(np.unique(low * len(gangs) + high)) < len(pairs):
            raise InputError("pairs", len(pairs), "the same two kinds are named twice")


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of equal jobs: the group of each job, the class and jobs of each group; whether pairs were left out."""

    classes: JobClasses
    of_job: Indices
    kind: Indices
    jobs: tuple[Indices, ...]
    activities: Activities
    restricted: bool


@dataclass(frozen=True, slots=True)
class Spread:
    """A group allocation distributed to jobs: time alone, and for each two jobs that share, their time together.

    ``throughput``, ``time`` and ``used`` are recomputed from these. No two jobs are named twice.
    """

    alone: Floats
    pairs: Indices
    together: Floats
    throughput: Floats
    time: Floats
    used: Floats


def grouped(classes: JobClasses, *keys: Floats) -> Groups:
    """The groups of jobs of the same class and ``keys`` (weight, floor), with their activities."""
    table_of_keys = np.column_stack([classes.kinds, *keys]).astype(np.float64)
    _, example, of_job = np.unique(table_of_keys, axis=0, return_index=True, return_inverse=True)
    of_job = of_job.reshape(-1)
    kind = np.asarray(classes.kinds)[example]
    order = np.argsort(of_job, kind="stable")
    counts = np.bincount(of_job, minlength=len(kind))
    jobs = tuple(np.split(order, np.cumsum(counts)[:-1])) if len(kind) else ()
    pairs, restricted = _group_pairs(classes, kind, counts)
    return Groups(classes, of_job, kind, jobs, _activities(classes, kind, counts, pairs), restricted)


def _activities(classes: JobClasses, kind: Indices, counts: Indices, pairs: Indices) -> Activities:
    """Every group alone on every type it can use, then every pair (group, group, named pair) on every useful type."""
    speed, fits = classes.speed[kind], classes.gangs[kind][:, None] <= classes.capacity
    group, single_type = np.nonzero((speed > 0) & fits)
    first, second, _ = pairs.T
    one, other = _speeds(classes, kind, pairs)
    useful = (one > 0) & (other > 0) & fits[first] & (_together(one, other, speed[first], speed[second]) > 1.0)
    row, pair_type = np.nonzero(useful)
    return Activities(
        counts=counts.astype(np.float64),
        first=np.concatenate([group, first[row]]),
        second=np.concatenate([np.full(len(group), NO_PARTNER), second[row]]),
        first_speed=np.concatenate([speed[group, single_type], one[row, pair_type]]),
        second_speed=np.concatenate([np.zeros(len(group)), other[row, pair_type]]),
        types=np.concatenate([single_type, pair_type]),
        width=classes.gangs[kind][np.concatenate([group, first[row]])],
        capacity=np.asarray(classes.capacity, dtype=np.float64),
    )


def _speeds(classes: JobClasses, kind: Indices, pairs: Indices) -> tuple[Floats, Floats]:
    """Return the speeds of the first and of the second of each pair (group, group, named pair)."""
    first, second, named = pairs.T
    given = classes.pair_speed[named]
    swapped = classes.pairs[named, 0] != kind[first]
    one = np.where(swapped[:, None], given[:, 1], given[:, 0])
    other = np.where(swapped[:, None], given[:, 0], given[:, 1])
    same = (kind[first] == kind[second])[:, None]
    mean = (one + other) / 2.0
    return np.where(same, mean, one), np.where(same, mean, other)


def _together(one: Floats, other: Floats, alone_one: Floats, alone_other: Floats) -> Floats:
    """The sum of both speeds over the speeds alone; infinite if one cannot run alone at all."""
    with np.errstate(divide="ignore", invalid="ignore"):
        total: Floats = np.nan_to_num(one / alone_one) + np.nan_to_num(other / alone_other)
    return total


def _group_pairs(classes: JobClasses, kind: Indices, counts: Indices) -> tuple[Indices, bool]:
    """The pairs of groups as (group, group, named pair), and whether some were left out for their number."""
    # Groups are sorted by kind, so those of one kind are neighbours.
    groups_of = np.bincount(kind, minlength=len(classes.gangs))
    start = np.cumsum(groups_of) - groups_of
    pairs = np.asarray(classes.pairs).reshape(-1, 2)
    sizes = groups_of[pairs] if len(pairs) else np.zeros((0, 2), dtype=np.intp)
    many = int((sizes[:, 0] * sizes[:, 1]).sum())
    large, small = sizes.max(axis=1, initial=0), sizes.min(axis=1, initial=many)
    width = np.minimum(small, _most_each(large, small)) if many > MOST_PAIRS else small
    named = np.repeat(np.arange(len(pairs)), large * width)
    offset = np.arange(len(named)) - np.repeat(np.cumsum(large * width) - large * width, large * width)
    i, t = np.divmod(offset, np.maximum(width[named], 1))
    j = (i * small[named] // np.maximum(large[named], 1) + t) % np.maximum(small[named], 1)
    wide_first = sizes[named, 0] >= sizes[named, 1]
    first = start[pairs[named, 0]] + np.where(wide_first, i, j)
    second = start[pairs[named, 1]] + np.where(wide_first, j, i)
    low, high = np.minimum(first, second), np.maximum(first, second)
    _, once = np.unique(low * len(kind) + high, return_index=True)
    once = once[(low[once] != high[once]) | (counts[low[once]] >= 2)]
    found = np.column_stack([low[once], high[once], named[once]])
    if many > MOST_PAIRS and len(found) > KEPT_PAIRS:
        found = _best_partners(classes, kind, found)
    return found, many > MOST_PAIRS


def _most_each(large: Indices, small: Indices) -> int:
    """Return how many groups of a kind each may meet, at least 1, for the pairs to come to at most `KEPT_PAIRS`."""
    each = int(small.max(initial=1))
    while each > 1 and int((large * np.minimum(small, each)).sum()) > KEPT_PAIRS:
        each = each // 2 if each > 16 else each - 1
    return max(each, 1)


def _best_partners(classes: JobClasses, kind: Indices, pairs: Indices) -> Indices:
    """The best pairs first, until both groups have their equal part of `KEPT_PAIRS`."""
    speed = classes.speed[kind]
    fits = classes.gangs[kind][:, None] <= classes.capacity
    score = np.zeros(len(pairs))
    for block in np.array_split(np.arange(len(pairs)), 1 + len(pairs) // 100_000):  # to bound the memory
        first, second, _ = pairs[block].T
        one, other = _speeds(classes, kind, pairs[block])
        value = _together(one, other, speed[first], speed[second])
        score[block] = np.where((one > 0) & (other > 0) & fits[first], value, 0.0).max(axis=1, initial=0.0)
    order = np.argsort(-score, kind="stable")
    order = order[score[order] > 1.0]
    free = [max(2 * KEPT_PAIRS // len(kind), 1)] * len(kind)
    kept = []
    for at, first, second in zip(order.tolist(), pairs[order, 0].tolist(), pairs[order, 1].tolist(), strict=True):
        if free[first] > 0 and free[second] > 0:
            free[first] -= 1
            free[second] -= 1
            kept.append(at)
    return pairs[np.array(kept, dtype=np.intp)]


def spread(groups: Groups, x: Floats) -> Spread:
    """The activities' amounts ``x`` distributed to jobs, with throughput, time and GPUs used recomputed."""
    activities, classes = groups.activities, groups.classes
    types, count = len(activities.capacity), len(groups.of_job)
    by_group = np.zeros((len(groups.kind), types))
    single = activities.second == NO_PARTNER
    by_group[activities.first[single], activities.types[single]] = x[single]
    alone = by_group[groups.of_job] / activities.counts[groups.of_job][:, None]
    pairs, together, one, other = _spread_pairs(groups, x)
    speed, gangs = classes.speed[classes.kinds], classes.gangs[classes.kinds]
    throughput, time = (speed * alone).sum(axis=1), alone.sum(axis=1)
    for side, rate in ((pairs[:, 0], one), (pairs[:, 1], other)):
        throughput += np.bincount(side, (rate * together).sum(axis=1), minlength=count)
        time += np.bincount(side, together.sum(axis=1), minlength=count)
    used = gangs @ alone + gangs[pairs[:, 0]] @ together
    return Spread(alone, pairs, together, throughput, time, used)


def _spread_pairs(groups: Groups, x: Floats) -> tuple[Indices, Floats, Floats, Floats]:
    """Return pairs of jobs; by pair and GPU type, their time together and the speeds of the first and the second."""
    activities = groups.activities
    types = len(activities.capacity)
    shared = np.flatnonzero((activities.second != NO_PARTNER) & (x > 0))
    key = activities.first[shared] * len(groups.kind) + activities.second[shared]
    meetings, at = np.unique(key, return_inverse=True)
    amount, one, other = (np.zeros((len(meetings), types)) for _ in range(3))
    amount[at, activities.types[shared]] = x[shared]
    one[at, activities.types[shared]] = activities.first_speed[shared]
    other[at, activities.types[shared]] = activities.second_speed[shared]
    ends, weights, pairing = [np.zeros((0, 2), dtype=np.intp)], [np.zeros(0)], [np.zeros(0, dtype=np.intp)]
    for index, (first, second) in enumerate(zip(*np.divmod(meetings, max(len(groups.kind), 1)), strict=True)):
        left, right = groups.jobs[first], groups.jobs[second]
        i, j, weight = _ring(len(left)) if first == second else _lines(len(left), len(right))
        ends.append(np.column_stack([left[i], right[j]]))
        weights.append(weight)
        pairing.append(np.full(len(i), index))
    row = np.concatenate(pairing)
    return np.concatenate(ends), amount[row] * np.concatenate(weights)[:, None], one[row], other[row]


def _ring(count: int) -> tuple[Indices, Indices, Floats]:
    """The edges of a ring of ``count`` jobs, with equal parts; two jobs have one edge."""
    edges = count if count > 2 else 1
    i = np.arange(edges)
    return i, (i + 1) % count, np.full(edges, 1.0 / edges)


def _lines(left: int, right: int) -> tuple[Indices, Indices, Floats]:
    """Divide [0, 1] into ``left`` equal parts and again into ``right`` equal parts.

    Return the pairs of parts that overlap (left index, right index) and the length of each overlap.
    """
    cuts = np.union1d(np.arange(left + 1) * right, np.arange(right + 1) * left)
    begin = cuts[:-1]
    return begin // right, begin // left, np.diff(cuts) / (left * right)
