"""New shares put into force: solved for the jobs that can run, with what is still owed carried over."""

from dataclasses import replace
from typing import Protocol

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.snapshot import Snapshot
from shoal.policy.gavel.carry import GavelCarry, carried_over
from shoal.policy.gavel.problem import ShareProblem, Shares
from shoal.policy.gavel.rounds import NOBODY, Cells, cells_of
from shoal.policy.gavel.tuning import TUNING

NOTHING = TUNING.least_share
"""A smaller share of time is none: it would take a million rounds to be worth one."""


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


def with_new_shares(rule: ShareRule, snapshot: Snapshot, before: GavelCarry | None, end: float) -> GavelCarry:
    """The shares of this moment, to be carried out from now on; the old ones where the rule's answer is no good."""
    columns, cluster, now, jobs = snapshot.columns, snapshot.cluster, snapshot.now, len(snapshot.columns)
    places = np.full(jobs, NOBODY) if before is None else before.places(snapshot)
    able = np.flatnonzero(snapshot.possible)
    problem = ShareProblem(snapshot, able, np.zeros(len(able)), _shares_before(before, places, able), rule.aware)
    isolated, isolated_speed = np.zeros(jobs), np.zeros(jobs)
    shares = Shares(np.zeros((0, len(cluster.kinds))))
    if len(able):
        isolated_speed[able] = problem.isolated_speed
        isolated[able] = columns.done[able] / problem.isolated_speed
        if before is not None:
            known = places >= 0
            isolated[known] = before.isolated[places[known]]
        problem = replace(problem, isolated=isolated[able])
        best = problem.all_on_fastest() if rule.fills and rule.aware else None
        shares = rule.shares(problem) if best is None or problem.scarce(best) else Shares(best)
        if shares.consolidated is None and not len(shares.pairs):
            shares = replace(shares, consolidated=problem.asked(shares.alone))
    if shares.trouble and before is not None:
        cells, trouble = (
            _surviving(before, places, snapshot),
            f"; the shares of t = {before.start:,.6g} s stay in force",
        )
    else:
        cells, trouble = _cells(snapshot, able, shares), ""
    notes = [""] * jobs if shares.notes else []
    for row, note in shares.notes.items():
        notes[able[row]] = note
    return GavelCarry(
        rows=columns.rows,
        capacity=cluster.capacity,
        speeds=columns.speeds,
        cells=cells,
        start=now,
        owed=np.zeros(len(cells))
        if before is None
        else carried_over(before, before.debt(now, rule.round), places, cells),
        received=np.zeros(len(cells)),
        end=end,
        at=now,
        ran=columns.run_seconds,
        done=columns.done,
        runs=np.full(jobs, NOBODY),
        isolated=isolated,
        isolated_speed=isolated_speed,
        trouble=f"; the last solve was {shares.trouble}{trouble}" if shares.trouble else "",
        notes=tuple(notes),
    )


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
