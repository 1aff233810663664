"""Work that a stop would lose, protected from every policy, between policy and quotas.

A running job that may not be stopped (``Snapshot.unstoppable``) keeps its seats. Jobs that the policy would run on
those GPUs and that do not fit beside it wait, and the policy is asked once more how to share the other GPUs among the
other jobs. Quotas, which come after, may still take any job's GPUs back.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType

import numpy as np

from shoal.core.arrays import Flags
from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.interfaces import Policy
from shoal.core.reasons import HELD_UNSAVED, KEPT_BY_OWNER, KEPT_FREE, KEPT_UNSAVED, Reason
from shoal.core.snapshot import NEVER_STOPPED, Snapshot
from shoal.core.topology import Topology
from shoal.core.units import Seconds
from shoal.engine import policy_answer
from shoal.engine.suspension import to_suspend


def ask(
    policy: Policy, snapshot: Snapshot, hidden: Mapping[int, Verdict] = MappingProxyType({})
) -> tuple[Decision, Verdicts]:
    """Return the policy's decision and verdicts, as ``policy_answer.ask`` does, with unsaved work protected."""
    decision, wished = policy_answer.ask(policy, snapshot, hidden)
    kept = _Kept.of(snapshot, hidden, wished) if snapshot.guarded else None
    if kept is None or not kept.jobs:
        return decision, wished
    disturbed = kept.disturbed(wished)
    if not disturbed:
        return decision, kept.seated(wished, ())
    wishes = _Wishes(snapshot, wished, kept, disturbed)
    if wishes.all_fit:
        verdicts = kept.seated(wished, disturbed)
        return Decision(verdicts, decision.review_at, decision.carry), verdicts
    waiting = wishes.waiting(hidden)
    own = {i: wished.at(i) for i in kept.jobs}  # for their reasons
    rest = replace(snapshot, cluster=kept.cluster_without)
    again, shared = policy_answer.ask(policy, rest, {**hidden, **own, **waiting})
    verdicts = kept.seated(shared, kept.jobs, disturbed)
    return Decision(verdicts, min(decision.review_at, again.review_at), again.carry), verdicts


@dataclass(frozen=True)
class _Kept:
    """The jobs that keep their GPUs, by position: those that may not be stopped, and those on the same GPUs.

    Only this class decides whether a job keeps GPUs that a policy wants.
    """

    snapshot: Snapshot
    jobs: tuple[int, ...]
    partner: Mapping[int, int]
    """By job that shares its GPUs, the position of the other."""

    @classmethod
    def of(cls, snapshot: Snapshot, hidden: Mapping[int, Verdict], wished: Verdicts) -> "_Kept":
        """Return the jobs of a snapshot that keep their GPUs; not ``hidden`` ones, which quotas decide on.

        A job to which the policy gives no GPUs and that can be suspended is left out, since suspension loses nothing,
        unless its owner declared that it keeps its GPUs.
        """
        flags, columns = snapshot.unstoppable.copy(), snapshot.columns
        flags[list(hidden)] = False
        leaving = np.flatnonzero(flags & (wished.gpus == 0) & (columns.preemptible != NEVER_STOPPED)).tolist()
        flags[list(to_suspend(snapshot, leaving))] = False
        partner: dict[int, int] = {}
        for i in np.flatnonzero(flags & (columns.partner >= 0)).tolist() if snapshot.sharing else ():
            other = snapshot.position_of(int(columns.partner[i]))
            if other >= 0 and other not in hidden:
                partner[i], partner[other], flags[other] = other, i, True
        return cls(snapshot, tuple(np.flatnonzero(flags).tolist()), partner)

    @cached_property
    def by_kind(self) -> list[int]:
        """GPUs that they hold, by kind; those that two jobs share count once."""
        held = [0] * len(self.snapshot.cluster.kinds)
        for i in self._holders():
            held[int(self.snapshot.columns.kind[i])] += int(self.snapshot.columns.held[i])
        return held

    @cached_property
    def cluster_without(self) -> Topology:
        """The cluster without the GPUs that they hold."""
        cluster = self.snapshot.cluster
        withheld = dict(cluster.withheld)
        for i in self._holders():
            seats = self.snapshot.placement(i)
            for node, gpus in () if seats is None else seats.seats:
                withheld[node] = withheld.get(node, 0) + gpus
        return cluster.keeping(cluster.down, tuple(sorted(withheld.items())))

    def _holders(self) -> Iterator[int]:
        return (i for i in self.jobs if not 0 <= self.partner.get(i, -1) < i)

    def disturbed(self, wished: Verdicts) -> list[int]:
        """Return the jobs that the policy does not leave on their seats."""
        columns, jobs = self.snapshot.columns, np.array(self.jobs)
        if self.partner or wished.placements or wished.consolidated is not None or wished.partners is not None:
            return [i for i in self.jobs if not self.stays(i, wished)]
        moved = wished.gpus[jobs] != columns.held[jobs]
        if wished.kinds is not None:
            moved |= (wished.kinds[jobs] >= 0) & (wished.kinds[jobs] != columns.kind[jobs])
        disturbed: list[int] = jobs[moved].tolist()
        return disturbed

    def stays(self, i: int, wished: Verdicts) -> bool:
        """Return whether the policy leaves a job on its seats; another may join it there."""
        columns, seats = self.snapshot.columns, self.snapshot.placement(i)
        if wished.gpus[i] != columns.held[i] or wished.placements.get(i, seats) != seats:
            return False
        if wished.kinds is not None and wished.kinds[i] not in (-1, columns.kind[i]):
            return False
        if wished.consolidated is not None and wished.consolidated[i] and seats is not None and len(seats.seats) > 1:
            return False
        partner = -1 if wished.partners is None else int(wished.partners[i])
        joined = i not in self.partner and partner >= 0 and not columns.held[partner]
        return joined or partner == self.partner.get(i, -1)

    def seated(self, verdicts: Verdicts, jobs: Collection[int], disturbed: Collection[int] | None = None) -> Verdicts:
        """Return the verdicts with these ``jobs`` on the seats they hold; the ``disturbed`` ones get the reason why.

        A job that was to share GPUs with one of them waits. Where the placer may clear a node, it must not move them.
        """
        columns = self.snapshot.columns
        changes: dict[int, Verdict] = {i: self._grant(i) for i in (jobs if disturbed is None else disturbed)}
        partners, jobs = verdicts.partners, list(jobs)
        apart = [] if partners is None else np.flatnonzero(np.isin(partners, jobs)).tolist()
        apart = [i for i in apart if i not in self.partner and i not in jobs]
        if apart:
            changes |= {i: Refusal(self.held_reason(int(columns.min_gpus[i]), self.loss(self.jobs))) for i in apart}
        changed = verdicts.overruled(changes)
        if jobs:
            kinds = verdicts.kinds
            changed.kinds = np.full(len(columns), -1, dtype=np.int8) if kinds is None else kinds.copy()
            changed.kinds[jobs] = columns.kind[jobs]
        if jobs and (partners is not None or self.partner):
            changed.partners = np.full(len(columns), -1, dtype=np.int32) if partners is None else partners.copy()
            changed.partners[[*jobs, *apart]] = [*(self.partner.get(i, -1) for i in jobs), *(-1 for _ in apart)]
        changed.placements = {i: seats for i, seats in verdicts.placements.items() if i not in jobs}
        if verdicts.consolidated is not None:
            changed.consolidated = verdicts.consolidated.copy()
            changed.consolidated[jobs] = False
            changed.placements |= {i: seats for i in self.jobs if (seats := self.snapshot.placement(i)) is not None}
        return changed

    def _grant(self, i: int) -> Grant:
        """Return the grant of the seats that a job holds."""
        snapshot, columns = self.snapshot, self.snapshot.columns
        held, owners = int(columns.held[i]), columns.preemptible[i] == NEVER_STOPPED
        reason = Reason(KEPT_BY_OWNER, (held,)) if owners else Reason(KEPT_UNSAVED, (held, float(columns.unsaved[i])))
        partner = self.partner.get(i)
        shared = None if partner is None else snapshot.ids[partner]
        kind = snapshot.cluster.kinds[int(columns.kind[i])]
        return Grant(held, kind=kind, shared_with=shared, placement=snapshot.placement(i), reason=reason)

    def loss(self, jobs: Collection[int]) -> tuple[int, int, Seconds]:
        """Return the number of these jobs, the GPUs they hold, and the seconds of run that stopping them would lose."""
        columns, at = self.snapshot.columns, list(jobs)
        return len(at), int(columns.held[at].sum()), float(columns.unsaved[at].sum())

    def held_reason(self, gpus: int, loss: tuple[int, int, Seconds]) -> Reason:
        """Return the reason of a job that waits for ``gpus`` GPUs of jobs with this ``loss``."""
        return Reason(HELD_UNSAVED, (gpus, *loss))


class _Wishes:
    """The jobs that a policy grants GPUs beside the kept ones: which of them fit, and which have to wait."""

    def __init__(self, snapshot: Snapshot, wished: Verdicts, kept: _Kept, disturbed: Collection[int]) -> None:
        self._snapshot, self._wished, self._kept, self._disturbed = snapshot, wished, kept, disturbed
        self._free = [all_ - held for all_, held in zip(snapshot.cluster.capacity, kept.by_kind, strict=True)]
        self.all_fit = True
        """Whether every grant of the policy can be kept."""
        self._blocked: list[int] = []
        columns, mine = snapshot.columns, set(kept.jobs)
        wanting = [i for i in np.flatnonzero(wished.gpus).tolist() if i not in mine]
        counted: set[int] = set()
        for i in sorted(wanting, key=lambda i: (not columns.held[i], i)):
            partner = -1 if wished.partners is None else int(wished.partners[i])
            if partner not in counted and not self._take(i, int(wished.gpus[i])):
                self.all_fit = False
                least = int(min(columns.held[i] or columns.min_gpus[i], wished.gpus[i]))
                if not self._take(i, least) and not columns.held[i]:
                    self._blocked.append(i)
            counted.add(i)

    def _take(self, i: int, gpus: int) -> bool:
        kind = next((k for k in self._kinds(i) if self._free[k] >= gpus), None)
        if kind is not None:
            self._free[kind] -= gpus
        return kind is not None

    def _kinds(self, i: int) -> list[int]:
        """Return the kinds that a job may be seated on: the one granted, else all it can use, the fastest first."""
        granted = -1 if self._wished.kinds is None else int(self._wished.kinds[i])
        if granted >= 0:
            return [granted]
        speeds, here = self._snapshot.columns.speeds[i], int(self._snapshot.columns.kind[i])
        return sorted(np.flatnonzero(speeds > 0).tolist(), key=lambda k: (k != here, -speeds[k]))

    def waiting(self, hidden: Mapping[int, Verdict]) -> dict[int, Verdict]:
        """Return refusals of granted jobs that do not fit, and of jobs that would take the GPUs they wait for.

        The latter are jobs that could not be stopped once started and that would not end before a job that waits can
        start.
        """
        columns, snapshot = self._snapshot.columns, self._snapshot
        loss = self._kept.loss(self._disturbed)
        refused: dict[int, Verdict] = {
            i: Refusal(self._kept.held_reason(int(columns.min_gpus[i]), loss)) for i in self._blocked
        }
        if not self._blocked:
            return refused
        ready, wanted = self._ready(), sorted({k for i in self._blocked for k in self._kinds(i)})
        rivals: Flags = snapshot.unstoppable_once_started & (self._wished.gpus == 0)
        rivals = rivals & (columns.speeds[:, wanted] > 0).any(axis=1) & (columns.remaining_seconds > ready)
        first = Refusal(Reason(KEPT_FREE, (snapshot.ids[self._blocked[0]],)))
        return refused | {i: first for i in np.flatnonzero(rivals).tolist() if i not in refused and i not in hidden}

    def _ready(self) -> Seconds:
        """Return seconds until the first job that waits could start, as running jobs declare; 0 if that is unknown."""
        columns = self._snapshot.columns
        ready = dict.fromkeys(self._blocked, inf)
        for kind, free in enumerate(self._free):
            on = [i for i in self._kept.jobs if columns.kind[i] == kind]
            on.sort(key=lambda i: float(columns.remaining_seconds[i]))
            freed = free + np.cumsum(columns.held[on])
            for i in (i for i in self._blocked if kind in self._kinds(i)):
                at = int(np.searchsorted(freed, columns.min_gpus[i]))
                ready[i] = min(ready[i], float(columns.remaining_seconds[on[at]]) if at < len(on) else inf)
        return 0.0 if inf in ready.values() else min(ready.values())
