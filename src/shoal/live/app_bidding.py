"""The cluster's end of an app that speaks for itself: what it is told when it asks, and what it may say.

An app is all live jobs that name it. Who asks on behalf of a tenant hears of, and speaks for, that tenant's apps alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from shoal.core.bids import AppStanding, Rows, check_rows
from shoal.core.errors import InputError
from shoal.core.interfaces import Auctions, Policy
from shoal.core.snapshot import Snapshot
from shoal.core.units import JobId, JobNumber, Seconds, TenantId
from shoal.wire.messages import AppBidMessage, AppOffer, KindOffer, WorkLeft


class UnknownApp(LookupError):
    """No live job names the app, or none that the one who asks may see."""


@dataclass(frozen=True, slots=True)
class AppBidding:
    """Where apps ask: the policy in force and the moment of its last decision, with what it remembers since."""

    policy: Policy
    snapshot: Snapshot

    def offer(self, app: str, tenant: TenantId | None, unix: Callable[[Seconds], float]) -> AppOffer:
        """What an app is told; ``unix`` says when a time of the ring is. Where nothing is auctioned, it says so."""
        self._positions(app, tenant)
        standing = self._standing(app)
        if standing is None:
            return AppOffer(app=app, auctioned=False)
        ids = self.snapshot.register.ids
        return AppOffer(
            app=app,
            auctioned=True,
            rho=standing.rho if isfinite(standing.rho) else None,
            kind=standing.kind,
            most=standing.most,
            said=standing.said,
            jobs=[WorkLeft(ids[left.job], left.part, left.least, list(left.seconds)) for left in standing.jobs],
            kinds=[
                KindOffer(o.kind, o.gpus, list(o.machines), None if o.until is None else unix(o.until))
                for o in standing.offers
            ],
        )

    def heard(self, app: str, valuation: AppBidMessage, tenant: TenantId | None) -> tuple[tuple[JobNumber, ...], Rows]:
        """What an app says of itself, if it may: the jobs it has, and its rows."""
        positions = self._positions(app, tenant)
        standing = self._standing(app)
        if standing is None:
            raise InputError("app", app, "the policy in force holds no auctions; there is nothing to bid for")
        specs = self.snapshot.specs
        if any(spec.app == app and specs[positions[0]].tenant != spec.tenant for spec in specs):
            raise InputError("app", app, "other tenants have jobs of that name too; name yours otherwise")
        mine: list[JobId] = [specs[i].id for i in positions]
        if sorted(valuation.jobs) != sorted(mine):
            hint = f"its jobs are others now ({', '.join(mine[:10])}): ask for its offer again"
            raise InputError("jobs", ", ".join(valuation.jobs[:10]), hint)
        cluster = self.snapshot.cluster
        rows = check_rows(valuation.rows, cluster.installed[cluster.kind_index[standing.kind]])
        return tuple(self.snapshot.columns.rows[positions].tolist()), rows

    def _positions(self, app: str, tenant: TenantId | None) -> list[int]:
        """Where the app's jobs stand that may be seen."""
        specs = enumerate(self.snapshot.specs)
        found = [i for i, spec in specs if spec.app == app and tenant in (None, spec.tenant)]
        if not found:
            raise UnknownApp(app)
        return found

    def _standing(self, app: str) -> AppStanding | None:
        if not isinstance(self.policy, Auctions):
            return None
        position = next(i for i, spec in enumerate(self.snapshot.specs) if spec.app == app)
        return self.policy.standing(self.snapshot, int(self.snapshot.columns.app[position]))
