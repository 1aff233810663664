"""The GPUs, by kind, that the last decision lacked, for an engine that can bring nodes."""

from math import ceil

import numpy as np

from shoal.core.reasons import NO_KIND, RETURNED, SET_ASIDE, TENANT_CAP, WIDER_THAN_CAP
from shoal.core.snapshot import Snapshot
from shoal.live.views import LastDecision
from shoal.policy.goodput_options import adapts
from shoal.policy.pollux.autoscaling import Need, NodeOffer, ValueRule, wanted

_MOST_LOOKED_AT = 500
"""Running jobs, at most, whose need of more GPUs is computed: each takes up to 1 ms of CPU."""

_OTHER_RULES = {template.code for template in (NO_KIND, RETURNED, SET_ASIDE, TENANT_CAP, WIDER_THAN_CAP)}


def wished_gpus(last: LastDecision | None) -> dict[str, int]:
    """Return by kind the GPUs that jobs lack under the policy's last decision, beyond those that are free.

    A job that waits lacks the GPUs it asks for, of the kind on which it is fastest. An elastic job that runs lacks,
    of its kind, those it asks for and was not granted, or, where it reports its goodput, those that would be rented for
    it by the value of waiting time. One that another rule holds back (its tenant's quota, a condition, a hold) does not
    count: more nodes would not help it.
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
    if verdicts.kinds is not None:
        kinds = np.where(verdicts.kinds >= 0, verdicts.kinds, kinds)
    for i in np.flatnonzero(runs & (columns.max_gpus > verdicts.gpus))[:_MOST_LOOKED_AT].tolist():
        if i not in kept and verdicts.codes[i] not in _OTHER_RULES:
            kind = int(kinds[i])
            more = _more_gpus(snapshot, i, int(verdicts.gpus[i]), kind)
            wished[kind] = wished.get(kind, 0) + more
    granted = np.bincount(kinds[runs], verdicts.gpus[runs], len(cluster.kinds))
    free = {kind: max(0, cluster.capacity[kind] - int(granted[kind])) for kind in wished}
    lacking = {cluster.kinds[kind]: gpus - free[kind] for kind, gpus in wished.items()}
    return {kind: gpus for kind, gpus in lacking.items() if gpus > 0}


def _more_gpus(snapshot: Snapshot, position: int, granted: int, kind: int) -> int:
    """Return the GPUs of a kind that a running job could use beyond those granted."""
    spec, report, cluster = snapshot.specs[position], snapshot.report(position), snapshot.cluster
    if not adapts(spec):
        return max(0, int(snapshot.columns.gpus[position]) - granted)
    node = cluster.node_size[kind]
    if not node:
        return 0
    offer = NodeOffer(cluster.kinds[kind], node, ceil(spec.max_gpus / node))
    age = snapshot.now - float(snapshot.columns.submitted[position])
    found = wanted(ValueRule(), Need(spec, report, rented=granted), [offer], age)
    return 0 if found is None else max(0, found[1].rented - granted)
