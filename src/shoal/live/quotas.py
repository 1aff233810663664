"""Quotas of tenants at the control plane: as messages, and the limit on waiting jobs at submission."""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import InputError
from shoal.core.job import JobSpec
from shoal.core.quota import Quota
from shoal.core.units import JobId, TenantId
from shoal.live.accounts import Accounts
from shoal.wire.messages import QuotaMessage


def quota_of(wanted: QuotaMessage) -> Quota:
    """Return the quota in a message; ``InputError`` if its values contradict each other."""
    try:
        return Quota(wanted.queued, wanted.gpus, wanted.guaranteed)
    except ValueError as error:
        raise InputError("guaranteed", wanted.guaranteed, str(error)) from error


def quota_rows(accounts: Accounts) -> list[QuotaMessage]:
    """Return every quota, by name of its tenant."""
    return [
        QuotaMessage(tenant=tenant, queued=quota.queued, gpus=quota.gpus, guaranteed=quota.guaranteed)
        for tenant, quota in sorted(accounts.quotas.items())
    ]


@dataclass(slots=True)
class QueueLimit:
    """Refuses jobs beyond the most waiting ones of their tenant; the caller holds the control plane's lock.

    ``admitted`` has the tenants of admitted jobs that are not durable yet; some of these jobs are in the accounts
    already.
    """

    admitted: dict[JobId, TenantId] = field(default_factory=dict)

    def check(self, accounts: Accounts, new: Iterable[JobSpec]) -> None:
        """Raise ``InputError`` if a tenant of new jobs would have more waiting jobs than its quota allows."""
        for tenant, count in Counter(spec.tenant for spec in new).items():
            quota = accounts.quotas.get(tenant)
            if quota is None or quota.queued is None:
                continue
            waiting = sum(a.spec.tenant == tenant and a.placement is None for a in accounts.live.values())
            coming = self.admitted.copy().items()  # a copy: the loop's thread removes some without the lock
            waiting += sum(owner == tenant and id not in accounts.numbers for id, owner in coming)
            if waiting + count > quota.queued:
                had = f"it has {waiting:,} waiting job{'s' * (waiting != 1)} and may have {quota.queued:,}"
                hint = f"{had}: wait for some to start, cancel some, or ask an operator for more (`shoal quota`)"
                raise InputError("tenant", tenant, hint)

    def count(self, new: Iterable[JobSpec], durable: "Future[Any]") -> None:
        """Count new jobs as waiting until they are durable or in the accounts, whichever comes first."""
        owners = {spec.id: spec.tenant for spec in new}
        self.admitted |= owners
        durable.add_done_callback(lambda _: [self.admitted.pop(id) for id in owners])
