"""Bidding of apps in an auction: an app's standing on request, and the check of its bids.

An app is all live jobs that name it. A tenant sees, and bids for, only its own apps.
"""

from dataclasses import dataclass
from math import isfinite

from shoal.core.bids import AppStanding, Rows, check_rows
from shoal.core.errors import InputError
from shoal.core.interfaces import Auctions, Policy
from shoal.core.snapshot import Snapshot
from shoal.core.units import JobNumber, TenantId
from shoal.wire.messages import AppBidMessage, AppOffer, KindOffer, WorkLeft


class UnknownApp(LookupError):
    """No live job names the app, or none that the caller may see."""


@dataclass(frozen=True, slots=True)
class AppBidding:
    """Answers apps from the policy, and from the snapshot of its last decision with the ``carry`` after it."""

    policy: Policy
    snapshot: Snapshot

    def offer(self, app: str, tenant: TenantId | None, epoch: float) -> AppOffer:
        """Return an app's standing, with Unix times; if the policy holds no auctions, an offer that says so."""
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
            said=standing.bid_in_force,
            jobs=[WorkLeft(ids[left.job], left.part, left.least, list(left.seconds)) for left in standing.jobs],
            kinds=[
                KindOffer(o.kind, o.gpus, list(o.machines), None if o.until is None else epoch + o.until)
                for o in standing.offers
            ],
        )

    def check_bid(self, app: str, bid: AppBidMessage, tenant: TenantId | None) -> tuple[tuple[JobNumber, ...], Rows]:
        """Return the app's jobs and the rows of its bid; ``InputError`` names what is wrong with it."""
        positions = self._positions(app, tenant)
        standing = self._standing(app)
        if standing is None:
            raise InputError("app", app, "the policy in force holds no auctions; there is nothing to bid for")
        specs = self.snapshot.specs
        if any(spec.app == app and specs[positions[0]].tenant != spec.tenant for spec in specs):
            raise InputError("app", app, "other tenants have jobs of that name too; name yours otherwise")
        current = [specs[i].id for i in positions]
        if sorted(bid.jobs) != sorted(current):
            hint = f"its jobs are others now ({', '.join(current[:10])}): ask for its offer again"
            raise InputError("jobs", ", ".join(bid.jobs[:10]), hint)
        cluster = self.snapshot.cluster
        rows = check_rows(bid.rows, cluster.installed[cluster.kind_index[standing.kind]])
        return tuple(self.snapshot.columns.rows[positions].tolist()), rows

    def _positions(self, app: str, tenant: TenantId | None) -> list[int]:
        """Return the positions in the snapshot of those jobs of the app that the tenant may see."""
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
