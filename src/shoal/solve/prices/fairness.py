"""Fair shares of unequal machines: max-min fairness, makespan, finish-time fairness, trees of shares.

    maximise lexicographically the levels u_m = Σ_j speeds[m, j] · X[m, j] along the rule's path (see `paths`)
    subject to X ≥ 0,  Σ_j X[m, j] ≤ 1,  Σ_m gangs[m] · X[m, j] ≤ capacity[j].

X[m, j] is the fraction of time row m spends on type j. ``speeds[m, j]`` is what row m gains per unit of time there (0:
it cannot run), ``gangs[m]`` the units of a type it holds while it runs, ``capacity[j]`` the units there are. The method
is water filling in at most one stage per type (`filling`). Every answer is exact up to rounding and carries its
certificate: prices that prove no higher level exists, and a residual and a gap recomputed from X.

References: Gavel (OSDI 2020) §4.1-4.3.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.errors import InputError
from shoal.solve.prices.filling import Filled, StageCertificate, fill
from shoal.solve.prices.paths import FinishTime, Path, Proportional, ShareNode, Tree
from shoal.solve.prices.recovery import least_churn, spread_idle, within_capacity

_RESIDUAL = 1e-9
"""Above this shortfall the stages are run again with the next wider tolerance for ties; the best run counts."""
_TIES = (1e-9, 1e-8, 1e-7, 1e-6, 1e-5)
_APART = 2e-9
"""Speeds of one row closer than this, relatively, count as equal."""


@dataclass(frozen=True, slots=True)
class Filling:
    """Time fractions (rows × types), the levels they reach, and the certificate.

    ``X`` never exceeds a row's time or a capacity. ``tau`` is the level of the first stage, ``objective`` the rule's
    own measure of X. ``residual`` is the largest of: a level's shortfall against the water-filled one, relative to the
    row's fastest type; the fraction of open capacity a stage's prices leave unproven; a stage's fall below the one
    before. ``gap`` is the relative distance of the objective to the bound of the first stage's prices.
    """

    X: Floats
    levels: Floats
    tau: float
    objective: float
    stages: tuple[StageCertificate, ...]
    residual: float
    gap: float


def equal_share_speed(speeds: Floats, capacity: Floats) -> Floats:
    """The speed of each row with its time spread evenly over all machines: the capacity-weighted mean over types."""
    mean: Floats = speeds @ (capacity / capacity.sum())
    return mean


def isolated_speed(speeds: Floats, gangs: Floats, capacity: Floats) -> Floats:
    """Return the speed of each row on its n-th part of every type; time fractions above one in all are scaled down."""
    shares = capacity / (len(speeds) * gangs[:, None])
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
    speed: Floats = (speeds * shares).sum(axis=1)
    return speed


def max_min(
    speeds: Floats,
    gangs: Floats,
    capacity: Floats,
    weights: Floats,
    *,
    water_filling: bool = True,
    prefer: Floats | None = None,
) -> Filling:
    """The shares that maximise the least level per weight, then the next least, and so on; the objective is the least.

    Without water filling only the first stage is exact and idle machines are spread evenly. ``prefer`` is an earlier X:
    of all shares with the same levels the one nearest to it is returned.
    """
    _positive("weight", weights)
    return _filled(speeds, gangs, capacity, Proportional(weights), water_filling, prefer)


def makespan(
    speeds: Floats,
    gangs: Floats,
    capacity: Floats,
    steps: Floats,
    *,
    water_filling: bool = True,
    prefer: Floats | None = None,
) -> Filling:
    """The shares that minimise the time until all steps are done; the objective is one over that time."""
    _positive("steps", steps)
    return _filled(speeds, gangs, capacity, Proportional(steps), water_filling, prefer)


def finish_time_fairness(
    speeds: Floats,
    gangs: Floats,
    capacity: Floats,
    steps: Floats,
    elapsed: Floats,
    alone: Floats,
    *,
    water_filling: bool = True,
    prefer: Floats | None = None,
) -> Filling:
    """The shares that minimise the largest ρ = (elapsed + steps/level) / alone; the objective is one over it.

    ``alone`` is the seconds the row takes on its own n-th part: isolated elapsed time plus steps over isolated speed.
    """
    _positive("steps", steps)
    _positive("alone", alone)
    if not (np.isfinite(elapsed) & (elapsed >= 0)).all():
        raise InputError("elapsed", float(elapsed.min()), "must be at least 0")
    return _filled(speeds, gangs, capacity, FinishTime(steps, elapsed, alone), water_filling, prefer)


def hierarchical(
    speeds: Floats,
    gangs: Floats,
    capacity: Floats,
    tree: ShareNode,
    weights: Floats | None = None,
    *,
    prefer: Floats | None = None,
) -> Filling:
    """Return the water-filled shares of a tree of any depth; ``weights`` are the rows' under fair nodes (default 1).

    Every row appears in the tree once. The objective is the least sum of levels per weight among the root's children.
    """
    weights = np.ones(len(speeds)) if weights is None else weights
    _positive("weight", weights)
    _check_tree(tree, len(speeds))
    return _filled(speeds, gangs, capacity, Tree(tree, weights), True, prefer)


def _filled(
    speeds: Floats, gangs: Floats, capacity: Floats, path: Path, water_filling: bool, prefer: Floats | None
) -> Filling:
    usable = _usable(speeds, gangs, capacity)
    if not len(usable):
        return Filling(usable, np.zeros(0), np.inf, np.inf, (), 0.0, 0.0)
    fastest = usable.max(axis=1, initial=0.0)
    for row in np.flatnonzero(fastest <= 0).tolist():
        raise InputError("speeds", row, f"this row has no usable type: it needs {gangs[row]:g} of one type at once")
    residual = np.inf
    for tie in _TIES:
        most = None if water_filling else 1
        run = fill(usable, gangs, capacity, path, most=most, tie=tie, every_way=prefer is not None)
        inside = within_capacity(run.shares, gangs, capacity)
        missing = max(_shortfall(run, (usable * inside).sum(axis=1), fastest), _certificate_error(run))
        if missing < residual:
            found, shares, residual = run, inside, missing
        if residual <= _RESIDUAL:
            break
    if prefer is not None and found.menu is not None and found.menu.several.any():
        shares = _nearest(found, shares, usable, gangs, capacity, prefer, max(residual, _RESIDUAL))
    if not water_filling:
        shares = spread_idle(shares, usable, gangs, capacity)
    levels = (usable * shares).sum(axis=1)
    top = path.climb(fastest)
    tau = found.stages[0].tau if found.stages else top.top
    objective, bound = path.worth(levels), path.worth(top.at(tau))
    gap = max(bound - objective, 0.0) / bound if bound > 0 else 0.0
    residual = max(_shortfall(found, levels, fastest), _certificate_error(found))
    return Filling(shares, levels, tau, objective, found.stages, residual, gap)


def _nearest(
    found: Filled, shares: Floats, speeds: Floats, gangs: Floats, capacity: Floats, prefer: Floats, most: float
) -> Floats:
    """The shares nearest to ``prefer`` whose levels fall short by at most ``most``.

    ``prefer`` itself is returned where it is feasible and reaches the levels. That makes an answer a fixed point of
    its own preference, which the linear program alone does not: where idle GPUs gain a row nothing, several shares keep
    as much of ``prefer``.
    """
    fastest = speeds.max(axis=1)
    feasible = (
        (prefer >= 0).all()
        and not prefer[speeds == 0].any()
        and (prefer.sum(axis=1) <= 1).all()
        and (gangs @ prefer <= capacity).all()
    )
    if feasible and _shortfall(found, (speeds * prefer).sum(axis=1), fastest) <= most:
        return prefer
    assert found.menu is not None
    nearer = least_churn(shares, found.menu, gangs, capacity, prefer)
    return nearer if _shortfall(found, (speeds * nearer).sum(axis=1), fastest) <= most else shares


def _shortfall(found: Filled, levels: Floats, fastest: Floats) -> float:
    return float(((found.levels - levels) / fastest).max(initial=0.0))


def _certificate_error(found: Filled) -> float:
    """Return the gap that the prices leave, or the largest fall of a level between two stages, whichever is larger."""
    pairs = zip(found.stages, found.stages[1:], strict=False)
    fallen = (1.0 - after.tau / before.tau for before, after in pairs)
    return max(found.unproven, *fallen, 0.0)


def _usable(speeds: Floats, gangs: Floats, capacity: Floats) -> Floats:
    """Return the speeds with 0 where a gang does not fit; `InputError` for shapes and values that make no problem."""
    rows, types = speeds.shape
    if gangs.shape != (rows,) or capacity.shape != (types,):
        raise InputError("speeds", speeds.shape, f"with {len(gangs)} gangs and {len(capacity)} capacities")
    if not (np.isfinite(speeds) & (speeds >= 0)).all():
        row = int(np.flatnonzero(~(np.isfinite(speeds) & (speeds >= 0)).all(axis=1))[0])
        raise InputError("speeds", row, "this row has a speed that is negative or not a number")
    if not (np.isfinite(capacity) & (capacity >= 0)).all():
        raise InputError("capacity", capacity.tolist(), "must be finite and at least 0")
    _positive("gang", gangs)
    return _merged(np.where(gangs[:, None] <= capacity, speeds, 0.0))


def _merged(speeds: Floats) -> Floats:
    """Return the speeds; those of a row within `_APART` of each other become equal, since costs would jump there."""
    order = np.argsort(speeds, axis=1)
    rising = np.take_along_axis(speeds, order, axis=1)
    for j in range(1, speeds.shape[1]):
        near = rising[:, j] <= rising[:, j - 1] * (1.0 + _APART)
        rising[near, j] = rising[near, j - 1]
    apart = np.empty_like(speeds)
    np.put_along_axis(apart, order, rising, axis=1)
    return apart


def _positive(what: str, values: Floats) -> None:
    bad: Indices = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        raise InputError(what, float(values[bad[0]]), f"of row {bad[0]} must be above 0")


def _check_tree(tree: ShareNode, rows: int) -> None:
    seen: list[int] = []
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if not node.children:
            raise InputError("tree", node.policy, "a node without children cannot pass its share on")
        if not (np.isfinite(node.weight) and node.weight > 0):
            raise InputError("tree", node.weight, "the weight of a node must be above 0")
        nodes += [child for child in node.children if isinstance(child, ShareNode)]
        seen += [child for child in node.children if not isinstance(child, ShareNode)]
    if sorted(seen) != list(range(rows)):
        raise InputError("tree", len(seen), f"must name each of the {rows} rows once")
