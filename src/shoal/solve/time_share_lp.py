"""Time on GPUs as activities: one job alone, or two sharing the same GPUs, on one type.

    x ≥ 0,  Σ time of a group ≤ its count,  Σ width · x ≤ capacity of each type,  Σ x of a limit row ≤ most.

x is the time all jobs of a group spend in an activity; groups are equal jobs counted together, so programs grow with
the number of different jobs only. Two jobs that share GPUs use the time of both and the GPUs (and their price) once.

Floors on throughput are elastic. A floor above a job's top speed is dropped, so that it takes nothing from the others;
if the rest cannot be met together, the least total is given up, each counted in its own top speed. That first program
also gives every later one a feasible start.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.linear_program import LpSession, Program, Vertex

NO_PARTNER = -1
TINY = 1e-300
"""Keeps a division by 0 from warning where its result is not used."""
_GIVEN_UP = 1e-9
"""A shortfall below this fraction of a job's top speed is rounding."""
_ALONE = 1e-9
"""A floor may pass the top speed by this fraction and still count as met by running all the time."""


@dataclass(frozen=True, slots=True)
class LimitRows:
    """Further limits: the amounts of the activities named in a row add up to at most its ``most``."""

    row: Indices
    activity: Indices
    most: Floats

    @property
    def activities(self) -> int:
        """The number of activities up to the last one that a row names."""
        return int(self.activity.max(initial=-1)) + 1

    def filled(self, x: Floats) -> Floats:
        """The sum of each row at ``x``."""
        return np.bincount(self.row, x[self.activity], minlength=len(self.most)).astype(np.float64)


_NO_LIMITS = LimitRows(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Activities:
    """By activity: its members' groups and speeds, its type, and its width in GPUs.

    ``second`` is `NO_PARTNER` for a job alone. Two members of one group are two different jobs of it. A job may have
    several activities on one type, which ``limits`` distinguish.
    """

    counts: Floats
    first: Indices
    second: Indices
    first_speed: Floats
    second_speed: Floats
    types: Indices
    width: Floats
    capacity: Floats
    limits: LimitRows = _NO_LIMITS

    @property
    def size(self) -> int:
        """The number of activities."""
        return len(self.first)

    def members(self) -> tuple[Indices, Indices, Floats]:
        """Every (activity, group, speed) membership; two jobs of one group appear once, with both speeds."""
        alone = np.arange(self.size)
        same_group = self.first == self.second
        with_other = np.flatnonzero((self.second != NO_PARTNER) & ~same_group)
        return (
            np.concatenate([alone, with_other]),
            np.concatenate([self.first, self.second[with_other]]),
            np.concatenate([self.first_speed + same_group * self.second_speed, self.second_speed[with_other]]),
        )

    def gain(self, weights: Floats) -> Floats:
        """Σ weight · speed of an activity's members, for weights by group."""
        both = self.second != NO_PARTNER
        gain: Floats = weights[self.first] * self.first_speed
        gain[both] += weights[self.second[both]] * self.second_speed[both]
        return gain

    def cost(self, prices: Floats) -> Floats:
        """The cost of a unit of each activity: its GPUs at their type's price, counted once if two jobs share them."""
        paid: Floats = prices[self.types] * self.width
        return paid

    def throughput(self, x: Floats) -> Floats:
        """Each group's total throughput."""
        activity, group, speed = self.members()
        return np.bincount(group, speed * x[activity], minlength=len(self.counts)).astype(np.float64)

    def top_speed(self) -> Floats:
        """Return the highest speed that a job of each group can have; 0 where it can do nothing."""
        top = np.zeros(len(self.counts))
        np.maximum.at(top, self.first, self.first_speed)
        both = self.second != NO_PARTNER
        np.maximum.at(top, self.second[both], self.second_speed[both])
        return top

    def trimmed(self, x: Floats) -> Floats:
        """``x`` scaled down where rounding made it negative, or overdrew a group's time, a type or a limit."""
        x = np.maximum(x, 0.0)
        activity, group, _ = self.members()
        time_factor = np.minimum(1.0, self.counts / np.maximum(self._time(x), TINY))
        factor = np.ones(self.size)
        np.minimum.at(factor, activity, time_factor[group])
        x = x * factor
        x *= np.minimum(1.0, self.capacity / np.maximum(self._used(x), TINY))[self.types]
        over = np.minimum(1.0, self.limits.most / np.maximum(self.limits.filled(x), TINY))
        np.multiply.at(x, self.limits.activity, over[self.limits.row])
        trimmed: Floats = x
        return trimmed

    def _time(self, x: Floats) -> Floats:
        activity, group, _ = self.members()
        heads = np.where(self.first == self.second, 2.0, 1.0)
        return np.bincount(group, heads[activity] * x[activity], minlength=len(self.counts)).astype(np.float64)

    def program(self) -> Program:
        """Return the program of the constraints: a row of time per group, a row of GPUs per type, then the limits."""
        activity, group, _ = self.members()
        heads = np.where(self.first == self.second, 2.0, 1.0)
        groups, types, limits = len(self.counts), len(self.capacity), self.limits
        reach = np.minimum(self.counts[self.first] / heads, self.capacity[self.types] / self.width)
        return Program(
            rows=np.concatenate([group, groups + self.types, groups + types + limits.row]),
            columns=np.concatenate([activity, np.arange(self.size), limits.activity]),
            values=np.concatenate([heads[activity], self.width, np.ones(len(limits.row))]),
            lower=np.full(groups + types + len(limits.most), -np.inf),
            upper=np.concatenate([self.counts, self.capacity, limits.most]),
            reach=reach,
        )

    def with_levels(
        self, speed: Floats, groups: Indices, *, column: Indices, value: Floats, lower: Floats, reach: Floats
    ) -> tuple[Program, Indices]:
        """The program with a row Σ speed · x + value · x[column] ≥ lower for each of ``groups``, and these rows.

        ``speed`` is by membership, as `members` orders them. ``reach`` is that of the columns added, which are numbered
        from ``size``.
        """
        program, count = self.program(), len(groups)
        place = np.full(len(self.counts), NO_PARTNER)
        place[groups] = np.arange(count)
        activity, group, _ = self.members()
        on = place[group] != NO_PARTNER
        rows = len(program.lower) + np.arange(count)
        extended = Program(
            rows=np.concatenate([program.rows, rows[place[group[on]]], rows]),
            columns=np.concatenate([program.columns, activity[on], column]),
            values=np.concatenate([program.values, speed[on], value]),
            lower=np.concatenate([program.lower, lower]),
            upper=np.concatenate([program.upper, np.full(count, np.inf)]),
            reach=np.concatenate([program.reach, reach]),
        )
        return extended, rows

    def violation(self, x: Floats, time: Floats, throughput: Floats, kept: Floats) -> float:
        """The largest relative violation of a constraint by ``x``: sign, time, GPUs, limits, throughput kept.

        ``time``, ``throughput`` and ``kept`` are by job, each its own group.
        """
        over = (
            0.0 - x.min(initial=0.0),
            (time - 1.0).max(initial=0.0),
            (self._used(x) / np.maximum(self.capacity, TINY) - 1.0).max(initial=0.0),
            (self.limits.filled(x) - self.limits.most).max(initial=0.0),
            ((kept - throughput) / np.maximum(self.top_speed(), TINY)).max(initial=0.0),
        )
        return float(max(over))

    def _used(self, x: Floats) -> Floats:
        return np.bincount(self.types, self.width * x, minlength=len(self.capacity)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Floored:
    """A session in which each group's throughput has a floor, and the groups whose floor no shares can reach.

    ``kept`` is the throughput each job of a group is sure of; ``unattainable`` names the groups whose floor is above
    their top speed; ``start`` is a feasible point (`None` without floors).
    """

    session: LpSession
    spare: int
    kept: Floats
    unattainable: Flags
    start: Vertex | None

    @property
    def feasible(self) -> bool:
        """Whether the session is known to have a feasible point; without floors, x = 0 is feasible."""
        return self.start is None or self.start.solved

    def padded(self, gain: Floats) -> Floats:
        """``gain`` with zeros for the session's columns of slack."""
        return np.concatenate([gain, np.zeros(self.spare)])


def floored(activities: Activities, floors: Floats | None = None) -> Floored:
    """A session with ``floors`` on the throughput of each job of a group (0: none)."""
    groups = len(activities.counts)
    top = activities.top_speed()
    wanted = np.zeros(groups) if floors is None else floors
    unattainable = wanted > top * (1.0 + _ALONE)
    kept = np.where(unattainable, 0.0, np.minimum(wanted, top))
    some = np.flatnonzero(kept > 0)
    if not len(some):
        return Floored(LpSession(activities.program()), 0, kept, unattainable, None)
    slack = np.arange(activities.size, activities.size + len(some))
    _, group, speed = activities.members()
    level = activities.counts[some] * kept[some] / top[some]
    # A row for each floor, in units of the job's top speed, with a column of slack.
    scaled = np.divide(speed, top[group], out=np.zeros(len(speed)), where=top[group] > 0)
    program, _ = activities.with_levels(scaled, some, column=slack, value=np.ones(len(some)), lower=level, reach=level)
    session = LpSession(program)
    start = session.maximise(np.concatenate([np.zeros(activities.size), -np.ones(len(some))]))
    missing = start.x[slack]
    missing = np.where(missing > _GIVEN_UP * activities.counts[some], missing, 0.0)
    session.limit(slack, missing)
    kept[some] = np.maximum(kept[some] - missing * top[some] / activities.counts[some], 0.0)
    return Floored(session, len(some), kept, unattainable, start)
