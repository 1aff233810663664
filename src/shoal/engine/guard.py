"""Judge within a time limit, and find the jobs that make a policy fail: one job must not stop all decisions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from shoal.core.arrays import Flags, Indices
from shoal.core.events import Event, JobSetAside, PolicyOverran
from shoal.core.interfaces import MovePlanner, Placer, Policy
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds
from shoal.engine.loop import Judgement, judge, keep

_T = TypeVar("_T")
_Jobs: TypeAlias = tuple[int, ...]
"""Positions in a snapshot, ascending."""

DECISION_SECONDS = 10.0
"""CPU seconds after which a decision is interrupted, unless decisions without a culprit have taken longer before."""

FIRST_RETRY: Seconds = 3600.0
"""Seconds until a job that was set aside is tried again; doubled each time, up to ``LAST_RETRY``."""

LAST_RETRY: Seconds = 24 * 3600.0
SUSPECT_RETRY: Seconds = 60.0
"""Seconds until jobs are tried again that are set aside only because the search among them was cut short."""

_LONGEST = 64 * DECISION_SECONDS
_LEAST_PROBE = 1.0
_MOST_PROBES = 100
"""Decisions on parts of the queue that one search may take."""

_PROBE_SECONDS = 6 * DECISION_SECONDS
"""CPU seconds that one search may take."""


class TooSlow(BaseException):
    """Raised to interrupt a policy; not an ``Exception``, since a policy may catch every ``Exception``."""


class TimeLimit(Protocol):
    """Interrupts a call that takes too long."""

    def run(self, call: Callable[[], _T], seconds: float) -> tuple[_T, float]:
        """Return the call's result and the CPU seconds it took; raise ``TooSlow`` after this many."""
        ...


@dataclass(slots=True)
class Guard:
    """Judges for a live cluster; ``judge`` is called in place of ``loop.judge``.

    If the policy raises or overruns, it is asked again about parts of the queue, in halves, until the jobs are found
    without which it decides. They are returned as ``JobSetAside`` events. If there are none, or if they are most of the
    jobs that ran or that the policy could decide on before, the policy is at fault: every job keeps its placement.
    """

    limit: TimeLimit
    _decided: Indices = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    """Admission numbers of the jobs of the last decision that succeeded."""
    _usual: float = 0.0
    """CPU seconds of the last decision that succeeded."""
    _seconds: float = DECISION_SECONDS

    def judge(
        self, snapshot: Snapshot, policy: Policy, placer: Placer, move_planner: MovePlanner
    ) -> Judgement | tuple[Event, ...]:
        """Return the judgement, or events to record and fold before it is called again at the same time."""

        def whole() -> Judgement:
            return judge(snapshot, policy, placer, move_planner)

        if snapshot.overran is not None:
            return whole()
        try:
            judgement, self._usual = self.limit.run(whole, self._seconds)
        except (Exception, TooSlow) as error:
            return self._after(error, snapshot, policy, placer, move_planner)
        self._decided, self._seconds = snapshot.columns.rows, max(DECISION_SECONDS, 4 * self._usual)
        return judgement

    def _after(
        self, error: BaseException, snapshot: Snapshot, policy: Policy, placer: Placer, move_planner: MovePlanner
    ) -> Judgement | tuple[Event, ...]:
        """Set aside the jobs at fault; if that was done or is not possible, keep every placement."""
        slow = isinstance(error, TooSlow)
        fault = f"the policy took more than {self._seconds:,.0f} CPU seconds" if slow else str(error)
        searched = any(event.at == snapshot.now for event in snapshot.set_aside.values())
        if not searched:
            probe = max(_LEAST_PROBE, min(4 * self._usual, self._seconds))
            search = _Search(self.limit, snapshot, policy, placer, move_planner, probe)
            culprits, suspects = search.run(self._known(snapshot))
            if culprits or suspects:
                return (
                    *(_set_aside(snapshot, i, fault) for i in culprits),
                    *(_set_aside(snapshot, i, fault, SUSPECT_RETRY) for i in suspects),
                )
        if isinstance(error, Exception):
            return keep(snapshot, error, placer, move_planner)
        self._seconds = min(2 * self._seconds, _LONGEST)
        return (PolicyOverran(snapshot.now, fault),)

    def _known(self, snapshot: Snapshot) -> _Jobs:
        """Return the jobs that run or that the policy has decided on before; a job at fault is likelier a new one."""
        columns = snapshot.columns
        return _positions(np.isin(columns.rows, self._decided) | (columns.held > 0))


def _positions(flags: Flags) -> _Jobs:
    return tuple(np.flatnonzero(flags).tolist())


def _set_aside(snapshot: Snapshot, i: int, fault: str, wait: Seconds = FIRST_RETRY) -> JobSetAside:
    number = int(snapshot.columns.rows[i])
    before = snapshot.set_aside.get(number)
    if before is not None and wait == FIRST_RETRY:
        wait = min(max(wait, 2 * (before.retry_at - before.at)), LAST_RETRY)
    return JobSetAside(snapshot.now, number, fault, snapshot.now + wait)


@dataclass(slots=True)
class _Search:
    """A search for the jobs without which a policy can decide, each probe within ``seconds`` of CPU time."""

    limit: TimeLimit
    snapshot: Snapshot
    policy: Policy
    placer: Placer
    move_planner: MovePlanner
    seconds: float
    probes: int = 0
    used: float = 0.0
    suspects: list[int] = field(default_factory=list)

    def run(self, known: _Jobs) -> tuple[list[int], list[int]]:
        """Return the jobs at fault, and suspects that were not examined further; both empty if the policy is at fault.

        New jobs are examined only beside known ones with which the policy can decide.
        """
        aside = set(self.snapshot.kept_from_policy.tolist())
        known = tuple(i for i in known if i not in aside)
        new = tuple(i for i in range(len(self.snapshot.columns)) if i not in aside and i not in set(known))
        if not self._decides(()):
            return [], []
        culprits = self._culprits((), known)
        if 2 * (len(culprits) + len(self.suspects)) > len(known) and len(known) > 1:
            return [], []
        culprits += self._culprits(tuple(sorted({*known} - {*culprits, *self.suspects})), new)
        return culprits, self.suspects

    def _culprits(self, base: _Jobs, candidates: _Jobs) -> list[int]:
        """Return the jobs among the candidates without which the policy decides on ``base`` and the others."""
        if not candidates or self._decides((*base, *candidates)):
            return []
        if len(candidates) == 1:
            return [*candidates]
        if self.probes >= _MOST_PROBES or self.used >= _PROBE_SECONDS:
            self.suspects += candidates
            return []
        half = len(candidates) // 2
        found = self._culprits(base, candidates[:half])
        left = {*base, *candidates[:half]} - {*found, *self.suspects}
        return found + self._culprits(tuple(sorted(left)), candidates[half:])

    def _decides(self, jobs: Iterable[int]) -> bool:
        """Return whether the policy decides, in time, on a queue of only these jobs."""
        self.probes += 1
        part = self.snapshot.without(np.setdiff1d(np.arange(len(self.snapshot.columns)), list(jobs)))
        try:
            _, used = self.limit.run(lambda: judge(part, self.policy, self.placer, self.move_planner), self.seconds)
        except Exception:
            return False
        except TooSlow:
            self.used += self.seconds
            return False
        self.used += used
        return True
