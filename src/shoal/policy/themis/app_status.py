"""An app's status before the next auction, from which it can make a bid of its own."""

from collections import Counter

from shoal.core.bids import AppStanding, JobLeft, OnOffer
from shoal.core.units import Seconds
from shoal.policy.themis.apps import Apps
from shoal.policy.themis.carry import AppValuation


def app_status(apps: Apps, app: int) -> AppStanding:
    """An app's ρ, the work left of its jobs, and the GPUs to be offered next."""
    kind = apps.best_kind(app)
    jobs = [i for i in apps.members[app].tolist() if apps.gpu_range(i, kind)[0]]
    agent = apps.agent(app, kind, jobs, 0)
    valuation = apps.histories[app].valuation or AppValuation(apps.jobs(app), agent.left, agent.least, agent.fastest)
    return AppStanding(
        rho=apps.rho(app, valuation),
        kind=apps.snapshot.cluster.kinds[kind],
        most=agent.limit,
        jobs=tuple(_left(apps, i, kind) for i in apps.members[app].tolist()),
        offers=tuple(_on_offer(apps, k) for k in range(len(apps.snapshot.cluster.kinds))),
        bid_in_force=apps.own_bid(app) is not None,
    )


def _left(apps: Apps, i: int, kind: int) -> JobLeft:
    columns, (least, most) = apps.snapshot.columns, apps.gpu_range(i, kind)
    left, done = float(apps.left[i]), float(columns.done[i])
    seconds = tuple(apps.work(i, kind).seconds[least : most + 1].tolist()) if least else ()
    return JobLeft(int(columns.rows[i]), left / (left + done), least, seconds)


def _on_offer(apps: Apps, kind: int) -> OnOffer:
    """The GPUs of a kind that are not leased beyond the end of the next lease."""
    cluster = apps.snapshot.cluster
    leases = [part for (_, k), lease in apps.before.leases.items() if k == kind for part in lease]
    until: Seconds | None = min((end for _, end in leases), default=None)
    kept = sum(gpus for gpus, end in leases if until is not None and end > until)
    up = [gpus for k, gpus in zip(cluster.node_kind, cluster.usable, strict=True) if k == kind and gpus]
    machines = tuple(sorted(Counter(up).items(), reverse=True))
    return OnOffer(cluster.kinds[kind], cluster.capacity[kind] - kept, machines, until)
