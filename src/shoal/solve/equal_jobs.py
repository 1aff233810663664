"""Jobs with equal activities counted together, so that a program grows with the number of different jobs only.

A *slot* is a type, or time on one node of a type: a job has at most one activity in each. Jobs are equal if they have
the same width, the same gain in every slot and the same mark. Amounts of a group go to its jobs evenly, or in order:
the first have the most gain, and all but a few jobs have all of an activity or nothing. No total changes.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.solve.time_share_lp import NO_PARTNER, Activities, LimitRows


@dataclass(frozen=True, slots=True)
class EqualJobs:
    """Activities of groups of equal jobs; by job its group (−1: nothing to gain) and its place in the group.

    ``at`` is, by activity of a group, the activity of one of its jobs. Activities are in order of groups.
    """

    activities: Activities
    at: Indices
    group: Indices
    place: Indices

    @classmethod
    def of(cls, activities: Activities, gain: Floats, mark: Floats) -> "EqualJobs":
        """Group equal jobs; in ``activities`` each job is its own group and none shares GPUs; ``mark`` is by job.

        Activities without gain are left out.
        """
        slot, jobs, able = _slots(activities), len(activities.counts), gain > 0
        owner = activities.first[able]
        by_slot = np.full((jobs, int(slot.max(initial=0)) + 1), -np.inf)
        by_slot[owner, slot[able]] = gain[able]
        width = np.zeros(jobs)
        width[activities.first] = activities.width
        key = np.column_stack([by_slot, width, mark])
        able_jobs = np.flatnonzero(np.isfinite(by_slot).any(axis=1))
        order = able_jobs[np.lexsort(key[able_jobs].T)]  # stable: in order of jobs within a group
        new = np.ones(len(order), dtype=bool)
        new[1:] = (key[order[1:]] != key[order[:-1]]).any(axis=1)
        number = np.cumsum(new) - 1
        group, place = np.full(jobs, -1), np.zeros(jobs, dtype=np.intp)
        group[order], place[order] = number, np.arange(len(order)) - np.flatnonzero(new)[number]
        activity_at = np.full(by_slot.shape, -1)
        activity_at[owner, slot[able]] = np.flatnonzero(able)
        of_group = activity_at[order[new]]
        at = of_group[of_group >= 0]
        counts = np.bincount(number, minlength=int(new.sum())).astype(np.float64)
        return cls(_standing_for(activities, at, group[activities.first[at]], counts), at, group, place)

    @property
    def examples(self) -> Indices:
        """The first job of each group."""
        found = np.zeros(len(self.activities.counts), dtype=np.intp)
        first = np.flatnonzero((self.group >= 0) & (self.place == 0))
        found[self.group[first]] = first
        return found

    def evenly(self, x: Floats, activities: Activities) -> Floats:
        """Amounts of groups as amounts of all ``activities``, from which the groups were made: equal parts."""
        group = self.group[activities.first]
        parts = self._by_slot(x, 0.0, activities) / self.activities.counts[:, None]
        found: Floats = np.where(group >= 0, parts[group, _slots(activities)], 0.0)
        return found

    def in_order(self, x: Floats, activities: Activities, gain: Floats) -> Floats:
        """Amounts of groups as amounts of all ``activities``, the activities of most ``gain`` for the first jobs."""
        slot, amount = _slots(activities), self._by_slot(x, 0.0, activities)
        gains, end = self._by_slot(gain[self.at], -np.inf, activities), np.empty(amount.shape)
        best = np.argsort(-gains, axis=1, kind="stable")
        np.put_along_axis(end, best, np.cumsum(np.take_along_axis(amount, best, axis=1), axis=1), axis=1)
        group, place = self.group[activities.first], self.place[activities.first]
        own = np.minimum(place + 1, end[group, slot]) - np.maximum(place, (end - amount)[group, slot])
        found: Floats = np.where((group >= 0) & (own > 0), own, 0.0)
        return found

    def _by_slot(self, values: Floats, other: float, activities: Activities) -> Floats:
        """Values of the groups' activities as groups × slots, ``other`` where there is none."""
        slot = _slots(activities)
        table = np.full((len(self.activities.counts), int(slot.max(initial=0)) + 1), other)
        table[self.activities.first, slot[self.at]] = values
        return table


def _slots(activities: Activities) -> Indices:
    """Return the slot of each activity: two for each type, one of them for the activities that limits may name."""
    slots: Indices = 2 * activities.types + (np.arange(activities.size) < activities.limits.activities)
    return slots


def _standing_for(activities: Activities, at: Indices, group: Indices, counts: Floats) -> Activities:
    """Return the activities ``at`` of single jobs as activities of groups with these counts of jobs."""
    limits, place = activities.limits, np.full(activities.size, -1)
    place[at] = np.arange(len(at))
    named = place[limits.activity] >= 0
    return Activities(
        counts=counts,
        first=group,
        second=np.full(len(at), NO_PARTNER),
        first_speed=activities.first_speed[at],
        second_speed=np.zeros(len(at)),
        types=activities.types[at],
        width=activities.width[at],
        capacity=activities.capacity,
        limits=LimitRows(limits.row[named], place[limits.activity[named]], limits.most),
    )
