"""The GPUs, by kind, that the last decision lacked, for an engine that can bring nodes."""

import numpy as np

from shoal.core.reasons import NO_KIND, RETURNED, SET_ASIDE, TENANT_CAP, WIDER_THAN_CAP
from shoal.live.views import LastDecision

_OTHER_RULES = {template.code for template in (NO_KIND, RETURNED, SET_ASIDE, TENANT_CAP, WIDER_THAN_CAP)}


def wished_gpus(last: LastDecision | None) -> dict[str, int]:
    """Return by kind the GPUs that jobs wait for under the policy's last decision, beyond those that are free.

    A job counts for the kind on which it is fastest. One that another rule holds back (its tenant's quota, a condition,
    a hold) does not count: more nodes would not start it.
    """
    if last is None:
        return {}
    snapshot, verdicts = last.snapshot, last.verdicts
    cluster, columns = snapshot.cluster, snapshot.columns
    kept = set(snapshot.kept_from_policy.tolist())
    wished: dict[int, int] = {}
    for i in np.flatnonzero((verdicts.gpus == 0) & (columns.held == 0)).tolist():
        speeds = columns.speeds[i]
        if i in kept or verdicts.codes[i] in _OTHER_RULES or not speeds.max(initial=0.0) > 0:
            continue
        kind = int(speeds.argmax())
        wished[kind] = wished.get(kind, 0) + int(columns.gpus[i])
    runs = verdicts.gpus > 0
    kinds = np.where(columns.held > 0, columns.kind, columns.speeds.argmax(axis=1))
    granted = np.bincount(kinds[runs], verdicts.gpus[runs], len(cluster.kinds))
    free = {kind: max(0, cluster.capacity[kind] - int(granted[kind])) for kind in wished}
    lacking = {cluster.kinds[kind]: gpus - free[kind] for kind, gpus in wished.items()}
    return {kind: gpus for kind, gpus in lacking.items() if gpus > 0}
