"""New shares: the problem of a snapshot, the rule's answer, and the debts carried over from the shares before."""

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
from shoal.policy.gavel.rounds import NONE, Cells, cells_of
from shoal.policy.gavel.tuning import TUNING


@runtime_checkable
class ShareRule(Protocol):
    """One of Gavel's policies: its shares, and whether idle GPUs are given to jobs beyond their shares."""

    @property
    def aware(self) -> bool:
        """Whether the rule distinguishes kinds of GPU."""
        ...

    @property
    def round(self) -> float:
        """Seconds in a round."""
        ...

    @property
    def fills(self) -> bool:
        """Whether a GPU that some job could use never idles."""
        ...

    def shares(self, problem: ShareProblem) -> Shares:
        """Shares of time for the rows of a problem that has at least one."""
        ...


def problem_of(
    snapshot: Snapshot, rows: Indices, *, aware: bool = True, round: Seconds = 0.0, before: Floats | None = None
) -> ShareProblem:
    """Return the problem of these jobs of a snapshot, by position in ascending order; ``isolated`` is left at 0.

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
    """The carry with new shares in force, or with the old ones where the rule's answer must not be used."""
    columns, cluster, now, jobs = snapshot.columns, snapshot.cluster, snapshot.now, len(snapshot.columns)
    positions = np.full(jobs, NONE) if before is None else before.positions(snapshot)
    able = np.flatnonzero(snapshot.possible)
    isolated, isolated_speed = np.zeros(jobs), np.zeros(jobs)
    shares = Shares(np.zeros((0, len(cluster.kinds))))
    if len(able):
        old = _shares_before(before, positions, able)
        problem = problem_of(snapshot, able, aware=rule.aware, round=rule.round, before=old)
        isolated_speed[able] = problem.isolated_speed
        isolated[able] = columns.done[able] / problem.isolated_speed
        if before is not None:
            known = positions >= 0
            isolated[known] = before.isolated[positions[known]]
        shares = _solved(rule, replace(problem, isolated=isolated[able]))
    trouble, cells = "", _cells(snapshot, able, shares)
    if shares.trouble:
        trouble = f"; the last solve was {shares.trouble}"
        if before is not None:
            trouble += f"; the shares of t = {before.start:,.6g} s stay in force"
            cells = _surviving(before, positions, snapshot)
    owed = np.zeros(len(cells))
    if before is not None:
        owed = carried_over(before, before.debt(now, rule.round), positions, cells)
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
        runs=np.full(jobs, NONE),
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


def _shares_before(before: GavelCarry | None, positions: Indices, able: Indices) -> Floats | None:
    """The time alone that was in force (jobs that can run × kinds); 0 for new jobs."""
    if before is None or not len(before.cells):
        return None
    alone = np.zeros((len(before.rows) + 1, len(before.capacity)))  # row −1: new jobs
    single = before.cells.second < 0
    np.add.at(alone, (before.cells.first[single], before.cells.kind[single]), before.cells.share[single])
    return alone[positions[able]]


def _cells(snapshot: Snapshot, able: Indices, shares: Shares) -> Cells:
    """The shares of the rows of a problem as cells of the snapshot's jobs."""
    alone = np.zeros((len(snapshot.columns), len(snapshot.cluster.kinds)))
    alone[able] = np.where(shares.alone > TUNING.least_share, shares.alone, 0.0)
    together = np.where(shares.together > TUNING.least_share, shares.together, 0.0)
    near = None
    if shares.consolidated is not None:
        near = np.zeros(alone.shape)
        near[able] = np.where(shares.consolidated > TUNING.least_share, shares.consolidated, 0.0)
        alone = np.where(alone - near > TUNING.least_share, alone, near)
    return cells_of(alone, snapshot.columns.gpus, able[shares.pairs], together, near)


def _surviving(before: GavelCarry, positions: Indices, snapshot: Snapshot) -> Cells:
    """The old cells whose jobs are all live and can still run on the cell's kind."""
    cells, columns = before.cells, snapshot.columns
    now_at = np.full(len(before.rows) + 1, NONE)  # index −1: no second job
    now_at[positions[positions >= 0]] = np.flatnonzero(positions >= 0)
    first, second = now_at[cells.first], now_at[cells.second]
    alive = (first >= 0) & ((cells.second < 0) | (second >= 0))
    fits = np.array(snapshot.cluster.capacity)[cells.kind] >= cells.gang
    alive &= fits & (columns.speeds[first, cells.kind] > 0)
    return replace(cells, first=first, second=second).taken(np.flatnonzero(alive))
