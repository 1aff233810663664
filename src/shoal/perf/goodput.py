"""Goodput of a job in effective samples per second by number of GPUs, and the batch with the highest goodput.

A step of R GPUs, each with s passes whose gradients are only added up and one more that is synchronised, all over m
samples, has the batch M = R·m·(s + 1) and takes s·T_pass + (T_pass^γ + T_sync^γ)^(1/γ) seconds. Goodput is M over that
time, times the statistical efficiency (φ + M₀)/(φ + M).

The batch found is the best of whole m and s. For a given s, 1/goodput in u = 1/m is φ·T/m + K·T up to a factor
(K = M/m); T is convex in m and T/m a norm of two lines in u, so both terms are convex in u, goodput has one peak in m,
and the best whole m is next to it. For given samples on each GPU T never falls when s rises, so beyond the best s of
the continuous problem the reachable goodput only falls.

References: Qiao et al., OSDI 2021, §3 and eq. 6, 11, 13.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import AnyInts, Flags, Floats, Indices, Int64s
from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError
from shoal.core.goodput import StepFit
from shoal.perf.one_batch import BatchSearch, OneCell, best_of_one

_NOISIEST = 1e15
"""Upper limit on noise scales, at which every batch is as efficient as the initial one; keeps sums exact."""

_TINY = 1e-100
"""Replaces 0 in logarithms and quotients."""

_SETTLED = 1e-3
"""The search ends after a step in log m below this, which leaves goodput within 1e-6 of its flat peak."""

_ROUNDING = 1.0 + 1e-6
"""Factor by which a peak found so may fall short of the true one."""

_MOST_STEPS = 40
"""Newton's method takes three or four steps; bisection alone would take this many."""

_MOST_TRIED = 64
"""Values of s tried for one allocation; the first or second is nearly always the best."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best batch for each allocation; all arrays are 0 where the limits allow no batch.

    Goodput in effective samples per second, samples of a pass on each GPU (m), and passes added up before the
    synchronised one (s).
    """

    goodput: Floats
    local: Int64s
    accumulation: Int64s


def fixed(batch_size: int) -> BatchLimits:
    """Limits of a job that is not adaptive: one batch size, at which its efficiency is 1."""
    return BatchLimits(batch_size, batch_size, 1, batch_size)


def efficiency(noise: Floats | float, initial: AnyInts | int, batch: AnyInts | int) -> Floats:
    """Effective samples per sample at this batch size; 1 at the initial batch and in (0, 1] above it.

    ``noise`` is the gradient noise scale φ in samples, at least 0.
    """
    scale = np.minimum(np.asarray(noise, np.float64), _NOISIEST)
    return np.asarray((scale + initial) / (scale + batch), np.float64)


def sync_seconds(fit: StepFit, gpus: AnyInts | int, locality: AnyInts | int) -> Floats:
    """Seconds of synchronisation of a step if none of it overlapped with computation; 0 on one GPU."""
    return _sync(np.array((fit.node, fit.network, fit.rack))[np.asarray(locality)], np.asarray(gpus))


def _sync(pairs: Floats, gpus: AnyInts) -> Floats:
    return np.where(gpus < 2, 0.0, pairs[..., 0] + pairs[..., 1] * (gpus - 2))


def iteration_seconds(
    fit: StepFit, local: AnyInts | int, accumulation: AnyInts | int, gpus: AnyInts | int, locality: AnyInts | int
) -> Floats:
    """Seconds of one optimizer step; without accumulation from the longer of pass and synchronisation to their sum."""
    passing = np.asarray(fit.compute[0] + fit.compute[1] * np.asarray(local, np.float64))
    syncing = sync_seconds(fit, gpus, locality)
    return accumulation * passing + _overlapped(passing, syncing, np.asarray(fit.gamma))


def _overlapped(a: Floats, b: Floats, gamma: Floats) -> Floats:
    """(a^γ + b^γ)^(1/γ), without overflow."""
    longer, shorter = np.maximum(a, b), np.minimum(a, b)
    share = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return np.asarray(longer * np.power(1.0 + np.power(share, gamma), 1.0 / gamma))


def best(fit: StepFit, limits: BatchLimits, noise: float, gpus: AnyInts, locality: AnyInts) -> Tuned:
    """The best batch of one job within its limits, for each allocation given by its number of GPUs and their distance.

    The best of all whole m and s, unless more than 64 values of s would have to be tried, as where a pass has next to
    no fixed cost; then at most a few percent below it. A job whose limits allow one batch size keeps it, split as
    evenly as possible; the GPU with the most samples determines the step time.
    """
    if np.size(gpus) == 1 and limits.initial < limits.most and noise >= 0:
        one = _alone(fit, limits, noise, int(np.asarray(gpus).item()), int(np.asarray(locality).item()))
        if one is not None:
            return one
    found = _tuned((fit,), (limits,), np.array([noise]), gpus, locality)
    return Tuned(found.goodput[0], found.local[0], found.accumulation[0])


def _alone(fit: StepFit, limits: BatchLimits, noise: float, gpus: int, locality: int) -> Tuned | None:
    """Return the best batch for one allocation, by the search in plain floats; None where its numbers exceed floats."""
    if gpus < 1:
        return None
    pair = (fit.node, fit.network, fit.rack)[locality]
    sync = pair[0] + pair[1] * (gpus - 2) if gpus > 1 else 0.0
    most_local = min(fit.most_local, limits.most_local)
    bounds = (limits.initial, limits.most, limits.least_local, most_local)
    cell = OneCell(*fit.compute, sync, fit.gamma, min(noise, _NOISIEST), gpus, *bounds)
    try:
        found = best_of_one(cell, BatchSearch(_TINY, _SETTLED, _ROUNDING, _MOST_STEPS, _MOST_TRIED))
    except (ArithmeticError, ValueError):
        return None
    return Tuned(np.array([found[0]]), np.array([int(found[1])]), np.array([int(found[2])]))


def best_of_many(
    fits: Sequence[StepFit], limits: Sequence[BatchLimits], noises: Floats, gpus: AnyInts, locality: AnyInts
) -> Floats:
    """The goodput of ``best`` (jobs × allocations) for many jobs over the same allocations.

    Answers are kept by job and allocation: from one decision to the next only the jobs that report have other figures,
    and few allocations are new to a job.
    """
    count, apart = np.broadcast_arrays(np.asarray(gpus, np.int64), np.asarray(locality, np.int64))
    if len(_kept) > _MOST_KEPT:
        _kept.clear()
    places = list(zip(count.tolist(), apart.tolist(), strict=True))
    every = set(places)
    jobs = list(zip(fits, limits, noises.tolist(), strict=True))
    known = [_kept.setdefault(job, {}) for job in jobs]
    missing = [i for i, found in enumerate(known) if not found.keys() >= every]
    if missing:
        new = sorted({place for i in missing for place in every if place not in known[i]})
        at = np.array(new, np.int64)
        wanted = np.array([[place not in known[i] for place in new] for i in missing])
        of = [fits[i] for i in missing], [limits[i] for i in missing], noises[missing]
        rows = _tuned(*of, at[:, 0], at[:, 1], wanted).goodput.tolist()
        for i, row in zip(missing, rows, strict=True):
            known[i].update({place: rate for place, rate in zip(new, row, strict=True) if place not in known[i]})
    return np.array([[found[place] for place in places] for found in known]).reshape(len(jobs), len(places))


_kept: dict[tuple[StepFit, BatchLimits, float], dict[tuple[int, int], float]] = {}
"""By job its goodput by GPUs and their distance."""
_MOST_KEPT = 20_000
"""Jobs whose goodputs are kept, a few kilobytes each."""


@dataclass(frozen=True, slots=True)
class _Cells:
    """Columns of step times and limits; each cell is one job on one allocation."""

    per_pass: Floats
    per_sample: Floats
    sync: Floats
    gamma: Floats
    noise: Floats
    gpus: Floats
    initial: Floats
    most: Floats
    least_local: Floats
    most_local: Floats

    def take(self, at: Indices) -> "_Cells":
        """A selection of the cells."""
        return _Cells(*(getattr(self, name)[at] for name in self.__slots__))

    def seconds(self, local: Floats, accumulation: Floats) -> Floats:
        """Seconds of a step."""
        passing = self.per_pass + self.per_sample * local
        return np.asarray(accumulation * passing + _overlapped(passing, self.sync, self.gamma))

    def goodput(self, local: Floats, accumulation: Floats) -> Floats:
        """Effective samples per second, whether within the limits or not."""
        batch = self.gpus * local * (accumulation + 1.0)
        raw = batch / self.seconds(local, accumulation)
        return np.asarray(raw * (self.noise + self.initial) / (self.noise + batch))


def _tuned(
    fits: Sequence[StepFit],
    limits: Sequence[BatchLimits],
    noises: Floats,
    gpus: AnyInts,
    locality: AnyInts,
    wanted: Flags | None = None,
) -> Tuned:
    """The best batch of every job on every allocation, or on the ``wanted`` ones (jobs × allocations)."""
    count, apart = np.broadcast_arrays(np.asarray(gpus, np.int64), np.asarray(locality, np.int64))
    cells = _cells(fits, limits, np.asarray(noises, np.float64), count, apart)
    goodput, local, accumulation = np.zeros((3, len(cells.gpus)))
    there, one_size = cells.gpus >= 1, cells.initial >= cells.most
    if wanted is not None:
        there &= wanted.ravel()
    kept, free = np.flatnonzero(there & one_size), np.flatnonzero(there & ~one_size)
    if len(kept):
        goodput[kept], local[kept], accumulation[kept] = _split(cells.take(kept))
    if len(free):
        goodput[free], local[free], accumulation[free] = _peaks(cells.take(free))
    shape = (len(fits), len(count))
    whole = (column.astype(np.int64).reshape(shape) for column in (local, accumulation))
    return Tuned(goodput.reshape(shape), *whole)


def _cells(
    fits: Sequence[StepFit], limits: Sequence[BatchLimits], noises: Floats, gpus: AnyInts, apart: AnyInts
) -> _Cells:
    """The cells of all jobs on all allocations, job by job."""
    if not np.all(noises >= 0):
        raise InputError("noise", float(noises[~(noises >= 0)][0]), "a noise scale is a number of samples, at least 0")
    fitted = np.array([(*f.compute, f.gamma, f.most_local, *f.node, *f.network, *f.rack) for f in fits], np.float64)
    limited = np.array([(k.initial, k.most, k.least_local, k.most_local) for k in limits], np.float64)
    pairs = fitted[:, 4:].reshape(-1, 3, 2)[:, apart]

    def wide(column: Floats) -> Floats:
        return np.repeat(column, len(gpus))

    return _Cells(
        per_pass=wide(fitted[:, 0]),
        per_sample=wide(fitted[:, 1]),
        sync=_sync(pairs, gpus).ravel(),
        gamma=wide(fitted[:, 2]),
        noise=wide(np.minimum(noises, _NOISIEST)),
        gpus=np.tile(gpus.astype(np.float64), len(fitted)),
        initial=wide(limited[:, 0]),
        most=wide(limited[:, 1]),
        least_local=wide(limited[:, 2]),
        most_local=wide(np.minimum(fitted[:, 3], limited[:, 3])),
    )


def _split(cells: _Cells) -> tuple[Floats, Floats, Floats]:
    """Goodput, m and s at a given total batch: the fewest passes that fit, each as small as possible."""
    share = np.ceil(cells.initial / cells.gpus)
    added = np.ceil(share / cells.most_local) - 1.0
    local = np.ceil(share / (added + 1.0))
    fits = (cells.gpus <= cells.initial) & (local >= cells.least_local)
    return (
        np.where(fits, cells.initial / cells.seconds(local, added), 0.0),
        np.where(fits, local, 0.0),
        np.where(fits, added, 0.0),
    )


def _peaks(cells: _Cells) -> tuple[Floats, Floats, Floats]:
    """Goodput, m and s of the best batch of each cell; 0 where none is allowed.

    From the best s of the continuous problem on, the reachable goodput falls as s rises, so the search ends with the
    first s that cannot exceed the goodput found.
    """
    wanted = _added_passes(cells)
    added, last_rise = np.floor(wanted), np.ceil(wanted)
    goodput, local, accumulation = np.zeros((3, len(added)))
    at = np.arange(len(added))
    for _ in range(_MOST_TRIED):
        samples, reached, bound = _peak(cells.take(at), added[at])
        better = reached > goodput[at]
        where = at[better]
        goodput[where], local[where], accumulation[where] = reached[better], samples[better], added[where]
        at = at[(bound > goodput[at]) | (added[at] < last_rise[at])]
        if not len(at):
            break
        added[at] += 1.0
    return goodput, local, accumulation


def _added_passes(cells: _Cells) -> Floats:
    """The best s of the continuous problem: passes are then full ones, and 1/goodput is convex in 1/(s + 1)."""
    passing = cells.per_pass + cells.per_sample * cells.most_local
    exposed = _overlapped(passing, cells.sync, cells.gamma) - passing
    full = cells.gpus * cells.most_local
    wanted = np.sqrt(exposed * cells.noise / (passing * full))
    return np.maximum(np.clip(wanted, cells.initial / full, cells.most / full) - 1.0, 0.0)


def _peak(cells: _Cells, added: Floats) -> tuple[Floats, Floats, Floats]:
    """The best whole m for a given s, its goodput, and an upper bound of the goodput at any larger s.

    Where the limits allow no whole m, the first two are 0. The bound holds from the best continuous s on: the same
    samples in one more pass take at least that pass's fixed cost longer, and more samples than fit here are too many.
    It is infinite where only more passes can satisfy the limits.
    """
    passes = cells.gpus * (added + 1.0)
    fewest, fullest = cells.initial / passes, cells.most / passes
    low, high = np.maximum(cells.least_local, fewest), np.minimum(cells.most_local, fullest)
    top = np.maximum(low, high)
    peak = _smooth_peak(cells, added, low, top)
    longest = cells.seconds(top, added)
    bound = cells.goodput(peak, added) * _ROUNDING * longest / (longest + cells.per_pass)
    bound = np.where(low <= high, bound, np.where(fewest > cells.most_local, np.inf, 0.0))
    least, most = np.ceil(low), np.floor(high)
    allowed, top = least <= most, np.maximum(least, most)
    lesser, greater = np.clip(np.floor(peak), least, top), np.clip(np.floor(peak) + 1.0, least, top)
    here, there = cells.goodput(lesser, added), cells.goodput(greater, added)
    samples, reached = np.where(there > here, greater, lesser), np.maximum(here, there)
    return np.where(allowed, samples, 0.0), np.where(allowed, reached, 0.0), bound


def _smooth_peak(cells: _Cells, added: Floats, low: Floats, high: Floats) -> Floats:
    """The m with the highest goodput between two bounds, not necessarily whole.

    With T replaced by its tangent A + B·m, the best m is √(φA/KB). This is a falling function of the point of contact,
    so the peak lies between any m and the m it gives. Newton's steps on their ratio are taken while they stay in that
    bracket and halve each time; where T bends too sharply for that, the bracket is halved.
    """
    least, most = np.log(low), np.log(high)
    at, last = most, np.full_like(most, np.inf)
    for _ in range(_MOST_STEPS):
        gap, slope = _tangent_gap(cells, added, at)
        reach = np.clip(at + gap, least, most)
        least, most = np.where(gap > 0, at, reach), np.where(gap > 0, reach, at)
        step = at - gap / slope
        steady = (step >= least) & (step <= most) & (np.abs(step - at) <= 0.5 * last)
        step = np.where(steady, step, (least + most) / 2)
        last = np.abs(step - at)
        at = step
        if last.max() < _SETTLED:
            break
    return np.asarray(np.exp(at))


def _tangent_gap(cells: _Cells, added: Floats, at: Floats) -> tuple[Floats, Floats]:
    """Log of the tangent's best m over this m, and its derivative by log m (at most −1)."""
    local = np.exp(at)
    passing = cells.per_pass + cells.per_sample * local
    with np.errstate(divide="ignore"):
        lead = cells.gamma * np.log(cells.sync / passing)
    tail = np.exp(-np.abs(lead))
    joint = np.maximum(passing, cells.sync) * np.power(1.0 + tail, 1.0 / cells.gamma)
    pass_weight = np.where(lead > 0, tail, 1.0) / (1.0 + tail)
    sync_weight = np.where(lead > 0, 1.0, tail) / (1.0 + tail)
    rise = np.maximum(cells.per_sample * (added + joint / passing * pass_weight), _TINY)
    # T − m·T′, in a form in which nothing cancels.
    start = np.maximum(added * cells.per_pass + joint * (sync_weight + pass_weight * cells.per_pass / passing), _TINY)
    bend = cells.per_sample**2 * (cells.gamma - 1.0) * joint / passing**2 * pass_weight * sync_weight
    noise = np.maximum(cells.noise, _TINY)
    gap = 0.5 * np.log(noise / (cells.gpus * (added + 1.0)) * (start / rise)) - at
    slope = -1.0 - 0.5 * local * bend * (local / start + 1.0 / rise)
    return gap, slope
