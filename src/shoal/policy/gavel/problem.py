"""The problem that one of Gavel's rules solves, as rows of numbers, and its answer: shares of time and their proof."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices
from shoal.core.units import Seconds
from shoal.policy.gavel.tuning import TUNING
from shoal.solve.consolidation import Localities
from shoal.solve.job_classes import JobClasses
from shoal.solve.linear_objectives import TimeShares
from shoal.solve.prices import Filling, equal_share_speed, isolated_speed
from shoal.solve.space_sharing import SharedShares

HOUR = 3600.0

GOOD = TUNING.accepted_gap
"""Gap and residual, relative, up to which an answer is put in force."""


@dataclass(frozen=True)
class ShareProblem:
    """Jobs that can run on the present cluster: a row for each in order of arrival, a column for each kind of GPU.

    ``speeds`` is progress per second as far as the rule may know it (`visible_speeds`), ``gangs`` the GPUs of each job
    and ``capacity`` those of each kind. ``steps`` is the work left; ``elapsed`` the seconds since arrival; ``isolated``
    the seconds that the progress so far would have taken on an n-th of the cluster; ``deadline`` a time in seconds,
    infinity for none; ``tenant`` an index into ``tenant_names``. ``prices`` are dollars per GPU-hour by kind.
    ``before`` is the time alone that was last in force (jobs × kinds).

    ``round`` is the length in seconds of the rounds that carry the shares out, 0 if nothing is lost by that. With
    ``same_unit`` sums of throughput add it up as it is; otherwise every job's progress has a unit of its own.
    """

    speeds: Floats
    gangs: Floats
    capacity: Floats
    weight: Floats
    steps: Floats
    elapsed: Floats
    isolated: Floats
    deadline: Floats
    prices: Floats
    tenant: Indices
    tenant_names: Sequence[str]
    now: Seconds
    find_localities: Callable[[], Localities]
    find_job_classes: Callable[[], JobClasses]
    round: Seconds = 0.0
    before: Floats | None = None
    aware: bool = True
    same_unit: bool = False

    def __len__(self) -> int:
        return len(self.gangs)

    @cached_property
    def fastest(self) -> Floats:
        """Progress per second of each job on the kind that suits it best."""
        fastest: Floats = self.speeds.max(axis=1, initial=0.0)
        return fastest

    @cached_property
    def equal_speed(self) -> Floats:
        """Progress per second with each job's time spread evenly over all GPUs."""
        return equal_share_speed(self.speeds, self.capacity)

    @cached_property
    def isolated_speed(self) -> Floats:
        """Progress per second on an n-th part of the cluster."""
        return isolated_speed(self.speeds, self.gangs, self.capacity)

    @cached_property
    def localities(self) -> Localities:
        """Each gang's speeds on one node and across nodes."""
        return self.find_localities()

    @cached_property
    def job_classes(self) -> JobClasses:
        """Classes of equal jobs, and the pairs of classes that may share GPUs."""
        return self.find_job_classes()

    @property
    def preferred(self) -> Floats | None:
        """The shares to stay near; None where shares are spread over all kinds afterwards anyway."""
        return self.before if self.aware else None

    def all_on_fastest(self) -> Floats | None:
        """All time of every job on its fastest kind, optimal for rules without prices; None if that does not fit."""
        ranked = self.speeds if self.before is None else self.speeds * (1.0 + 1e-12 * self.before)
        fastest = ranked.argmax(axis=1)
        if (np.bincount(fastest, self.gangs, len(self.capacity)) > self.capacity).any():
            return None
        alone = np.zeros(self.speeds.shape)
        alone[np.arange(len(alone)), fastest] = 1.0
        return alone

    def scarce(self, shares: Floats) -> bool:
        """Return whether nodes do not suffice for these shares: gangs slower across nodes would be split.

        A rule that is not ``aware`` of kinds is not aware of distance either.
        """
        return self.aware and bool((self.gangs > 1).any()) and not self.localities.fit(shares)

    def on_one_node(self, shares: Floats) -> Floats | None:
        """Return the part of shares that belongs on one node: all time of gangs faster there; None if no gang is."""
        if not self.aware or not (self.gangs > 1).any() or not self.localities.sensitive.any():
            return None
        return np.where(self.localities.sensitive, shares, 0.0)


def visible_speeds(speeds: Floats, gangs: Floats, capacity: Floats, *, aware: bool) -> Floats:
    """Speeds (jobs × kinds) with 0 where a gang does not fit.

    Unless ``aware``, a job has the same speed on all kinds it can use: the mean, weighted by their GPUs.
    """
    real = np.where(gangs[:, None] <= capacity, speeds, 0.0)
    if aware:
        return real
    gpus = np.where(real > 0, capacity, 0.0).sum(axis=1)
    mean = (real @ capacity) / np.maximum(gpus, 1.0)
    return np.where(real > 0, mean[:, None], 0.0)


def spread(times: Floats, use: Flags, gangs: Floats, capacity: Floats) -> Floats:
    """Return the times of rows spread over the kinds in ``use`` within capacity, for rules blind to kinds."""
    total = times.sum(axis=1, keepdims=True)
    parts: Floats = np.where(use, capacity, 0.0)
    even: Floats = total * parts / parts.sum(axis=1, keepdims=True)
    if (gangs @ even <= capacity * (1.0 + 1e-12)).all():
        return even
    # Proportional parts overload some kind: rows that can use the same kinds share alike what all of them were given.
    _, alike = np.unique(use, axis=0, return_inverse=True)
    alike = alike.reshape(-1)
    of_group = np.zeros((int(alike.max()) + 1, len(capacity)))
    np.add.at(of_group, alike, gangs[:, None] * times)
    part = of_group / np.maximum(of_group.sum(axis=1, keepdims=True), 1e-300)
    shared: Floats = total * part[alike]
    return shared


_NO_PAIRS: Indices = np.zeros((0, 2), dtype=np.intp)


@dataclass(frozen=True)
class Shares:
    """A rule's answer for the rows of its problem: time alone by row and kind, time together by pair of rows and kind.

    ``trouble`` says why the shares must not be put in force; "" if they may. ``notes`` are additions to the reasons of
    single rows. ``consolidated`` is the part of ``alone`` that belongs on one node, where nodes are scarce.
    ``objective`` is the rule's own; ``gap`` and ``residual`` are relative, and ``prices`` (by kind, one array for each
    stage of a water filling) prove them.
    """

    alone: Floats
    pairs: Indices = field(default_factory=lambda: _NO_PAIRS)
    together: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    trouble: str = ""
    notes: Mapping[int, str] = field(default_factory=dict)
    consolidated: Floats | None = None
    objective: float = float("nan")
    gap: float = 0.0
    residual: float = 0.0
    status: str = "optimal"
    prices: tuple[Floats, ...] = ()


def filled(problem: ShareProblem, found: Filling, *, inverse: bool = False) -> Shares:
    """The shares of a water filling, checked against its certificate; ``inverse`` inverts the objective."""
    good = found.residual <= GOOD and found.gap <= GOOD
    return Shares(
        _spread_alone(problem, found.X),
        trouble="" if good else f"inaccurate (gap {found.gap:.1e}, residual {found.residual:.1e})",
        objective=1.0 / found.objective if inverse else found.objective,
        gap=found.gap,
        residual=found.residual,
        status="optimal" if good else "inaccurate",
        prices=tuple(stage.prices for stage in found.stages),
    )


def solved(problem: ShareProblem, found: TimeShares, notes: Mapping[int, str] | None = None) -> Shares:
    """The shares of a linear program."""
    return Shares(_spread_alone(problem, found.shares), **_proof(found), notes=notes or {})


def seated(
    problem: ShareProblem, found: TimeShares, notes: Mapping[int, str] | None = None, *, inverse: bool = False
) -> Shares:
    """The shares of a program that chooses between one node and several, with the part on one node noted by job."""
    parts = dict(notes or {})
    for row in np.flatnonzero(problem.localities.sensitive.any(axis=1)).tolist():
        time, near = float(found.shares[row].sum()), float(found.consolidated[row].sum())
        if time > GOOD:
            parts[row] = f"; nodes are scarce: {100 * near / time:.0f}% of its share is on one node{parts.get(row, '')}"
    proof = _proof(found)
    if inverse:
        proof["objective"] = 1.0 / found.objective
    return Shares(found.shares, **proof, notes=parts, consolidated=found.consolidated)


def shared(
    problem: ShareProblem, found: SharedShares, notes: Mapping[int, str] | None = None, *, inverse: bool = False
) -> Shares:
    """The shares of a program with pairs; ``inverse`` inverts the objective."""
    alone, together = found.alone, found.together
    if not problem.aware:
        use, pairs = problem.speeds > 0, found.pairs
        rows = np.concatenate([alone, together])
        both = np.concatenate([use, use[pairs[:, 0]] & use[pairs[:, 1]]])
        gangs = np.concatenate([problem.gangs, problem.gangs[pairs[:, 0]]])
        alone, together = np.split(spread(rows, both, gangs, problem.capacity), [len(alone)])
    proof = _proof(found)
    if inverse and found.objective > 0:
        proof["objective"] = 1.0 / found.objective
    return Shares(alone, found.pairs, together, **proof, notes=notes or {})


def _spread_alone(problem: ShareProblem, alone: Floats) -> Floats:
    if problem.aware:
        return alone
    return spread(alone, problem.speeds > 0, problem.gangs, problem.capacity)


def _proof(found: TimeShares | SharedShares) -> dict[str, Any]:
    trouble = "" if found.status == "optimal" else f"{found.status} (gap {found.gap:.1e})"
    return {
        "trouble": trouble,
        "objective": found.objective,
        "gap": found.gap,
        "residual": found.residual,
        "status": found.status,
    }
