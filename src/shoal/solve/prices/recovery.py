"""Time fractions from levels: within capacity to the last bit, and close to a preferred allocation."""

import numpy as np

from shoal.core.arrays import Floats
from shoal.solve.prices.ties import TiedMixes

_DUST = 1e-12
"""Shares below this fraction of a row's largest are rounding."""
_INSIDE = 1.0 - 1e-13
"""Margin for sums of many shares, which come out larger when added in another order."""


def within_capacity(shares: Floats, gangs: Floats, capacity: Floats) -> Floats:
    """The shares without rounding residue, scaled down where rounding overdraws a type or a row's time."""
    shares = np.where(shares > _DUST * shares.max(axis=1, keepdims=True), shares, 0.0)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True) / _INSIDE, 1.0)
    used = gangs @ shares
    scale = np.ones(len(capacity))
    np.divide(capacity * _INSIDE, used, out=scale, where=used > capacity * _INSIDE)
    inside: Floats = shares * scale
    return inside


def spread_idle(shares: Floats, speeds: Floats, gangs: Floats, capacity: Floats) -> Floats:
    """Return the shares with idle machines given evenly to rows that have time left, type by type; no share falls."""
    shares = shares.copy()
    for j in range(shares.shape[1]):
        idle = np.where(speeds[:, j] > 0, np.maximum(1.0 - shares.sum(axis=1), 0.0), 0.0)
        wanted, free = float(gangs @ idle), float(capacity[j] - gangs @ shares[:, j])
        if wanted > 0 and free > 0:
            shares[:, j] += idle * min(1.0, free / wanted)
    return within_capacity(shares, gangs, capacity)


def least_churn(shares: Floats, menu: TiedMixes, gangs: Floats, capacity: Floats, prefer: Floats) -> Floats:
    """Return, of all shares on the menu, those that maximise Σ gang · min(X, prefer), by one linear program.

    Rows with one mix keep it; at least one row must have several. Where the linear program fails the shares stay as
    they are.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix, vstack

    free = menu.only(menu.several)
    owners, group = np.unique(free.owner, return_inverse=True)
    rest = np.ones(len(shares), dtype=bool)
    rest[owners] = False
    ways, rows, types = len(free), len(owners), shares.shape[1]
    way, j = np.nonzero(free.shares)
    part, width = free.shares[way, j], ways + rows * types
    kept = ways + np.arange(rows * types)
    one_each = coo_matrix((np.ones(ways), (group, np.arange(ways))), (rows, width))
    # The overlap is at most the share: o[m, j] − Σ_v y_v X_v[j] ≤ 0.
    of_given = coo_matrix(
        (
            np.concatenate([-part, np.ones(rows * types)]),
            (np.concatenate([group[way] * types + j, np.arange(rows * types)]), np.concatenate([way, kept])),
        ),
        (rows * types, width),
    )
    use = coo_matrix((free.gangs[way] * part, (j, way)), (types, width))
    held = gangs[rest] @ shares[rest]
    available = np.maximum(capacity - held, gangs[owners] @ shares[owners])
    before = np.clip(prefer[owners], 0.0, 1.0)
    answer = linprog(  # type: ignore[call-overload]  # the stubs know no sparse matrices
        -np.concatenate([np.zeros(ways), np.repeat(gangs[owners], types)]),
        A_ub=vstack([of_given, use]).tocsr(),
        b_ub=np.concatenate([np.zeros(rows * types), available]),
        A_eq=one_each.tocsr(),
        b_eq=np.ones(rows),
        bounds=np.stack([np.zeros(width), np.concatenate([np.ones(ways), before.ravel()])], axis=1),
        method="highs",
    )
    if answer.status != 0:
        return shares
    weight = np.maximum(answer.x[:ways], 0.0)
    weight /= np.bincount(group, weight, rows)[group]
    nearer = shares.copy()
    nearer[owners] = 0.0
    np.add.at(nearer, free.owner, weight[:, None] * free.shares)
    return within_capacity(nearer, gangs, capacity)
