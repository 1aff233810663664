"""The decision that all of Gavel's policies have in common: time shares carried out round by round.

Shares are computed anew when a round begins after a job arrived or completed, a node was lost or returned, or a speed
changed. Inside a round running jobs keep their GPUs; those that become free go at once to waiting jobs, unless the rule
would rather leave them idle. Debts are carried over to new shares, so frequent arrivals starve no job.
"""

from dataclasses import replace

import numpy as np

from shoal.core.arrays import Flags
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import round_end
from shoal.policy.gavel.carry import GavelCarry, RoundPlan, on_one_node
from shoal.policy.gavel.consolidation import node_sizes
from shoal.policy.gavel.reasons import round_verdicts
from shoal.policy.gavel.rounds import NONE, Cells, next_round
from shoal.policy.gavel.share_update import ShareRule, with_new_shares
from shoal.policy.gavel.tuning import TUNING


def by_rounds(rule: ShareRule, snapshot: Snapshot) -> Decision:
    """Return a verdict for every live job, reviewed at the end of the round if that could change anything.

    Every rule's ``decide`` returns this.
    """
    before = snapshot.carry if isinstance(snapshot.carry, GavelCarry) else None
    if before is not None and (len(before.capacity) != len(snapshot.cluster.kinds) or before.at > snapshot.now):
        before = None
    if before is not None:
        before = before.booked(snapshot)
    if before is not None and snapshot.now < before.end:
        plan = _rest_of_round(rule, snapshot, before)
    else:
        plan = _new_round(rule, snapshot, before)
    if rule.fills or plan.carry.trouble:
        _fill(rule, snapshot, plan)
    runs = np.full(len(plan.carry.rows), NONE)
    known = plan.positions >= 0
    runs[plan.positions[known]] = plan.cell[known]
    return Decision(round_verdicts(snapshot, plan), _review(snapshot, plan), replace(plan.carry, runs=runs))


def _review(snapshot: Snapshot, plan: RoundPlan) -> float:
    """The end of the round; infinity if every share is all or nothing and every job is where it should be."""
    carry, cells = plan.carry, plan.carry.cells
    if not snapshot.possible.any():
        return float("inf")
    if carry.trouble or (cells.share < 1.0 - TUNING.least_share).any():
        return carry.end
    waiting = snapshot.possible & (plan.kind < 0)
    # When a node has just returned, a job with a share may wait for the next round to begin.
    has_share = np.zeros(len(carry.rows) + 1, dtype=bool)  # the last: no position
    has_share[cells.first] = has_share[cells.second[cells.second >= 0]] = True
    settled = not (waiting & has_share[plan.positions]).any() and (len(cells) or not waiting.any())
    steady = settled and np.array_equal(plan.kind, snapshot.columns.kind) and carry.current(snapshot)
    return float("inf") if steady else carry.end


def _rest_of_round(rule: ShareRule, snapshot: Snapshot, carry: GavelCarry) -> RoundPlan:
    columns, positions = snapshot.columns, carry.positions(snapshot)
    usable = columns.speeds[np.arange(len(columns)), columns.kind] > 0
    kept = (columns.held == columns.gpus) & usable
    kind = np.where(kept, columns.kind, NONE).astype(np.int8)
    cell = np.where(kept & (positions >= 0), carry.runs[positions] if len(carry.runs) else NONE, NONE)
    partner = np.full(len(columns), NONE, dtype=np.int32)
    for i in np.flatnonzero(kept & (columns.partner >= 0)).tolist() if snapshot.sharing else ():
        other = snapshot.position_of(int(columns.partner[i]))
        partner[i] = other if other >= 0 and kept[other] else NONE
    return RoundPlan(carry, cell, kind, partner, kept, positions, carry.debt(snapshot.now, rule.round))


def _new_round(rule: ShareRule, snapshot: Snapshot, before: GavelCarry | None) -> RoundPlan:
    """A new round, with new shares unless those in force are still current."""
    columns, now, jobs = snapshot.columns, snapshot.now, len(snapshot.columns)
    end = round_end(now, rule.round)
    if before is not None and before.current(snapshot):
        carry = replace(before, end=end)
    else:
        carry = with_new_shares(rule, snapshot, before, end)
    carry = carry.marked(now, rule.round)
    cells, debt = carry.cells, carry.debt(now, rule.round)
    partner_row = np.where(cells.second >= 0, columns.rows[cells.second], NONE) if jobs else cells.second
    runs_now = (columns.kind[cells.first] == cells.kind) & (columns.partner[cells.first] == partner_row)
    nodes: tuple[tuple[int, ...], ...] = ()
    if cells.consolidated.any():
        nodes = node_sizes(snapshot.cluster)
        runs_now &= ~cells.consolidated | _on_one_node(snapshot, cells)
    cell = next_round(
        cells,
        debt,
        carry.recent_debt(debt, now, rule.round),
        (end - now) / rule.round,
        np.array(snapshot.cluster.capacity),
        jobs,
        runs_now=runs_now,
        idle=not rule.fills,
        nodes=nodes,
        window_ago=carry.window_ago(now, rule.round, jobs),
    )
    runs = cell >= 0
    kind = np.where(runs, cells.kind[cell], NONE).astype(np.int8) if len(cells) else np.full(jobs, NONE, np.int8)
    partner = np.full(jobs, NONE, dtype=np.int32)
    shared = np.unique(cell[runs])
    shared = shared[cells.second[shared] >= 0]
    partner[cells.first[shared]], partner[cells.second[shared]] = cells.second[shared], cells.first[shared]
    return RoundPlan(carry, cell, kind, partner, np.zeros(jobs, dtype=bool), np.arange(jobs), debt)


def _on_one_node(snapshot: Snapshot, cells: Cells) -> Flags:
    """By cell: whether its job is on one node now, for jobs with a cell on one node."""
    one = np.zeros(len(snapshot.columns), dtype=bool)
    jobs = np.unique(cells.first[cells.consolidated])
    one[jobs] = on_one_node(snapshot, jobs)
    return one[cells.first]


def _fill(rule: ShareRule, snapshot: Snapshot, plan: RoundPlan) -> None:
    """Give free GPUs to waiting jobs, by debt and then arrival, on the best kind with enough of them."""
    columns = snapshot.columns
    waiting = np.flatnonzero(snapshot.possible & (plan.kind < 0))
    if not len(waiting):
        return
    once = (plan.kind >= 0) & ((plan.partner < 0) | (np.arange(len(columns)) < plan.partner))
    used = np.bincount(plan.kind[once], columns.gpus[once], len(snapshot.cluster.kinds))
    free = [c - int(u) for c, u in zip(snapshot.cluster.capacity, used.tolist(), strict=True)]
    most = max(free)
    waiting = waiting[columns.gpus[waiting] <= most]
    if most <= 0 or not len(waiting):
        return
    carry = plan.carry
    owed = np.append(carry.cells.totals(plan.debt, len(carry.rows)), 0.0)[plan.positions[waiting]]
    filled: list[int] = []
    for i in waiting[np.argsort(-owed, kind="stable")].tolist():
        gang, speeds, held = int(columns.gpus[i]), columns.speeds[i].tolist(), int(columns.kind[i])
        fits = [k for k, gpus in enumerate(free) if gpus >= gang and speeds[k] > 0]
        if not fits:
            continue
        k = held if held in fits else max(fits, key=lambda k: (speeds[k] if rule.aware else free[k], -k))
        free[k] -= gang
        plan.kind[i] = k
        filled.append(i)
        if not any(free):
            break
    jobs = np.array(filled, dtype=np.intp)
    plan.cell[jobs] = carry.cells.alone_anyhow(plan.positions[jobs], plan.kind[jobs].astype(np.intp))
