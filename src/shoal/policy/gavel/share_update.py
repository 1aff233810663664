"""New shares: the problem of a snapshot, the rule's answer, and the debts that outlive the shares before."""

from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.gavel.carry import GavelCarry, carried_over
from shoal.policy.gavel.consolidation import localities
from shoal.policy.gavel.job_classes import job_classes
from shoal.policy.gavel.problem import HOUR, ShareProblem, Shares, visible_speeds
from shoal.policy.gavel.rounds import NOBODY, Cells, cells_of
from shoal.policy.gavel.tuning import TUNING

NOTHING = TUNING.least_share
"""A smaller share of time is none: it would take a million rounds to be worth one."""


@runtime_checkable
class ShareRule(Protocol):
    """What one of Gavel's policies adds: its shares, and whether GPUs nobody has a share of are given away."""

    @property
    def aware(self) -> bool:
        """Whether it may tell kinds of GPU apart."""
        ...

    @property
    def round(self) -> float:
        """Seconds in a round."""
        ...

    @property
    def fills(self) -> bool:
        """Whether nothing idles that somebody could use."""
        ...

    def shares(self, problem: ShareProblem) -> Shares:
        """Shares of time for the rows of a problem that has at least one."""
        ...


def problem_of(
    snapshot: Snapshot, rows: Indices, *, aware: bool = True, round: Seconds = 0.0, before: Floats | None = None
) -> ShareProblem:
    """The problem of these jobs of a snapshot, by position in ascending order; ``isolated`` is left at 0.

    A job's steps are its work left, at least a second's worth. Where the work is not known they take as long as the
    longest known, or an hour, and its deadline does not count. If any kind has no price above 0, all cost 1.
    """
    columns, cluster = snapshot.columns, snapshot.cluster
    capacity, gangs = np.array(cluster.capacity, dtype=np.float64), columns.gpus[rows].astype(np.float64)
    speeds = visible_speeds(columns.speeds[rows], gangs, capacity, aware=aware)
    left, best = columns.remaining[rows], speeds.max(axis=1, initial=0.0)
    known = np.isfinite(left)
    if not known.all():
        longest = float((left[known] / best[known]).max(initial=HOUR))
        left = np.where(known, left, longest * best)
    prices = np.array([kind.price_per_hour or 0.0 for kind in cluster.types])
    return ShareProblem(
        speeds=speeds,
        gangs=gangs,
        capacity=capacity,
        weight=columns.weight[rows],
        steps=np.maximum(left, best),
        elapsed=snapshot.now - columns.submitted[rows],
        isolated=np.zeros(len(rows)),
        deadline=np.where(known, columns.deadline[rows], np.inf),
        prices=prices if (prices > 0).all() else np.ones(len(prices)),
        tenant=columns.tenant[rows].astype(np.intp),
        tenant_names=snapshot.register.tenants,
        now=snapshot.now,
        find_localities=partial(localities, snapshot, rows, speeds, gangs),
        find_job_classes=partial(job_classes, snapshot, rows, speeds, gangs, capacity),
        round=round,
        before=before,
        aware=aware,
    )


def with_new_shares(rule: ShareRule, snapshot: Snapshot, before: GavelCarry | None, end: Seconds) -> GavelCarry:
    """The carry with the shares of this moment in force; with the old ones where the rule's answer is in trouble."""
    columns, cluster, now, jobs = snapshot.columns, snapshot.cluster, snapshot.now, len(snapshot.columns)
    places = np.full(jobs, NOBODY) if before is None else before.places(snapshot)
    able = np.flatnonzero(snapshot.possible)
    isolated, isolated_speed = np.zeros(jobs), np.zeros(jobs)
    shares = Shares(np.zeros((0, len(cluster.kinds))))
    if len(able):
        old = _shares_before(before, places, able)
        problem = problem_of(snapshot, able, aware=rule.aware, round=rule.round, before=old)
        isolated_speed[able] = problem.isolated_speed
        isolated[able] = columns.done[able] / problem.isolated_speed
        if before is not None:
            known = places >= 0
            isolated[known] = before.isolated[places[known]]
        shares = _solved(rule, replace(problem, isolated=isolated[able]))
    trouble, cells = "", _cells(snapshot, able, shares)
    if shares.trouble:
        trouble = f"; the last solve was {shares.trouble}"
        if before is not None:
            trouble += f"; the shares of t = {before.start:,.6g} s stay in force"
            cells = _surviving(before, places, snapshot)
    owed = np.zeros(len(cells))
    if before is not None:
        owed = carried_over(before, before.debt(now, rule.round), places, cells)
    notes = [""] * jobs if shares.notes else []
    for row, note in shares.notes.items():
        notes[able[row]] = note
    return GavelCarry(
        rows=columns.rows,
        capacity=cluster.capacity,
        speeds=columns.speeds,
        cells=cells,
        start=now,
        owed=owed,
        received=np.zeros(len(cells)),
        end=end,
        at=now,
        ran=columns.run_seconds,
        done=columns.done,
        runs=np.full(jobs, NOBODY),
        isolated=isolated,
        isolated_speed=isolated_speed,
        trouble=trouble,
        notes=tuple(notes),
    )


def _solved(rule: ShareRule, problem: ShareProblem) -> Shares:
    best = problem.all_on_fastest() if rule.fills and rule.aware else None
    shares = rule.shares(problem) if best is None or problem.scarce(best) else Shares(best)
    if shares.consolidated is None and not len(shares.pairs):
        shares = replace(shares, consolidated=problem.on_one_node(shares.alone))
    return shares


def _shares_before(before: GavelCarry | None, places: Indices, able: Indices) -> Floats | None:
    """The time alone that was in force, for the jobs that can run; 0 for new ones."""
    if before is None or not len(before.cells):
        return None
    alone = np.zeros((len(before.rows) + 1, len(before.capacity)))  # the last row is that of new jobs
    single = before.cells.second < 0
    np.add.at(alone, (before.cells.first[single], before.cells.kind[single]), before.cells.share[single])
    return alone[places[able]]


def _cells(snapshot: Snapshot, able: Indices, shares: Shares) -> Cells:
    """The shares of the rows of a problem as cells of the snapshot's jobs."""
    alone = np.zeros((len(snapshot.columns), len(snapshot.cluster.kinds)))
    alone[able] = np.where(shares.alone > NOTHING, shares.alone, 0.0)
    together = np.where(shares.together > NOTHING, shares.together, 0.0)
    near = None
    if shares.consolidated is not None:
        near = np.zeros(alone.shape)
        near[able] = np.where(shares.consolidated > NOTHING, shares.consolidated, 0.0)
        alone = np.where(alone - near > NOTHING, alone, near)
    return cells_of(alone, snapshot.columns.gpus, able[shares.pairs], together, near)


def _surviving(before: GavelCarry, places: Indices, snapshot: Snapshot) -> Cells:
    """The old cells whose jobs are all still there and can still run there."""
    cells, columns = before.cells, snapshot.columns
    now_at = np.full(len(before.rows) + 1, NOBODY)  # the last entry is the nobody that a job alone has beside it
    now_at[places[places >= 0]] = np.flatnonzero(places >= 0)
    first, second = now_at[cells.first], now_at[cells.second]
    alive = (first >= 0) & ((cells.second < 0) | (second >= 0))
    fits = np.array(snapshot.cluster.capacity)[cells.kind] >= cells.gang
    alive &= fits & (columns.speeds[first, cells.kind] > 0)
    return replace(cells, first=first, second=second).taken(np.flatnonzero(alive))
