"""What Gavel remembers between decisions: the shares in force, what has been received of them, and what is owed."""

from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Flags, Floats, Indices, Int8s, Int32s
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.policy.gavel.rounds import NOBODY, WINDOW, Cells
from shoal.policy.gavel.tuning import TUNING

_MOST_BEHIND = TUNING.most_behind
"""Rounds without a turn that are made up for, at most, when shares change; what is older is forgiven."""

_WELCOME = TUNING.welcome
"""Rounds that a new job is owed from the start: among equals it goes before those that sit already."""


@dataclass(frozen=True, slots=True, eq=False)
class GavelCarry:
    """By admission number (``rows``): shares as cells, and how far they are carried out.

    ``owed`` was due to each cell at ``start``, in rounds; ``received`` is what it got since, in seconds. ``at`` is when
    that was last booked, ``ran`` and ``done`` each job's seconds run and progress by then, and ``runs`` the cell it was
    given. ``isolated`` accumulates progress over the isolated speed as it was then. ``marks`` are what was owed when
    each of the last ``WINDOW`` rounds began, the oldest first; a window that goes back to ``start`` has all of it.
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
        """Whether the shares are still those of these jobs, at these speeds, on this cluster."""
        columns = snapshot.columns
        return (
            self.capacity == snapshot.cluster.capacity
            and np.array_equal(self.rows, columns.rows)
            and np.array_equal(self.speeds, columns.speeds)
            and self._get_on(snapshot)
        )

    def _get_on(self, snapshot: Snapshot) -> bool:
        """Whether no two that are to share GPUs were meanwhile seen not to fit together."""
        jobs, cells = snapshot.jobs, self.cells
        return all(
            min(snapshot.perf.colocated(jobs.at(int(cells.first[c])), jobs.at(int(cells.second[c])))) > 0.0
            for c in np.flatnonzero(cells.second >= 0)
        )

    def places(self, snapshot: Snapshot) -> Indices:
        """Where each live job stood in ``rows``; ``NOBODY`` if it is new."""
        if not len(self.rows):
            return np.full(len(snapshot.columns), NOBODY)
        if np.array_equal(self.rows, snapshot.columns.rows):
            return np.arange(len(self.rows))
        at = np.minimum(np.searchsorted(self.rows, snapshot.columns.rows), len(self.rows) - 1)
        return np.where(self.rows[at] == snapshot.columns.rows, at, NOBODY)

    def settled(self, snapshot: Snapshot) -> "GavelCarry":
        """The same with everything received until now booked; jobs that are gone get nothing more."""
        columns, now = snapshot.columns, snapshot.now
        if now == self.at:
            return self
        places = self.places(snapshot)
        known = places >= 0
        mine = places[known]
        seconds = columns.run_seconds[known] - self.ran[mine]
        cell = self._ran_in(self.runs[mine], mine, columns.kind[known])
        if self.cells.consolidated.any():
            cell = self._where(snapshot, np.flatnonzero(known), cell)
        received = self.received.copy()
        # A pair's time is that of whichever of the two ran longer: the other may be gone.
        ran = cell >= 0
        np.maximum.at(received, cell[ran], self.received[cell[ran]] + seconds[ran])
        steps = columns.done[known] - self.done[mine]
        speed = self.isolated_speed[mine]
        alone = np.where(speed > 0, steps / np.where(speed > 0, speed, 1.0), 0.0)
        isolated, run_now, done_now = self.isolated.copy(), self.ran.copy(), self.done.copy()
        isolated[mine] = np.maximum(self.isolated[mine] + alone, 0.0)
        run_now[mine], done_now[mine] = columns.run_seconds[known], columns.done[known]
        return replace(self, at=now, received=received, ran=run_now, done=done_now, isolated=isolated)

    def _ran_in(self, given: Indices, jobs: Indices, kind: Int32s) -> Indices:
        """The cells in which jobs really ran: not those they were given, where placement kept them on another kind."""
        cells = self.cells
        wrong = np.flatnonzero((given >= 0) & (kind >= 0) & (cells.kind[given] != kind)) if len(cells) else given[:0]
        really = given.copy() if len(wrong) else given
        for i in wrong.tolist():
            own = np.flatnonzero((cells.first == jobs[i]) & (cells.kind == kind[i]) & (cells.second < 0))
            really[i] = own[0] if len(own) else NOBODY
        return really

    def _where(self, snapshot: Snapshot, live: Indices, given: Indices) -> Indices:
        """The cells in which jobs ran by how they sat, on one node or several: it may not be what they were given."""
        cells, really = self.cells, given.copy()
        near = np.zeros(len(self.rows), dtype=bool)
        near[cells.first[cells.consolidated]] = True
        for i in np.flatnonzero((given >= 0) & near[cells.first[given]]).tolist():
            cell, seats = int(given[i]), snapshot.placement(int(live[i]))
            if seats is not None:
                same = (cells.first == cells.first[cell]) & (cells.kind == cells.kind[cell]) & (cells.second < 0)
                other = np.flatnonzero(same & (cells.consolidated == (len(seats.seats) == 1)))
                really[i] = other[0] if len(other) else cell
        return really

    def debt(self, now: Seconds, seconds: Seconds) -> Floats:
        """What each cell is owed now, in rounds of so many seconds."""
        debt: Floats = self.owed + (self.cells.share * (now - self.start) - self.received) / seconds
        return debt

    def lately(self, debt: Floats, now: Seconds, seconds: Seconds) -> Floats:
        """What of the debt has come up since the round began that is the first of the window this one completes."""
        return debt - self.marks[self._first(now, seconds)][1] if self.marks else debt

    def _first(self, now: Seconds, seconds: Seconds) -> int:
        # Half a round of grace: a beginning is a sum of rounds, and rounded.
        begin = now - (WINDOW - 1.5) * seconds
        return max(next((i for i, (at, _) in enumerate(self.marks) if at > begin), len(self.marks)) - 1, 0)

    def marked(self, now: Seconds, seconds: Seconds) -> "GavelCarry":
        """The same at the beginning of a round, with one mark older than the window that this round will complete."""
        debt = self.debt(now, seconds) if self.marks else np.zeros(len(self.cells))
        marked = replace(self, marks=(*self.marks, (now, debt)))
        return replace(self, marks=marked.marks[max(marked._first(now, seconds) - 1, 0) :])

    def again(self, now: Seconds, seconds: Seconds, jobs: int) -> Indices | None:
        """By job the cell it ran in ``WINDOW`` whole rounds ago, if that was a whole round of these shares."""
        if not self._first(now, seconds):
            return None
        (begin, before), (end, after) = self.marks[:2]
        received = self.cells.share * (end - begin) / seconds - (after - before)
        ran = np.flatnonzero(received > 0.5)
        whole = abs(end - begin - seconds) < 1e-6 * seconds and bool((np.abs(received[ran] - 1.0) < 1e-6).all())
        if not whole or abs(now - begin - WINDOW * seconds) > 0.5 * seconds:
            return None
        chosen = np.full(jobs, NOBODY)
        chosen[self.cells.first[ran]] = ran
        shared = ran[self.cells.second[ran] >= 0]
        chosen[self.cells.second[shared]] = shared
        return chosen


@dataclass(slots=True)
class Turn:
    """One round, or the rest of one, in the making.

    By live job: the cell it runs in, the kind (−1: it waits), whom it shares with, whether it only keeps what it has,
    and its place in the memory; by cell, what is owed.
    """

    memory: GavelCarry
    cell: Indices
    kind: Int8s
    partner: Int32s
    kept: Flags
    places: Indices
    debt: Floats

    @property
    def near(self) -> Flags:
        """Who begins a round in which it is to be on one node."""
        marked = np.append(self.memory.cells.consolidated, False)  # no cell is the last one
        near: Flags = marked[self.cell] & ~self.kept
        return near


def carried_over(before: GavelCarry, debt: Floats, places: Indices, cells: Cells) -> Floats:
    """What the new cells are owed: the debts of the same job on the same kind, on one node or several, and what cells
    that are no more were owed, shared out over the job's new cells by their shares. What ran ahead is forgotten but for
    a round."""
    jobs = len(places)
    total = before.cells.totals(debt, len(before.rows))
    total = np.where(places >= 0, total[places], 0.0) if len(total) else np.zeros(jobs)
    width = 1 + int(max(before.cells.kind.max(initial=0), cells.kind.max(initial=0)))
    old_keys = _keys(before.cells, np.arange(len(before.rows)), width, len(before.rows))
    new_keys = _keys(cells, places, width, len(before.rows))
    kept = np.zeros(len(cells))
    if len(old_keys) and len(cells):
        order = np.argsort(old_keys)
        at = order[np.minimum(np.searchsorted(old_keys[order], new_keys), len(order) - 1)]
        kept = np.where(old_keys[at] == new_keys, debt[at], 0.0)
    rest, share = total - cells.totals(kept, jobs), cells.totals(cells.share, jobs)
    owed = kept + np.where(cells.second < 0, rest[cells.first] * cells.share / share[cells.first], 0.0)
    owed += np.where(places[cells.first] < 0, _WELCOME * cells.share / share[cells.first], 0.0)
    carried: Floats = np.clip(owed, -1.0, cells.share * _MOST_BEHIND)
    return carried


def _keys(cells: Cells, places: Indices, width: int, jobs: int) -> Indices:
    """A number for each combination on a kind, by the jobs' old places; −1 where a job is new."""
    first = places[cells.first]
    second = np.where(cells.second >= 0, places[np.maximum(cells.second, 0)], jobs)
    keys: Indices = ((first * (jobs + 1) + second) * width + cells.kind) * 2 + cells.consolidated
    keys[(first < 0) | (second < 0)] = -1
    return keys
