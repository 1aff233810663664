"""How fairly tenants and apps fare now: GPUs held, and ρ as far as the work of their jobs is known."""

from collections import defaultdict

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.snapshot import Snapshot
from shoal.core.units import Seconds, TenantId
from shoal.wire.watch_messages import FairnessRow


def job_rho(snapshot: Snapshot, now: Seconds) -> Floats:
    """Return ρ by job: its time from submission to end if it runs from now on, over its time on 1/n of the GPUs.

    n is the number of live jobs. NaN for a job whose work is not known.
    """
    columns = snapshot.columns
    share = max(sum(snapshot.cluster.capacity) / max(len(columns), 1), 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = columns.work / columns.best_speed
        left = np.maximum(columns.remaining_seconds - np.where(columns.held > 0, now - snapshot.now, 0.0), 0.0)
        found: Floats = (now - columns.submitted + left) / (whole * np.maximum(columns.gpus / share, 1.0))
    found[~np.isfinite(found)] = np.nan
    return found


def fairness_rows(snapshot: Snapshot, now: Seconds, tenant: TenantId | None) -> list[FairnessRow]:
    """Return a row for each tenant with live jobs and one for each app, of those that the tenant may see."""
    rho, columns, types = job_rho(snapshot, now), snapshot.columns, snapshot.cluster.types
    groups: dict[tuple[TenantId, str | None], list[int]] = defaultdict(list)
    for i, spec in enumerate(snapshot.specs):
        if tenant in (None, spec.tenant):
            groups[spec.tenant, None].append(i)
            if spec.app is not None:
                groups[spec.tenant, spec.app].append(i)
    prices = np.array([kind.price_per_hour or 0.0 for kind in types])
    rows = []
    for (owner, app), jobs in sorted(groups.items(), key=lambda group: (group[0][0], group[0][1] or "")):
        known = rho[jobs][~np.isnan(rho[jobs])]
        held, kinds = columns.held[jobs], columns.kind[jobs]
        rows.append(
            FairnessRow(
                tenant=owner,
                app=app,
                jobs=len(jobs),
                held=int(held.sum()),
                rho=round(float(known.mean()), 2) if len(known) else None,
                worst=round(float(known.max()), 2) if len(known) else None,
                dollars=round(float((held * np.where(kinds >= 0, prices[kinds], 0.0)).sum()), 4),
            )
        )
    return rows
