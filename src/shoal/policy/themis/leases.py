"""The leases that run at a decision, and leases cut to the GPUs that an app keeps."""

import numpy as np

from shoal.core.units import Seconds
from shoal.policy.themis.apps import Apps
from shoal.policy.themis.carry import Lease
from shoal.policy.themis.single_records import SingleLeases


def running_leases(apps: Apps, seconds: Seconds) -> tuple[dict[tuple[int, int], Lease], SingleLeases]:
    """The leases that have not ended, by app and kind, and those of apps of one job.

    Without a carry, jobs are taken to have had a lease of this many ``seconds`` since they started.
    """
    before, now, columns = apps.before, apps.snapshot.now, apps.snapshot.columns
    if before.live:
        known = {
            key: lease if lease[0][1] > now else tuple((gpus, end) for gpus, end in lease if end > now)
            for key, lease in before.leases.items()
            if key[0] in apps.members
        }
        running = {key: lease for key, lease in known.items() if lease}
        return running, before.singles.leases.running(now, apps.singles.records.rows)
    begun: dict[tuple[int, int], list[tuple[int, Seconds]]] = {}
    for i in np.flatnonzero((columns.held > 0) & (columns.partner < 0)).tolist():
        end = float(columns.since[i]) + seconds
        if end > now and int(columns.app[i]) in apps.members:
            begun.setdefault((int(columns.app[i]), int(columns.kind[i])), []).append((int(columns.held[i]), end))
    alone = SingleLeases.begun(columns, apps.alone, seconds).running(now, columns.rows)
    return {key: tuple(sorted(lease, key=lambda part: part[1])) for key, lease in begun.items()}, alone


def trimmed(lease: Lease, gpus: int) -> Lease:
    """The parts of a lease that end last, up to this many GPUs."""
    if sum([count for count, _ in lease]) <= gpus:
        return lease
    kept: list[tuple[int, Seconds]] = []
    for count, end in reversed(lease):
        take = min(count, gpus)
        gpus -= take
        if take:
            kept.append((take, end))
    return tuple(reversed(kept))
