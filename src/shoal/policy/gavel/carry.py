"""Gavel's carry: the shares in force, the time received of them, and the time still owed."""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.carried_rows import match_rows
from shoal.policy.gavel.rounds import NONE, Cells
from shoal.policy.gavel.tuning import TUNING


@dataclass(frozen=True, slots=True, eq=False)
class GavelCarry:
    """By admission number (``rows``): the shares in force as cells, and how much of them has been received.

    ``owed`` was due to each cell at ``start``, in rounds; ``received`` is its time since then, in seconds, booked up to
    ``at``. ``ran`` and ``done`` are each job's seconds run and progress at that time, and ``runs`` the cell it runs in.
    ``isolated`` adds up progress over the isolated speed of its time. ``marks`` are the times at which each of the last
    ``TUNING.window`` rounds began, the oldest first, with the debt of every cell at that time.
    """

    rows: Indices
    capacity: tuple[int, ...]
    speeds: Floats
    cells: Cells
    start: Seconds
    owed: Floats
    received: Floats
    end: Seconds
    at: Seconds
    ran: Floats
    done: Floats
    runs: Indices
    isolated: Floats
    isolated_speed: Floats
    marks: tuple[tuple[Seconds, Floats], ...] = ()
    trouble: str = ""
    notes: tuple[str, ...] = ()

    def current(self, snapshot: Snapshot) -> bool:
        """Whether jobs, speeds and capacity are those that the shares were computed for."""
        columns = snapshot.columns
        return (
            self.capacity == snapshot.cluster.capacity
            and np.array_equal(self.rows, columns.rows)
            and np.array_equal(self.speeds, columns.speeds)
            and self._pairs_fit(snapshot)
        )

    def _pairs_fit(self, snapshot: Snapshot) -> bool:
        """Whether no pair that has a share has been measured not to fit on one GPU."""
        jobs, cells = snapshot.jobs, self.cells
        return all(
            min(snapshot.perf.colocated(jobs.at(int(cells.first[c])), jobs.at(int(cells.second[c])))) > 0.0
            for c in np.flatnonzero(cells.second >= 0)
        )

    def positions(self, snapshot: Snapshot) -> Indices:
        """The position of each live job in ``rows``; ``NONE`` for a new one."""
        at, known = match_rows(self.rows, snapshot.columns.rows)
        return np.where(known, at, NONE)

    def booked(self, snapshot: Snapshot) -> "GavelCarry":
        """The carry with all time received until now booked; completed jobs get nothing more."""
        columns, now = snapshot.columns, snapshot.now
        if now == self.at:
            return self
        positions = self.positions(snapshot)
        known = positions >= 0
        mine = positions[known]
        seconds = columns.run_seconds[known] - self.ran[mine]
        cell = self._cells_on_kind(self.runs[mine], mine, columns.kind[known])
        if self.cells.consolidated.any():
            cell = self._cells_on_nodes(snapshot, np.flatnonzero(known), cell)
        received = self.received.copy()
        # A pair received the longer of its jobs' times: one of the two may be gone.
        ran = cell >= 0
        np.maximum.at(received, cell[ran], self.received[cell[ran]] + seconds[ran])
        steps = columns.done[known] - self.done[mine]
        speed = self.isolated_speed[mine]
        alone = np.where(speed > 0, steps / np.where(speed > 0, speed, 1.0), 0.0)
        isolated, run_now, done_now = self.isolated.copy(), self.ran.copy(), self.done.copy()
        isolated[mine] = np.maximum(self.isolated[mine] + alone, 0.0)
        run_now[mine], done_now[mine] = columns.run_seconds[known], columns.done[known]
        return replace(self, at=now, received=received, ran=run_now, done=done_now, isolated=isolated)

    def _cells_on_kind(self, given: Indices, jobs: Indices, kind: Int32s) -> Indices:
        """The cells that jobs ran in, corrected where placement kept a job on another kind."""
        cells = self.cells
        wrong = np.flatnonzero((given >= 0) & (kind >= 0) & (cells.kind[given] != kind)) if len(cells) else given[:0]
        if not len(wrong):
            return given
        actual = given.copy()
        actual[wrong] = cells.alone_anyhow(jobs[wrong], kind[wrong].astype(np.intp))
        return actual

    def _cells_on_nodes(self, snapshot: Snapshot, live: Indices, given: Indices) -> Indices:
        """The cells that jobs ran in, corrected where a job was on one node instead of several, or vice versa."""
        cells, actual = self.cells, given.copy()
        near = np.zeros(len(self.rows), dtype=bool)
        near[cells.first[cells.consolidated]] = True
        held = snapshot.columns.seats[live] >= 0
        at = np.flatnonzero((given >= 0) & near[cells.first[given]] & held)
        ran = given[at]
        other = cells.alone(cells.first[ran], cells.kind[ran], on_one_node(snapshot, live[at]))
        actual[at] = np.where(other >= 0, other, ran)
        return actual

    def debt(self, now: Seconds, seconds: Seconds) -> Floats:
        """Return the time owed to each cell, in rounds of ``seconds``."""
        debt: Floats = self.owed + (self.cells.share * (now - self.start) - self.received) / seconds
        return debt

    def recent_debt(self, debt: Floats, now: Seconds, seconds: Seconds) -> Floats:
        """Return the part of the debt that arose within the window that ends with the coming round."""
        return debt - self.marks[_first_mark(self.marks, now, seconds)][1] if self.marks else debt

    def marked(self, now: Seconds, seconds: Seconds) -> "GavelCarry":
        """Return the carry at the start of a round, with one mark older than the window that ends with this round."""
        debt = self.debt(now, seconds) if self.marks else np.zeros(len(self.cells))
        marks = (*self.marks, (now, debt))
        return replace(self, marks=marks[max(_first_mark(marks, now, seconds) - 1, 0) :])

    def window_ago(self, now: Seconds, seconds: Seconds, jobs: int) -> Indices | None:
        """Return by job the cell it ran in one window ago; None unless that was a whole round of these shares."""
        if not _first_mark(self.marks, now, seconds):
            return None
        (begin, before), (end, after) = self.marks[:2]
        received = self.cells.share * (end - begin) / seconds - (after - before)
        ran = np.flatnonzero(received > 0.5)
        whole = abs(end - begin - seconds) < 1e-6 * seconds and bool((np.abs(received[ran] - 1.0) < 1e-6).all())
        if not whole or abs(now - begin - TUNING.window * seconds) > 0.5 * seconds:
            return None
        chosen = np.full(jobs, NONE)
        chosen[self.cells.first[ran]] = ran
        shared = ran[self.cells.second[ran] >= 0]
        chosen[self.cells.second[shared]] = shared
        return chosen


def on_one_node(snapshot: Snapshot, positions: Indices) -> Flags:
    """Whether all GPUs that each of these jobs holds are on one node; False for a job without GPUs."""
    table, seats = snapshot.register.placements, snapshot.columns.seats[positions].tolist()
    return np.array([at >= 0 and len(table[at].seats) == 1 for at in seats], dtype=bool)


def _first_mark(marks: tuple[tuple[Seconds, Floats], ...], now: Seconds, seconds: Seconds) -> int:
    """Return the index of the mark at the beginning of the window that ends with the coming round."""
    # Half a round of tolerance: the start of a round is a sum of rounded numbers.
    begin = now - (TUNING.window - 1.5) * seconds
    return max(next((i for i, (at, _) in enumerate(marks) if at > begin), len(marks)) - 1, 0)


@dataclass(slots=True)
class RoundPlan:
    """The jobs that run in a round, or in the rest of one.

    By live job: its cell, its kind (−1: it waits), the job it shares GPUs with, whether it only keeps what it holds,
    and its position in the carry; by cell: its debt in rounds.
    """

    carry: GavelCarry
    cell: Indices
    kind: Int8s
    partner: Int32s
    kept: Flags
    positions: Indices
    debt: Floats

    @property
    def on_one_node(self) -> Flags:
        """By live job: whether it begins a round that belongs on one node."""
        marked = np.append(self.carry.cells.consolidated, False)  # index −1: no cell
        near: Flags = marked[self.cell] & ~self.kept
        return near


def carried_over(before: GavelCarry, debt: Floats, positions: Indices, cells: Cells) -> Floats:
    """Return the debt with which new cells begin.

    A new cell begins with the old debt of the same job (or pair) on the same kind, on one node or several. The debt of
    a job's other old cells is divided among its new cells by their shares. At most one round received in advance is
    kept.
    """
    jobs = len(positions)
    total = before.cells.totals(debt, len(before.rows))
    total = np.where(positions >= 0, total[positions], 0.0) if len(total) else np.zeros(jobs)
    width = 1 + int(max(before.cells.kind.max(initial=0), cells.kind.max(initial=0)))
    old_keys = _keys(before.cells, np.arange(len(before.rows)), width, len(before.rows))
    new_keys = _keys(cells, positions, width, len(before.rows))
    kept = np.zeros(len(cells))
    if len(old_keys):
        order = np.argsort(old_keys)
        at, known = match_rows(old_keys[order], new_keys)
        kept = np.where(known, debt[order[at]], 0.0)
    rest, share = total - cells.totals(kept, jobs), cells.totals(cells.share, jobs)
    owed = kept + np.where(cells.second < 0, rest[cells.first] * cells.share / share[cells.first], 0.0)
    owed += np.where(positions[cells.first] < 0, TUNING.welcome * cells.share / share[cells.first], 0.0)
    carried: Floats = np.clip(owed, -1.0, cells.share * TUNING.most_behind)
    return carried


def _keys(cells: Cells, positions: Indices, width: int, jobs: int) -> Indices:
    """A number for each job or pair on a kind, by the jobs' old positions; −1 where a job is new."""
    first = positions[cells.first]
    second = np.where(cells.second >= 0, positions[np.maximum(cells.second, 0)], jobs)
    keys: Indices = ((first * (jobs + 1) + second) * width + cells.kind) * 2 + cells.consolidated
    keys[(first < 0) | (second < 0)] = -1
    return keys
