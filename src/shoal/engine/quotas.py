"""Quotas of tenants, enforced on the verdicts of any policy, between policy and placement.

No tenant is granted more GPUs than its quota allows at once. A tenant that is granted fewer than its guarantee, and has
jobs for more, takes GPUs back from tenants that were granted more than theirs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.core.arrays import Indices
from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.interfaces import Policy
from shoal.core.job import ADAPTIVE
from shoal.core.lifecycle import JobState
from shoal.core.quota import NO_QUOTA, Quota
from shoal.core.reasons import (
    FILLS,
    GUARANTEED,
    RETURNED,
    SHRUNK_TO_CAP,
    TENANT_CAP,
    WIDER_THAN_CAP,
    Reason,
)
from shoal.core.snapshot import Snapshot
from shoal.core.units import TenantId
from shoal.engine.policy_answer import MOST_ASKS
from shoal.engine.unsaved_work import ask

_STOPPING = int(JobState.STOPPING)


def ask_within_quotas(policy: Policy, snapshot: Snapshot) -> tuple[Decision, Verdicts]:
    """Return the policy's decision and verdicts that keep to every tenant's quota.

    The policy does not see jobs that cannot start because of their tenant's most GPUs, so that it gives their GPUs to
    other jobs; which ones these are follows from its answer, so it is asked again while there are more of them.
    """
    hidden = _too_wide(snapshot)
    decision, verdicts = ask(policy, snapshot, hidden)
    for _ in range(MOST_ASKS):
        beyond = _beyond_caps(snapshot, verdicts, hidden)
        if not beyond:
            break
        hidden |= beyond
        decision, verdicts = ask(policy, snapshot, hidden)
    verdicts = _changed(snapshot, verdicts, _capped(snapshot, verdicts))
    grants = _Grants(snapshot, verdicts, set(hidden))
    for tenant in sorted(tenant for tenant, quota in snapshot.quotas.items() if quota.guaranteed):
        if grants.below_guarantee(tenant):
            grants.restore(tenant, _preferred(policy, snapshot, tenant))
    grants.fill()
    verdicts = _changed(snapshot, verdicts, grants.changes)
    return Decision(verdicts, decision.review_at, decision.carry), verdicts


def _tenants(snapshot: Snapshot) -> list[TenantId]:
    """Return the tenant of each job, by position."""
    names = snapshot.register.tenants
    return [names[number] for number in snapshot.columns.tenant.tolist()]


def _capped_tenants(snapshot: Snapshot) -> Iterator[tuple[TenantId, int, Indices]]:
    """Yield each tenant with a limit on its GPUs, that limit, and the positions of its jobs."""
    names = snapshot.register.tenants
    for tenant, quota in sorted(snapshot.quotas.items()):
        if quota.gpus is not None and tenant in names:
            yield tenant, quota.gpus, np.flatnonzero(snapshot.columns.tenant == names.index(tenant))


def _too_wide(snapshot: Snapshot) -> dict[int, Verdict]:
    """Return refusals of the jobs that need more GPUs than their tenant may have at once."""
    refusals: dict[int, Verdict] = {}
    least = snapshot.columns.min_gpus
    for tenant, most, own in _capped_tenants(snapshot):
        for i in own[least[own] > most].tolist():
            refusals[i] = Refusal(Reason(WIDER_THAN_CAP, (int(least[i]), tenant, most)))
    return refusals


def _beyond_caps(snapshot: Snapshot, verdicts: Verdicts, hidden: Mapping[int, Verdict]) -> dict[int, Verdict]:
    """Return refusals of jobs that cannot start beside their tenant's granted jobs within its most GPUs."""
    refusals: dict[int, Verdict] = {}
    least, held = snapshot.columns.min_gpus, snapshot.columns.held
    for tenant, most, own in _capped_tenants(snapshot):
        used, beyond = 0, []
        for i in sorted(own.tolist(), key=lambda i: (not verdicts.gpus[i], not held[i], i)):
            if used + int(least[i]) > most:
                beyond.append(i)
            else:
                used += min(int(verdicts.gpus[i]), most - used)
        fresh = (i for i in beyond if i not in hidden)
        refusals |= dict.fromkeys(fresh, Refusal(Reason(TENANT_CAP, (tenant, used, most))))
    return refusals


def _capped(snapshot: Snapshot, verdicts: Verdicts) -> dict[int, Verdict]:
    """Return verdicts that bring tenants over their most back to it: elastic jobs shrink, others are refused."""
    changes: dict[int, Verdict] = {}
    held = snapshot.columns.held
    for tenant, most, own in _capped_tenants(snapshot):
        used, refused = 0, []
        for i in sorted(own.tolist(), key=lambda i: (not held[i], i)):
            gpus, left = int(verdicts.gpus[i]), most - used
            if 0 < gpus <= left:
                used += gpus
            elif gpus and left >= snapshot.specs[i].min_gpus and _partner(verdicts, i) < 0:
                changes[i] = _grant(snapshot, verdicts, i, left, Reason(SHRUNK_TO_CAP, (left, tenant, most)))
                used += left
            elif gpus:
                refused += [i, *(p for p in [_partner(verdicts, i)] if p >= 0)]
        changes |= dict.fromkeys(refused, Refusal(Reason(TENANT_CAP, (tenant, used, most))))
    return changes


def _preferred(policy: Policy, snapshot: Snapshot, tenant: TenantId) -> list[int]:
    """Return a tenant's jobs in order: running ones, those the policy would run if it were alone, the rest."""
    others = {i: Refusal() for i, owner in enumerate(_tenants(snapshot)) if owner != tenant}
    _, alone = ask(policy, snapshot, others)
    held = snapshot.columns.held
    own = (i for i in range(len(snapshot.columns)) if i not in others)
    return sorted(own, key=lambda i: (not held[i], not alone.gpus[i], i))


def _partner(verdicts: Verdicts, i: int) -> int:
    return -1 if verdicts.partners is None else int(verdicts.partners[i])


def _grant(snapshot: Snapshot, verdicts: Verdicts, i: int, gpus: int, reason: Reason) -> Grant:
    adapts = verdicts.batches.get(i) == ADAPTIVE or snapshot.report(i) is not None
    return Grant(gpus, batch=ADAPTIVE if adapts else None, reason=reason)


def _changed(snapshot: Snapshot, verdicts: Verdicts, changes: Mapping[int, Verdict]) -> Verdicts:
    """Return the verdicts with these changes; a changed grant has no seats or partner of its own."""
    if not changes:
        return verdicts
    changed = verdicts.overruled(changes)
    changed.placements = {i: seats for i, seats in verdicts.placements.items() if i not in changes}
    changed.batches = {i: batch for i, batch in verdicts.batches.items() if i not in changes}
    changed.batches |= {i: v.batch for i, v in changes.items() if isinstance(v, Grant) and v.batch is not None}
    if verdicts.partners is not None:
        changed.partners = verdicts.partners.copy()
        changed.partners[list(changes)] = -1
    if any(isinstance(v, Grant) and v.kind is not None for v in changes.values()):
        kinds = verdicts.kinds
        changed.kinds = np.full(len(changed.gpus), -1, dtype=np.int8) if kinds is None else kinds.copy()
        for i, verdict in changes.items():
            if isinstance(verdict, Grant) and verdict.kind is not None:
                changed.kinds[i] = snapshot.cluster.kind_index[verdict.kind]
    return changed


@dataclass(slots=True)
class _Grants:
    """The GPUs granted, by job, tenant and kind, while lent GPUs are returned; ``changes`` are the new verdicts."""

    snapshot: Snapshot
    verdicts: Verdicts
    hidden: set[int]
    changes: dict[int, Verdict] = field(default_factory=dict)
    gpus: list[int] = field(init=False)
    kinds: list[int] = field(init=False)
    owner: list[TenantId] = field(init=False)
    granted: dict[TenantId, int] = field(init=False)
    free: list[int] = field(init=False)
    takeable: list[int] = field(init=False)
    """The jobs with grants, in the order in which they lose them: those that do not run yet, those that may be stopped,
    and of equals the last ones first."""
    surplus: dict[int, int] = field(default_factory=dict)
    """By kind, GPUs that were taken back beyond those needed."""

    def __post_init__(self) -> None:
        self.gpus, self.owner = self.verdicts.gpus.tolist(), _tenants(self.snapshot)
        self.kinds = [self._kind(i) for i in range(len(self.gpus))]
        self.granted = dict.fromkeys([*self.owner, *self.snapshot.quotas], 0)
        self.free = list(self.snapshot.cluster.capacity)
        held, jobs = self.snapshot.columns.held, np.flatnonzero(self.verdicts.gpus).tolist()
        kept = self.snapshot.unstoppable
        self.takeable = sorted(jobs, key=lambda i: (bool(held[i]), bool(kept[i]), -i))
        for i, gpus in enumerate(self.gpus):
            self.granted[self.owner[i]] += gpus
            if gpus and not 0 <= _partner(self.verdicts, i) < i:  # of two that share GPUs, one counts
                self.free[self.kinds[i]] -= gpus

    def below_guarantee(self, tenant: TenantId) -> bool:
        """Return whether a tenant is granted fewer GPUs than its guarantee."""
        return self.granted[tenant] < self._quota(tenant).guaranteed

    def restore(self, tenant: TenantId, order: Iterable[int]) -> None:
        """Grant a tenant's waiting jobs, in this order, up to its guarantee, on free GPUs and on GPUs it had lent."""
        for i in order:
            left = self._quota(tenant).guaranteed - self.granted[tenant]
            spec = self.snapshot.specs[i]
            want = min(int(self.snapshot.columns.held[i]) or spec.gpus, left)
            if not self._may_start(i) or want < spec.min_gpus:
                continue
            kind = next((k for k in self._usable(i) if self._take_back(tenant, k, want)), None)
            if kind is not None:
                reason = Reason(GUARANTEED, (tenant, self._quota(tenant).guaranteed))
                self._start(i, kind, want, reason)

    def fill(self) -> None:
        """Grant waiting jobs, in order of admission, the GPUs that were taken back but not needed."""
        for i in range(len(self.gpus)) if any(self.surplus.values()) else ():
            cap, spec = self._quota(self.owner[i]).gpus, self.snapshot.specs[i]
            within = cap is None or self.granted[self.owner[i]] + spec.gpus <= cap
            kinds = (k for k in self._usable(i) if min(self.free[k], self.surplus.get(k, 0)) >= spec.gpus)
            kind = next(kinds, None) if within and self._may_start(i) else None
            if kind is not None:
                left = self.surplus[kind]
                self.surplus[kind] -= spec.gpus
                self._start(i, kind, spec.gpus, Reason(FILLS, (left,)))

    def _take_back(self, tenant: TenantId, kind: int, want: int) -> bool:
        """Free ``want`` GPUs of a kind by refusing jobs of borrowers, if possible; return whether it was.

        Jobs are chosen in the order of ``takeable`` until there are enough GPUs. Then, in the same order, jobs keep
        their GPUs if these are not needed after all, since a job chosen later was wider. The jobs left are refused.
        """
        taken: list[tuple[int, ...]] = []
        granted, free = dict(self.granted), self.free[kind]
        for i in self.takeable:
            if free >= want:
                break
            unit = tuple(j for j in (i, _partner(self.verdicts, i)) if j >= 0)
            lent = all(
                self.gpus[j]
                and self.owner[j] != tenant
                and granted[self.owner[j]] > self._quota(self.owner[j]).guaranteed
                for j in unit
            )
            if lent and self.kinds[i] == kind and not any(i in other for other in taken):
                taken.append(unit)
                free += self.gpus[i]
                for j in unit:
                    granted[self.owner[j]] -= self.gpus[j]
        if free < want:
            return False
        for unit in tuple(taken):  # leave alone what is not needed after all
            if free - self.gpus[unit[0]] >= want:
                taken.remove(unit)
                free -= self.gpus[unit[0]]
        for unit in taken:
            self._refuse(unit, tenant)
        if taken:
            self.surplus[kind] = self.surplus.get(kind, 0) + free - want
        return True

    def _refuse(self, unit: tuple[int, ...], tenant: TenantId) -> None:
        self.free[self.kinds[unit[0]]] += self.gpus[unit[0]]
        for j in unit:
            self.granted[self.owner[j]] -= self.gpus[j]
            self.gpus[j] = 0
            self.changes[j] = Refusal(Reason(RETURNED, (tenant,)))

    def _start(self, i: int, kind: int, gpus: int, reason: Reason) -> None:
        self.gpus[i], self.kinds[i] = gpus, kind
        self.granted[self.owner[i]] += gpus
        self.free[kind] -= gpus
        grant = _grant(self.snapshot, self.verdicts, i, gpus, reason)
        several = len(self.snapshot.cluster.kinds) > 1
        self.changes[i] = replace(grant, kind=self.snapshot.cluster.kinds[kind]) if several else grant

    def _may_start(self, i: int) -> bool:
        """Return whether a job has no grant and could have one: not stopping, not set aside, not beyond a cap."""
        snapshot = self.snapshot
        if self.gpus[i] or i in self.hidden or snapshot.columns.state[i] == _STOPPING:
            return False
        aside = snapshot.set_aside.get(int(snapshot.columns.rows[i]))
        return aside is None or snapshot.now >= aside.retry_at

    def _quota(self, tenant: TenantId) -> Quota:
        return self.snapshot.quotas.get(tenant, NO_QUOTA)

    def _usable(self, i: int) -> list[int]:
        """Return the kinds a job can run on, the one it holds first, then the fastest."""
        speeds, here = self.snapshot.columns.speeds[i], int(self.snapshot.columns.kind[i])
        kinds = (k for k in range(len(speeds)) if speeds[k] > 0)
        return sorted(kinds, key=lambda k: (k != here, -speeds[k], k))

    def _kind(self, i: int) -> int:
        """Return the kind that a job is granted, or probably gets from the placer."""
        if i in self.verdicts.placements:
            return self.snapshot.cluster.kind_of(self.verdicts.placements[i])
        chosen = -1 if self.verdicts.kinds is None else int(self.verdicts.kinds[i])
        return chosen if chosen >= 0 else next(iter(self._usable(i)), 0)
