"""Time on GPUs as activities: one member alone, or two sharing the same GPUs, on one type.

Groups are equal jobs counted together: an activity's amount is the time all of a group's jobs spend in it, so the
programs stay as small as the number of different jobs. Amounts x obey x ≥ 0, Σ time of a group ≤ its count, and
Σ width · x ≤ capacity for every type; two sharing GPUs take the time of both and the GPUs (and their price) once.

Floors on throughput are elastic. One that a job could not meet even alone is dropped, so that it takes nothing from
those that can be met; if the rest cannot be met together, the least total is given up, each counted in its own top
speed. That first program also gives every later one a feasible start.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.solve.linear_program import LpSession, Program, Vertex

NOBODY = -1
_GIVEN_UP = 1e-9
"""A shortfall below this fraction of a job's top speed is rounding."""
_ALONE = 1e-9
"""A floor may pass the top speed by this fraction and still count as met by running all the time."""


@dataclass(frozen=True, slots=True)
class LimitRows:
    """More than GPUs can be scarce: the amounts of the activities named in a row add up to at most its ``most``."""

    row: Indices
    activity: Indices
    most: Floats

    def filled(self, x: Floats) -> Floats:
        """What each row adds up to."""
        return np.bincount(self.row, x[self.activity], minlength=len(self.most)).astype(np.float64)


_NO_LIMITS = LimitRows(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp), np.zeros(0))


@dataclass(frozen=True, slots=True)
class Activities:
    """What can run where: per activity its members' groups, their speeds, its type and its width in GPUs.

    ``second`` is `NOBODY` for one alone. Two of the same group are two different jobs of it. A job may have several
    activities on one type, where ``limits`` tell them apart.
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
        """How many activities there are."""
        return len(self.first)

    def members(self) -> tuple[Indices, Indices, Floats]:
        """Every (activity, group, speed) membership; an activity of two of one group is named once, with both."""
        alone = np.arange(self.size)
        twin = self.first == self.second
        with_other = np.flatnonzero((self.second != NOBODY) & ~twin)
        return (
            np.concatenate([alone, with_other]),
            np.concatenate([self.first, self.second[with_other]]),
            np.concatenate([self.first_speed + twin * self.second_speed, self.second_speed[with_other]]),
        )

    def gain(self, weights: Floats) -> Floats:
        """Σ weight · speed of an activity's members, for weights by group."""
        both = self.second != NOBODY
        gain: Floats = weights[self.first] * self.first_speed
        gain[both] += weights[self.second[both]] * self.second_speed[both]
        return gain

    def cost(self, prices: Floats) -> Floats:
        """What a unit of each activity costs: its GPUs at their type's price, once however many share them."""
        paid: Floats = prices[self.types] * self.width
        return paid

    def throughput(self, x: Floats) -> Floats:
        """Each group's total throughput."""
        activity, group, speed = self.members()
        return np.bincount(group, speed * x[activity], minlength=len(self.counts)).astype(np.float64)

    def top_speed(self) -> Floats:
        """The fastest any one job of each group can ever go; 0 where it can do nothing."""
        top = np.zeros(len(self.counts))
        np.maximum.at(top, self.first, self.first_speed)
        both = self.second != NOBODY
        np.maximum.at(top, self.second[both], self.second_speed[both])
        return top

    def trimmed(self, x: Floats) -> Floats:
        """``x`` with rounding taken out: never negative, no group over its time, no type over its capacity."""
        x = np.maximum(x, 0.0)
        activity, group, _ = self.members()
        room = np.minimum(1.0, self.counts / np.maximum(self._time(x), 1e-300))
        factor = np.ones(self.size)
        np.minimum.at(factor, activity, room[group])
        x = x * factor
        used = np.bincount(self.types, self.width * x, minlength=len(self.capacity))
        x *= np.minimum(1.0, self.capacity / np.maximum(used, 1e-300))[self.types]
        over = np.minimum(1.0, self.limits.most / np.maximum(self.limits.filled(x), 1e-300))
        np.multiply.at(x, self.limits.activity, over[self.limits.row])
        trimmed: Floats = x
        return trimmed

    def _time(self, x: Floats) -> Floats:
        activity, group, _ = self.members()
        heads = np.where(self.first == self.second, 2.0, 1.0)
        return np.bincount(group, heads[activity] * x[activity], minlength=len(self.counts)).astype(np.float64)

    def program(self) -> Program:
        """The common constraint set: one row of time for each group, one of GPUs for each type, then the limits."""
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


def extended(program: Program, extra: Program) -> Program:
    """``program`` with more rows and columns; ``extra`` numbers its entries in the combined program already."""
    return Program(
        rows=np.concatenate([program.rows, extra.rows]),
        columns=np.concatenate([program.columns, extra.columns]),
        values=np.concatenate([program.values, extra.values]),
        lower=np.concatenate([program.lower, extra.lower]),
        upper=np.concatenate([program.upper, extra.upper]),
        reach=np.concatenate([program.reach, extra.reach]),
    )


@dataclass(frozen=True, slots=True)
class Floored:
    """A session in which every floor that can be kept is kept, and what had to be given up for that.

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
        """Whether the session is known to have a feasible point: without floors doing nothing is one."""
        return self.start is None or self.start.solved

    def padded(self, gain: Floats) -> Floats:
        """``gain`` with zeros for the session's columns of slack."""
        return np.concatenate([gain, np.zeros(self.spare)])


def floored(activities: Activities, floors: Floats | None = None) -> Floored:
    """Open a session with ``floors`` on the throughput of each job of a group (0: none)."""
    groups = len(activities.counts)
    top = activities.top_speed()
    wanted = np.zeros(groups) if floors is None else floors
    unattainable = wanted > top * (1.0 + _ALONE)
    kept = np.where(unattainable, 0.0, np.minimum(wanted, top))
    some = np.flatnonzero(kept > 0)
    if not len(some):
        return Floored(LpSession(activities.program()), 0, kept, unattainable, None)
    session = LpSession(_elastic(activities, some, kept, top))
    slack = np.arange(activities.size, activities.size + len(some))
    start = session.maximise(np.concatenate([np.zeros(activities.size), -np.ones(len(some))]))
    missing = start.x[slack]
    missing = np.where(missing > _GIVEN_UP * activities.counts[some], missing, 0.0)
    session.limit(slack, missing)
    kept[some] = np.maximum(kept[some] - missing * top[some] / activities.counts[some], 0.0)
    return Floored(session, len(some), kept, unattainable, start)


def _elastic(activities: Activities, some: Indices, kept: Floats, top: Floats) -> Program:
    """A row for each floor, in units of the job's top speed, with a column of slack."""
    program = activities.program()
    base = len(program.lower)
    place = np.full(len(kept), NOBODY)
    place[some] = np.arange(len(some))
    activity, group, speed = activities.members()
    on = place[group] != NOBODY
    level = activities.counts[some] * kept[some] / top[some]
    return extended(
        program,
        Program(
            rows=base + np.concatenate([place[group[on]], np.arange(len(some))]),
            columns=np.concatenate([activity[on], activities.size + np.arange(len(some))]),
            values=np.concatenate([speed[on] / top[group[on]], np.ones(len(some))]),
            lower=level,
            upper=np.full(len(some), np.inf),
            reach=level,
        ),
    )
