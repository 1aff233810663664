"""What a rule is given, the jobs that can run as rows, and what it answers: shares of time, and what they rest on."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.snapshot import Snapshot
from shoal.policy.gavel.consolidation import localities
from shoal.solve.consolidation import Localities
from shoal.solve.linear_objectives import TimeShares
from shoal.solve.prices import Filling, equal_share_speed, isolated_speed

HOUR = 3600.0

GOOD = 1e-6
"""Gap and residual, relative, up to which an answer is put in force."""


@dataclass(frozen=True)
class ShareProblem:
    """The jobs that can run on the cluster as it is, in order of arrival, as rows of numbers.

    ``speeds`` is 0 where a gang does not fit. Heterogeneity-agnostic, a job goes everywhere it can run at its mean
    speed over those kinds. ``isolated`` is how long each job would have run so far on its n-th part of the cluster,
    ``before`` the time alone it was last given, by kind.
    """

    snapshot: Snapshot
    rows: Indices
    isolated: Floats
    before: Floats | None = None
    aware: bool = True

    @cached_property
    def capacity(self) -> Floats:
        """GPUs by kind."""
        return np.array(self.snapshot.cluster.capacity, dtype=np.float64)

    @cached_property
    def gangs(self) -> Floats:
        """GPUs each job needs at once."""
        return self.snapshot.columns.gpus[self.rows].astype(np.float64)

    @cached_property
    def weight(self) -> Floats:
        """Each job's weight."""
        return self.snapshot.columns.weight[self.rows]

    @cached_property
    def speeds(self) -> Floats:
        """By job and kind: progress per second, as far as the rule may know."""
        real = np.where(self.gangs[:, None] <= self.capacity, self.snapshot.columns.speeds[self.rows], 0.0)
        return real if self.aware else np.where(real > 0, _mean_speed(real, self.capacity)[:, None], 0.0)

    @cached_property
    def equal_speed(self) -> Floats:
        """Progress per second if each job's time were spread over all GPUs alike."""
        return equal_share_speed(self.speeds, self.capacity)

    @cached_property
    def isolated_speed(self) -> Floats:
        """Progress per second on an n-th part of the cluster."""
        return isolated_speed(self.speeds, self.gangs, self.capacity)

    def all_on_fastest(self) -> Floats | None:
        """All the time on the fastest kind for everybody, where there is room: best by any rule without a price."""
        liked = self.speeds if self.before is None else self.speeds * (1.0 + 1e-12 * self.before)
        fastest = liked.argmax(axis=1)
        if (np.bincount(fastest, self.gangs, len(self.capacity)) > self.capacity).any():
            return None
        alone = np.zeros(self.speeds.shape)
        alone[np.arange(len(alone)), fastest] = 1.0
        return alone

    def scarce(self, shares: Floats) -> bool:
        """Whether shares would have gangs sit apart that go slower so: there are not nodes enough.

        A rule that does not tell kinds apart does not tell distances apart.
        """
        return self.aware and bool((self.gangs > 1).any()) and not self.places.fit(shares)

    def asked(self, shares: Floats) -> Floats | None:
        """What of shares that are not scarce is to be on one node: all time of gangs that are faster there."""
        if not self.aware or not (self.gangs > 1).any() or not self.places.sensitive.any():
            return None
        return np.where(self.places.sensitive, shares, 0.0)

    @cached_property
    def places(self) -> Localities:
        """Each gang's speeds on one node and across nodes."""
        return localities(self.snapshot, self.rows, self.speeds, self.gangs)

    @property
    def preferred(self) -> Floats | None:
        """The shares to stay near to; none where they are spread over all kinds afterwards anyway."""
        return self.before if self.aware else None

    @cached_property
    def steps(self) -> Floats:
        """Work left, at least a second's worth. Where nobody said, as much as the longest known takes, or an hour's."""
        left, best = self.snapshot.columns.remaining[self.rows], self.speeds.max(axis=1, initial=0.0)
        known = np.isfinite(left)
        if not known.all():
            longest = float((left[known] / best[known]).max(initial=HOUR))
            left = np.where(known, left, longest * best)
        steps: Floats = np.maximum(left, best)
        return steps


def spread(times: Floats, use: Flags, gangs: Floats, capacity: Floats) -> Floats:
    """The same time for every combination where all kinds look alike: over those it can use, not left to chance."""
    total = times.sum(axis=1, keepdims=True)
    parts: Floats = np.where(use, capacity, 0.0)
    even: Floats = total * parts / parts.sum(axis=1, keepdims=True)
    if (gangs @ even <= capacity * (1.0 + 1e-12)).all():
        return even
    # Some kinds are wanted by more than proportion leaves them: those that can use the same kinds share alike what all
    # of them were given.
    _, alike = np.unique(use, axis=0, return_inverse=True)
    alike = alike.reshape(-1)
    of_group = np.zeros((int(alike.max()) + 1, len(capacity)))
    np.add.at(of_group, alike, gangs[:, None] * times)
    part = of_group / np.maximum(of_group.sum(axis=1, keepdims=True), 1e-300)
    shared: Floats = total * part[alike]
    return shared


def _mean_speed(speeds: Floats, capacity: Floats) -> Floats:
    """The mean over the kinds each job can use, weighted by their GPUs."""
    gpus = np.where(speeds > 0, capacity, 0.0).sum(axis=1)
    mean: Floats = (speeds @ capacity) / np.maximum(gpus, 1.0)
    return mean


_NO_PAIRS: Indices = np.zeros((0, 2), dtype=np.intp)


@dataclass(frozen=True)
class Shares:
    """A rule's answer for the rows of its problem: time alone by row and kind, and together by pair of rows and kind.

    ``trouble`` says why it must not be put in force, or nothing. ``notes`` is what single rows should be told.
    ``consolidated`` is the part of the time alone that is to be on one node, where nodes are scarce.
    """

    alone: Floats
    pairs: Indices = field(default_factory=lambda: _NO_PAIRS)
    together: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    trouble: str = ""
    notes: dict[int, str] = field(default_factory=dict)
    consolidated: Floats | None = None


def shares_of(problem: ShareProblem, alone: Floats, trouble: str = "", notes: dict[int, str] | None = None) -> Shares:
    """Time alone as an answer, spread where kinds look alike."""
    if not problem.aware:
        alone = spread(alone, problem.speeds > 0, problem.gangs, problem.capacity)
    return Shares(alone, trouble=trouble, notes=notes or {})


def filled(problem: ShareProblem, found: Filling) -> Shares:
    """The shares of a water filling, judged by its own certificate."""
    good = found.residual <= GOOD and found.gap <= GOOD
    trouble = "" if good else f"inaccurate (gap {found.gap:.1e}, residual {found.residual:.1e})"
    return shares_of(problem, found.X, trouble)


def seated(problem: ShareProblem, found: TimeShares, notes: dict[int, str] | None = None) -> Shares:
    """The shares of a solve that chooses between one node and several; who is apart for a part of its time is told."""
    trouble = "" if found.status == "optimal" else f"{found.status} (gap {found.gap:.1e})"
    told = dict(notes or {})
    for row in np.flatnonzero(problem.places.sensitive.any(axis=1)).tolist():
        time, near = float(found.shares[row].sum()), float(found.consolidated[row].sum())
        if time > GOOD:
            told[row] = f"; nodes are scarce: {100 * near / time:.0f}% of its share is on one node{told.get(row, '')}"
    return Shares(found.shares, trouble=trouble, notes=told, consolidated=found.consolidated)
