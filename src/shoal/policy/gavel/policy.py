"""Shares put into force and carried out round by round: what all of Gavel's policies have in common.

Shares are computed anew when a round begins after a job came or went, a node was lost or came back, or a speed changed.
Inside a round whoever runs keeps its GPUs; those that come free are given at once to somebody who waits, unless the
rule would rather leave them idle. What a job is owed outlives new shares, so frequent arrivals starve nobody.
"""

from dataclasses import replace

import numpy as np

from shoal.core.arrays import Flags
from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.base import round_end
from shoal.policy.gavel.carry import GavelCarry, Turn
from shoal.policy.gavel.consolidation import node_sizes
from shoal.policy.gavel.reasons import told
from shoal.policy.gavel.rounds import NOBODY, Cells, next_round
from shoal.policy.gavel.share_update import NOTHING, ShareRule, with_new_shares


def by_rounds(rule: ShareRule, snapshot: Snapshot) -> Decision:
    """A verdict for every live job, reviewed at the end of the round if that could change anything."""
    before = snapshot.carry if isinstance(snapshot.carry, GavelCarry) else None
    if before is not None and (len(before.capacity) != len(snapshot.cluster.kinds) or before.at > snapshot.now):
        before = None
    if before is not None:
        before = before.settled(snapshot)
    inside = before is not None and snapshot.now < before.end
    turn = _rest_of(rule, snapshot, before) if inside and before is not None else _fresh(rule, snapshot, before)
    if rule.fills or turn.memory.trouble:
        _fill(rule, snapshot, turn)
    runs = np.full(len(turn.memory.rows), NOBODY)
    known = turn.places >= 0
    runs[turn.places[known]] = turn.cell[known]
    memory = replace(turn.memory, runs=runs)
    return Decision(told(snapshot, turn), _review(snapshot, turn), memory)


def _review(snapshot: Snapshot, turn: Turn) -> float:
    """The end of the round; never, if every share is all or nothing and everyone sits where it should."""
    cells, columns = turn.memory.cells, snapshot.columns
    waiting = snapshot.possible & (turn.kind < 0)
    # Where a node has just come back, somebody with a share may wait for the next round to begin.
    owed = np.isin(turn.places, np.concatenate([cells.first, cells.second[cells.second >= 0]]))
    steady = np.array_equal(turn.kind, columns.kind) and turn.memory.current(snapshot) and not turn.memory.trouble
    settled = bool((cells.share >= 1.0 - NOTHING).all()) and not (waiting & owed).any()
    if steady and settled and (len(cells) or not waiting.any()):
        return float("inf")
    return turn.memory.end if snapshot.possible.any() else float("inf")


def _rest_of(rule: ShareRule, snapshot: Snapshot, memory: GavelCarry) -> Turn:
    """Inside a round: who runs goes on."""
    columns = snapshot.columns
    places = memory.places(snapshot)
    usable = columns.speeds[np.arange(len(columns)), columns.kind] > 0
    kept = (columns.held == columns.gpus) & usable
    kind = np.where(kept, columns.kind, NOBODY).astype(np.int8)
    cell = np.where(kept & (places >= 0), memory.runs[places] if len(memory.runs) else NOBODY, NOBODY)
    partner = np.full(len(columns), NOBODY, dtype=np.int32)
    for i in np.flatnonzero(kept & (columns.partner >= 0)).tolist() if snapshot.sharing else ():
        mate = snapshot.position_of(int(columns.partner[i]))
        partner[i] = mate if mate >= 0 and kept[mate] else NOBODY
    return Turn(memory, cell, kind, partner, kept, places, memory.debt(snapshot.now, rule.round))


def _fresh(rule: ShareRule, snapshot: Snapshot, before: GavelCarry | None) -> Turn:
    """A new round, with new shares where the old ones are no longer those of these jobs."""
    columns, now, jobs = snapshot.columns, snapshot.now, len(snapshot.columns)
    end = round_end(now, rule.round)
    if before is not None and before.current(snapshot):
        memory = replace(before, end=end)
    else:
        memory = with_new_shares(rule, snapshot, before, end)
    memory = memory.marked(now, rule.round)
    cells, debt = memory.cells, memory.debt(now, rule.round)
    capacity = np.array(snapshot.cluster.capacity)
    mate = np.where(cells.second >= 0, columns.rows[cells.second], NOBODY) if jobs else cells.second
    sits = (columns.kind[cells.first] == cells.kind) & (columns.partner[cells.first] == mate)
    nodes: tuple[tuple[int, ...], ...] = ()
    if cells.consolidated.any():
        nodes = node_sizes(snapshot.cluster)
        sits &= ~cells.consolidated | _on_one_node(snapshot, cells)
    span = (end - now) / rule.round
    lately, again = memory.lately(debt, now, rule.round), memory.again(now, rule.round, jobs)
    idle = not rule.fills
    cell = next_round(cells, debt, lately, span, capacity, jobs, sits=sits, idle=idle, nodes=nodes, again=again)
    runs = cell >= 0
    kind = np.where(runs, cells.kind[cell], NOBODY).astype(np.int8) if len(cells) else np.full(jobs, NOBODY, np.int8)
    partner = np.full(jobs, NOBODY, dtype=np.int32)
    shared = np.unique(cell[runs])
    shared = shared[cells.second[shared] >= 0]
    partner[cells.first[shared]], partner[cells.second[shared]] = cells.second[shared], cells.first[shared]
    return Turn(memory, cell, kind, partner, np.zeros(jobs, dtype=bool), np.arange(jobs), debt)


def _on_one_node(snapshot: Snapshot, cells: Cells) -> Flags:
    """By cell: whether its job sits on one node now."""
    one = np.zeros(len(snapshot.columns), dtype=bool)
    for i in np.unique(cells.first[cells.consolidated]).tolist():
        seats = snapshot.placement(i)
        one[i] = seats is not None and len(seats.seats) == 1
    return one[cells.first]


def _fill(rule: ShareRule, snapshot: Snapshot, turn: Turn) -> None:
    """GPUs left over go to who waits: who is owed most first, then in order of arrival, on the best kind with room."""
    columns = snapshot.columns
    waiting = np.flatnonzero(snapshot.possible & (turn.kind < 0))
    if not len(waiting):
        return
    once = (turn.kind >= 0) & ((turn.partner < 0) | (np.arange(len(columns)) < turn.partner))
    used = np.bincount(turn.kind[once], columns.gpus[once], len(snapshot.cluster.kinds))
    free = [c - int(u) for c, u in zip(snapshot.cluster.capacity, used.tolist(), strict=True)]
    most = max(free)
    waiting = waiting[columns.gpus[waiting] <= most]
    if most <= 0 or not len(waiting):
        return
    memory = turn.memory
    owed = np.append(memory.cells.totals(turn.debt, len(memory.rows)), 0.0)[turn.places[waiting]]
    for i in waiting[np.argsort(-owed, kind="stable")].tolist():
        gang, speeds, held = int(columns.gpus[i]), columns.speeds[i].tolist(), int(columns.kind[i])
        room = [k for k, gpus in enumerate(free) if gpus >= gang and speeds[k] > 0]
        if not room:
            continue
        k = held if held in room else max(room, key=lambda k: (speeds[k] if rule.aware else free[k], -k))
        free[k] -= gang
        turn.kind[i] = k
        turn.cell[i] = _own_cell(memory.cells, int(turn.places[i]), k)


def _own_cell(cells: Cells, place: int, kind: int) -> int:
    """The cell of a job alone on a kind, or ``NOBODY``."""
    found = np.flatnonzero((cells.first == place) & (cells.kind == kind) & (cells.second < 0))
    return int(found[0]) if len(found) else NOBODY
