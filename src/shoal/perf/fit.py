"""Fit of a `StepFit` to measured step times, with the least error in logarithms.

The fit minimises the mean squared log error of passes plus that of synchronised steps with equal weights, so that
neither many GPUs nor long steps count more than few and short ones. ``StepFit.error`` is the root of half of it. The
search is Levenberg and Marquardt's with analytic derivatives, from several starts at once and within bounds: times not
below 0, γ from 1 to 10. It draws no random numbers: equal measurements give equal fits.

What was not measured is assumed to scale perfectly, so that a scheduler tries it: no synchronisation cost until two
GPUs were measured on one node, none over nodes until two nodes were; no further cost for each GPU at a distance until
two different numbers of GPUs were measured there; racks cost what nodes do until two racks were measured. (The paper's
second rule prints *local* where it means *node*.) With one batch size measured, half of a pass is its fixed cost.

References: Qiao et al., OSDI 2021, §4.1 (fitting, exploration); Jayaram Subramanya et al., SOSP 2023, §3.2 (from one
kind of GPU to another).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.errors import InputError
from shoal.core.goodput import StepFit
from shoal.core.topology import Locality

_STARTS = (1.0, 0.6, 0.3, 0.1)
"""1/γ of the starts: the one parameter in which the error has several minima. Times follow from it."""

_BESIDE = 0.3
"""1/γ of a start that is tried beside an earlier fit, in case another minimum is now the lowest."""

_LEAST_OVERLAP = 0.1
"""1/γ at γ = 10."""

_TIE = 1e-9
"""Weight of (1 − 1/γ)² beside the squared error: decides between fits that explain the measurements equally well."""

_INDISTINGUISHABLE = 0.005
"""Fraction of a step below which synchronisation cannot be distinguished from noise; starts show at least this."""

_SETTLED = 1e-5
"""A search ends when a step lowers the squared error by less than this fraction."""

_EXACT = 1e-14
"""A squared error below this counts as none."""

_FAR_ABOVE = 3.0
"""Upper bound of every parameter as a multiple of the longest step, so that the search cannot diverge."""

_VANISHING = 1e-12
"""Replaces 0 in logarithms, as a fraction of the measured time."""

_MOST_ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Observation:
    """Mean times with ``local`` samples of a pass on each GPU.

    ``pass_seconds`` are those of a pass without synchronisation. ``step_seconds`` are those of a pass with its
    synchronisation: the last pass of a step with accumulation, the whole step without.
    """

    gpus: int
    nodes: int
    locality: Locality
    local: int
    pass_seconds: float
    step_seconds: float


def fitted(observations: Sequence[Observation], most_local: int, start: StepFit | None = None) -> StepFit:
    """Fit the step times that best explain these measurements on one kind of GPU.

    ``start`` is an earlier fit of the same job: from there and two more starts the search takes half as long, and
    nearly always finds as good a fit.
    """
    table = _checked(observations)
    problem = FitProblem.of(table)
    if start is None:
        upright = problem.guesses(_STARTS)
        starts = np.vstack((upright, problem.tilted(upright[1:])))
    else:
        fresh = problem.guesses((1.0 / start.gamma, _BESIDE))
        starts = np.vstack((problem.from_earlier(start, fresh[0]), fresh))
    found, squares = _search(problem, starts)
    gpus, nodes = int(table[:, 0].max()), int(table[:, 1].max())
    return problem.step_fit(found, most_local, gpus, nodes, float(np.sqrt(squares / 2.0)))


def carried_over(known: StepFit, speed: float, most_local: int) -> StepFit:
    """Step times on a kind without measurements: those of a known kind, divided by ``speed``.

    ``speed`` is this kind's rate over the known kind's on one GPU each. All times scale alike, so on N GPUs the rate
    is the known one's times ``speed``. Measurements on the other kind do not count as measurements of this one.
    """
    if not 0 < speed < float("inf"):
        raise InputError("speed", speed, "give one GPU's rate over the known kind's, above 0")
    compute, node, network, rack = _scaled((known.compute, known.node, known.network, known.rack), 1.0 / speed)
    return StepFit(compute, node, network, rack, known.gamma, most_local, error=known.error)


def completed(own: StepFit, known: StepFit, local: int) -> StepFit:
    """A fit measured on one GPU of its kind, with the synchronisation of a kind measured on more.

    Its own passes stay; synchronisation is scaled by the ratio of its passes to the known kind's over ``local``
    samples. So on N GPUs at ``local`` samples the rate is the known one's times the ratio of the rates on one GPU.
    """
    ratio = (own.compute[0] + own.compute[1] * local) / (known.compute[0] + known.compute[1] * local)
    node, network, rack = _scaled((known.node, known.network, known.rack), ratio)
    return replace(own, node=node, network=network, rack=rack, gamma=known.gamma)


def _scaled(pairs: Sequence[tuple[float, float]], factor: float) -> list[tuple[float, float]]:
    return [(fixed * factor, further * factor) for fixed, further in pairs]


def _checked(observations: Sequence[Observation]) -> Floats:
    """Rows of GPUs, nodes, distance, samples, pass and step seconds; an error names the first impossible value."""
    if not observations:
        raise InputError("observations", (), "a fit needs at least one measurement")
    table = np.array(
        [(o.gpus, o.nodes, o.locality, o.local, o.pass_seconds, o.step_seconds) for o in observations], np.float64
    )
    wrong = ~np.isfinite(table) | (table <= 0)
    wrong[:, 2] = (table[:, 2] > 0) != (table[:, 1] > 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        field = Observation.__slots__[column]
        hint = "two nodes or more are apart, one node is not" if field == "locality" else "must be above 0 and finite"
        raise InputError(f"observations[{row}].{field}", getattr(observations[row], field), hint)
    return table


@dataclass(frozen=True, slots=True)
class FitProblem:
    """A fitting problem: measurements, and the parameters that they determine.

    A parameter vector has one or two parameters of passes, then those of synchronisation, then 1/γ where there is any.
    ``passing`` and ``sync`` (measurements × parameters) give seconds when multiplied with them; ``slots`` says which
    of (α, β) of node, network and rack a column of ``sync`` is. ``single`` is the only batch size measured, if one.
    """

    passing: Floats
    sync: Floats
    slots: Indices
    single: float | None
    pass_log: Floats
    step_log: Floats

    @classmethod
    def of(cls, table: Floats) -> "FitProblem":
        """Return the problem of a table from `_checked`."""
        gpus, apart, local = table[:, 0], table[:, 2].astype(np.intp), table[:, 3]
        several = np.ptp(local) > 0
        ones = np.ones_like(local)
        columns, slots = [], []
        for distance in Locality:
            here = (apart == distance) & (gpus > 1)
            if here.any():
                columns.append(here * ones)
                slots.append(2 * distance)
            if here.any() and np.ptp(gpus[here]) > 0:
                columns.append(here * (gpus - 2.0))
                slots.append(2 * distance + 1)
        return cls(
            passing=np.stack((ones, local), axis=1) if several else ones[:, None],
            sync=np.stack(columns, axis=1) if columns else np.empty((len(table), 0)),
            slots=np.array(slots, np.intp),
            single=None if several else float(local[0]),
            pass_log=np.log(table[:, 4]),
            step_log=np.log(table[:, 5]),
        )

    def bounds(self) -> tuple[Floats, Floats]:
        """Bounds of each parameter: no time is below 0 or far above all measured ones."""
        times = self.passing.shape[1] + self.sync.shape[1]
        least, most = np.zeros(times), np.full(times, _FAR_ABOVE * np.exp(self.step_log.max()))
        if not self.sync.shape[1]:
            return least, most
        return np.append(least, _LEAST_OVERLAP), np.append(most, 1.0)

    def guesses(self, overlaps: Sequence[float]) -> Floats:
        """Starting parameters, one row for each given 1/γ, fitted distance by distance."""
        passing, step = np.exp(self.pass_log), np.exp(self.step_log)
        passes = _nonnegative_weights(self.passing, passing[None])
        if not self.sync.shape[1]:
            return passes
        overlap = np.array(overlaps)[:, None]
        sync = step * (1.0 - np.minimum(passing / step, 1.0 - _INDISTINGUISHABLE) ** (1.0 / overlap)) ** overlap
        parameters = [np.repeat(passes, len(overlap), axis=0)]
        for distance in sorted({slot // 2 for slot in self.slots.tolist()}):
            mine = self.sync[:, self.slots // 2 == distance]
            here = mine[:, 0] > 0
            parameters.append(_nonnegative_weights(mine[here], sync[:, here]))
        return np.concatenate((*parameters, overlap), axis=1)

    def tilted(self, at: Floats) -> Floats:
        """Return these parameters with a synchronisation cost of 0 on two GPUs that grows with the number of GPUs."""
        moved = at.copy()
        width = self.passing.shape[1]
        for column in np.flatnonzero(self.slots % 2).tolist():
            fixed, further = width + column - 1, width + column
            moved[:, further] += moved[:, fixed] * self.sync[:, column - 1].sum() / self.sync[:, column].sum()
            moved[:, fixed] = 0.0
        return moved

    def from_earlier(self, fit: StepFit, fresh: Floats) -> Floats:
        """The parameters of an earlier fit, and fresh ones where it has none or 0."""
        passing = fit.compute if self.single is None else (fit.compute[0] + fit.compute[1] * self.single,)
        sync = np.array((*fit.node, *fit.network, *fit.rack))[self.slots]
        known = np.concatenate((passing, sync, fresh[len(passing) + len(sync) :]))
        return np.where(known > 0, known, fresh)

    def step_fit(self, found: Floats, most_local: int, gpus: int, nodes: int, error: float) -> StepFit:
        """The fit with these parameters, and with those that were not measured filled in."""
        width = self.passing.shape[1]
        if self.single is None:
            compute = (float(found[0]), float(found[1]))
        else:
            compute = (float(found[0]) / 2.0, float(found[0]) / 2.0 / self.single)
        pairs = np.zeros(6)
        pairs[self.slots] = found[width : width + len(self.slots)]
        node, network, rack = ((float(a), float(b)) for a, b in pairs.reshape(3, 2))
        if 2 * Locality.CROSS_RACK not in self.slots:
            rack = network
        gamma = 1.0 / float(found[-1]) if len(self.slots) else 1.0
        return StepFit(compute, node, network, rack, gamma, most_local, gpus, nodes, error)

    def errors(self, at: Floats) -> tuple[Floats, Floats]:
        """Return log errors of passes and steps (and of the tie-breaker), with derivatives; a row per parameter vector.

        With w the share of T_sync^γ in the sum, the derivatives of log T by log T_pass, log T_sync and 1/γ are 1 − w, w
        and the entropy of w.
        """
        count, width, syncs = len(self.pass_log), self.passing.shape[1], self.sync.shape[1]
        scale = 1.0 / np.sqrt(count)
        passing = np.maximum(at[:, :width] @ self.passing.T, _VANISHING * np.exp(self.pass_log))
        pass_log = np.log(passing)
        errors = np.zeros((len(at), 2 * count + 1))
        slopes = np.zeros((len(at), 2 * count + 1, at.shape[1]))
        errors[:, :count] = pass_log - self.pass_log
        by_pass = self.passing[None] / passing[:, :, None]
        slopes[:, :count, :width] = by_pass
        if not syncs:
            errors[:, count:-1] = pass_log - self.step_log
            slopes[:, count:-1, :width] = by_pass
            return errors * scale, slopes * scale
        overlap = at[:, -1:]
        sync = np.maximum(at[:, width:-1] @ self.sync.T, _VANISHING * passing)
        lead = (np.log(sync) - pass_log) / overlap
        tail = np.exp(-np.abs(lead))
        rest = np.log1p(tail)
        share = np.where(lead > 0, 1.0, tail) / (1.0 + tail)
        errors[:, count:-1] = pass_log + overlap * (np.maximum(lead, 0.0) + rest) - self.step_log
        slopes[:, count:-1, :width] = by_pass * (1.0 - share)[:, :, None]
        slopes[:, count:-1, width:-1] = self.sync[None] * (share / sync)[:, :, None]
        slopes[:, count:-1, -1] = np.maximum(lead, 0.0) + rest - share * lead
        errors *= scale
        slopes *= scale
        errors[:, -1] = np.sqrt(_TIE) * (1.0 - at[:, -1])
        slopes[:, -1, -1] = -np.sqrt(_TIE)
        return errors, slopes


def _nonnegative_weights(columns: Floats, seconds: Floats) -> Floats:
    """Return non-negative weights of the columns with the least relative error to ``seconds``, a row per problem."""
    relative = columns.T / seconds[:, None, :]
    sums, squares = relative.sum(axis=2), (relative**2).sum(axis=2)
    alone = sums / squares
    if columns.shape[1] == 1:
        return np.asarray(alone)
    mixed = (relative[:, 0] * relative[:, 1]).sum(axis=1, keepdims=True)
    apart = np.maximum(squares.prod(axis=1, keepdims=True) - mixed**2, np.finfo(np.float64).tiny)
    both = (sums * squares[:, ::-1] - mixed * sums[:, ::-1]) / apart
    # If a weight would be negative, only the column that fits the times better is used.
    nearer = np.argmax(sums * alone, axis=1)[:, None] == np.arange(2)
    return np.where(np.all(both > 0, axis=1, keepdims=True), both, np.where(nearer, alone, 0.0))


def _search(problem: FitProblem, at: Floats) -> tuple[Floats, float]:
    """The best parameters reached from these starts, and the sum of their mean squared errors of passes and steps."""
    least, most = problem.bounds()
    at = _within(at, least, most)
    errors, slopes = problem.errors(at)
    cost = (errors**2).sum(axis=1)
    hessian, gradient = _normal_equations(errors, slopes)
    damping = np.full(len(at), 1e-3)
    best, least_cost = at[cost.argmin()].copy(), float(cost.min())
    for _ in range(_MOST_ROUNDS):
        trial = _within(at + _step(at, hessian, gradient, damping, least, most), least, most)
        predicted = 2.0 * np.abs((at - trial) * gradient).sum(axis=1)
        errors, slopes = problem.errors(trial)
        reached = (errors**2).sum(axis=1)
        gained = cost - reached
        better = gained > 0
        going = np.where(better, gained, predicted) > _SETTLED * cost
        if better.all():
            at, cost = trial, reached
            hessian, gradient = _normal_equations(errors, slopes)
        elif better.any():
            at[better], cost[better] = trial[better], reached[better]
            hessian[better], gradient[better] = _normal_equations(errors[better], slopes[better])
        damping = np.where(better, np.maximum(damping * 0.2, 1e-10), damping * 4.0)
        if cost.min() < least_cost:
            best, least_cost = at[cost.argmin()].copy(), float(cost.min())
        going &= (damping < 1e6) & (cost > _EXACT)
        if not going.any():
            break
        if not going.all():
            at, cost, damping = at[going], cost[going], damping[going]
            hessian, gradient = hessian[going], gradient[going]
    tie = _TIE * (1.0 - best[-1]) ** 2 if problem.sync.shape[1] else 0.0
    return best, max(least_cost - tie, 0.0)


def _within(at: Floats, least: Floats, most: Floats) -> Floats:
    return np.minimum(np.maximum(at, least), most)


def _normal_equations(errors: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """Return Gauss's approximation of half the Hessian of the squared errors, and half their gradient, by start."""
    transposed = slopes.transpose(0, 2, 1)
    return transposed @ slopes, (transposed @ errors[:, :, None])[:, :, 0]


def _step(at: Floats, hessian: Floats, gradient: Floats, damping: Floats, least: Floats, most: Floats) -> Floats:
    """Return Marquardt's step for each start; a parameter without effect, or at a bound it would leave, stays."""
    size = np.sqrt(hessian.diagonal(axis1=1, axis2=2))
    free = (size > 0) & ~((at <= least) & (gradient > 0)) & ~((at >= most) & (gradient < 0))
    unit = np.divide(1.0, size, out=np.zeros(size.shape), where=free)
    system = hessian * unit[:, :, None] * unit[:, None, :]
    count, width = at.shape
    system.reshape(count, -1)[:, :: width + 1] += np.where(free, damping[:, None], 1.0)  # the diagonals
    return np.asarray(unit * np.linalg.solve(system, -(gradient * unit)[:, :, None])[:, :, 0])
