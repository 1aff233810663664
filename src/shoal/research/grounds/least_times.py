"""The least needs of every job of a workload, by its true speeds: the data of the bounds on all schedules.

The rate of a gang is that on as few nodes as hold it, since GPUs further apart are never faster in any profile; for a
model with measured steps it is the best rate of all measured seats. A job follows its owner's batch sizes, or, if its
batch size may be adapted, has at every stage of its training the best batch that its GPUs can hold, from the first
second on and chosen in knowledge of its true speed and gradient noise. Jobs that share a GPU are not considered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, log
from typing import TypeAlias

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.batch_limits import BatchLimits
from shoal.core.topology import Locality, Topology
from shoal.perf.batch_tuner import TICK
from shoal.perf.catalog import Catalog
from shoal.perf.goodput import best_of_many
from shoal.perf.measured_profile import MeasuredProfile
from shoal.perf.profile import LinearProfile, Profile, ScalingProfile
from shoal.sim.truth import Truth
from shoal.solve.schedule_bounds import LeastTimes
from shoal.workload.schema import Job

_STAGES = 20
"""Equal parts of the work of an adaptive job, in each of which the best noise scale counts for all of it."""

_RATIO = 1.05
"""Ratio of successive numbers of samples of a pass that are tried; ``_BETWEEN`` is how much better a number between two
of them may be."""

_BETWEEN = 1.002

_MOST_PASSES = 16


_Rates: TypeAlias = Sequence[Mapping[int, float]]
"""By kind: the rate by number of GPUs."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """By kind the least seconds and GPU-seconds of one unit of work; infinity where the job cannot run."""

    seconds: Floats
    area: Floats


def least_times(jobs: Sequence[Job], topology: Topology, catalog: Catalog, factors: Sequence[float]) -> LeastTimes:
    """The least needs of each job; ``factors`` are the ratios of true speeds to profiles."""
    table = _NeedsTable(topology, catalog)
    found = [table.of(job) for job in jobs]
    scale = np.array([job.work / factor for job, factor in zip(jobs, factors, strict=True)])[:, None]
    return LeastTimes(
        np.array([job.submitted for job in jobs]),
        scale * np.array([needs.seconds for needs in found]),
        scale * np.array([needs.area for needs in found]),
        np.array(topology.installed, dtype=np.float64),
    )


def true_factors(jobs: Sequence[Job], topology: Topology, catalog: Catalog, noise: float, seed: int) -> Sequence[float]:
    """The ratios of true speeds to profiles that a simulation of this seed draws."""
    return Truth.of(jobs, topology, catalog, noise=noise, seed=seed).factors


class _NeedsTable:
    """The needs of jobs by type: most jobs of a workload are of a few."""

    def __init__(self, topology: Topology, catalog: Catalog) -> None:
        self._topology, self._catalog = topology, catalog
        self._known: dict[tuple[object, ...], _Needs] = {}

    def of(self, job: Job) -> _Needs:
        """By kind the needs of one unit of the job's work."""
        limits = job.limits
        if limits is not None and job.adaptation is None:
            key = (job.model, job.batch_size, job.gpus, job.min_gpus, job.max_gpus, job.kinds, job.limits, job.work)
            return self._kept(key, lambda: self._adaptive(job, BatchLimits(*limits)))
        stretches = [(0.0, job.batch_size), *job.batch_schedule, (job.work, None)]
        parts = [((end - start) / job.work, size) for (start, size), (end, _) in pairwise(stretches)]
        return _together([(part, self._at(job, size)) for part, size in parts if part > 0.0])

    def _at(self, job: Job, size: int | None) -> _Needs:
        key = (job.model, size, job.gpus, job.min_gpus, job.max_gpus, job.kinds)
        return self._kept(key, lambda: _least(self._fixed_rates(job, size)))

    def _kept(self, key: tuple[object, ...], make: Callable[[], _Needs]) -> _Needs:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _profile(self, job: Job) -> Profile:
        return LinearProfile(job.gpus) if job.model is None else self._catalog.profile(job.model)

    def _sizes(self, job: Job, kind: int) -> range:
        """The numbers of GPUs of a kind that the job may have."""
        allowed = job.kinds is None or self._topology.kinds[kind] in job.kinds
        most = min(job.max_gpus or job.gpus, self._topology.installed[kind]) if allowed else 0
        return range(job.min_gpus or job.gpus, most + 1)

    def _near(self, kind: int, gpus: int) -> Locality:
        return Locality.SAME_NODE if gpus <= self._topology.node_size[kind] else Locality.CROSS_NODE

    def _fixed_rates(self, job: Job, size: int | None) -> _Rates:
        """By kind and number of GPUs the rate at a batch size."""
        profile = self._profile(job)
        found: list[Mapping[int, float]] = []
        for k, kind in enumerate(self._topology.kinds):
            if isinstance(profile, MeasuredProfile):
                found.append({g: profile.best_rate(kind, g, size) for g in self._sizes(job, k)})
            else:
                found.append({g: profile.rate(kind, g, self._near(k, g), size) for g in self._sizes(job, k)})
        return found

    def _adaptive(self, job: Job, limits: BatchLimits) -> _Needs:
        """The mean over all stages of the needs at the best batch of each, or at the owner's batch."""
        profile, fixed = self._profile(job), self._fixed_rates(job, job.batch_size)
        if not isinstance(profile, ScalingProfile | MeasuredProfile):
            return _least(fixed)
        tables = [self._adapted_rates(job, limits, profile, k) for k in range(len(self._topology.kinds))]
        quickest = max((float(rates.max()) for rates in tables if rates.size), default=0.0)
        lag = ceil(TICK * quickest * _STAGES / job.work) if quickest else 0
        needs = []
        for stage in range(_STAGES):
            best = [
                {
                    g: max(fixed[k][g], float(tables[k][max(stage - lag, 0) : stage + 1, at].max()))
                    for at, g in enumerate(self._sizes(job, k))
                }
                for k in range(len(tables))
            ]
            needs.append((1.0 / _STAGES, _least(best)))
        return _together(needs)

    def _adapted_rates(
        self, job: Job, limits: BatchLimits, profile: ScalingProfile | MeasuredProfile, kind: int
    ) -> Floats:
        """Stages × numbers of GPUs of a kind: the rate at the best batch."""
        name, sizes = self._topology.kinds[kind], self._sizes(job, kind)
        if not len(sizes) or name not in (profile.kinds or ()):
            return np.zeros((_STAGES, len(sizes)))
        if isinstance(profile, ScalingProfile):
            noises = _noises(profile, [limits.initial])[:, 0]
            apart = np.array([int(self._near(kind, g)) for g in sizes])
            fit = profile.times[name].fit()
            return best_of_many([fit] * _STAGES, [limits] * _STAGES, noises, np.array(sizes), apart)
        batches = np.unique(np.geomspace(limits.initial, limits.most, 64).round())
        table = _noises(profile, batches.astype(int).tolist())
        return np.column_stack([_measured_rates(profile, name, g, limits, batches, table) for g in sizes])


def _least(rates: _Rates) -> _Needs:
    """The least seconds and GPU-seconds over all numbers of GPUs, by kind."""
    seconds = [min((1.0 / rate for rate in row.values() if rate > 0.0), default=inf) for row in rates]
    area = [min((gpus / rate for gpus, rate in row.items() if rate > 0.0), default=inf) for row in rates]
    return _Needs(np.array(seconds), np.array(area))


def _together(parts: Sequence[tuple[float, _Needs]]) -> _Needs:
    """The needs of all of the work, whose parts have different needs.

    Each part counts with the least seconds in which any kind does it. On each kind a counted second needs at least the
    time and the GPU-seconds that it needs in the part that suits the kind best, so the bound holds for every division
    of the parts among kinds.
    """
    least = [part * float(needs.seconds.min()) for part, needs in parts]
    whole, found = sum(least), []
    for name in ("seconds", "area"):
        pairs = zip(parts, least, strict=True)
        figures = [part * getattr(needs, name) / own for (part, needs), own in pairs if np.isfinite(own)]
        found.append(whole * np.min(figures, axis=0) if figures else np.full(len(parts[0][1].seconds), inf))
    return _Needs(found[0], found[1])


def _noises(profile: ScalingProfile | MeasuredProfile, sizes: Sequence[int]) -> Floats:
    """Stages × batch sizes: the highest noise scale of a stage."""
    marks = np.linspace(0.0, 1.0, 6 * _STAGES + 1)
    if isinstance(profile, MeasuredProfile):  # constant in each epoch
        marks = np.union1d(marks, profile.noise.ends / profile.noise.ends[-1])
    stage = np.minimum((marks * _STAGES).astype(np.intp), _STAGES - 1)
    found = np.zeros((_STAGES, len(sizes)))
    for at, size in enumerate(sizes):
        noise = np.array([profile.noise_scale(mark, size) for mark in marks.tolist()])
        np.maximum.at(found[:, at], stage, noise)
        np.maximum.at(found[:, at], np.maximum(stage - (marks * _STAGES == stage), 0), noise)
    return found


def _measured_rates(
    profile: MeasuredProfile, kind: str, gpus: int, limits: BatchLimits, sizes: Floats, noises: Floats
) -> Floats:
    """By stage the rate at the best batch, by measured steps on the best seats."""
    most_local = min(profile.most_local(kind), limits.most_local)
    count = max(ceil(log(most_local / limits.least_local) / log(_RATIO)), 0) + 1
    local = np.geomspace(limits.least_local, max(most_local, limits.least_local), count)
    passing, step = profile.times[kind].least_seconds(gpus, local)
    passes = np.arange(_MOST_PASSES)[:, None]
    batch = gpus * local * (passes + 1)
    allowed = (batch >= limits.initial - gpus) & (batch <= limits.most)
    speed = np.where(allowed, batch / (step + passes * passing), 0.0)
    best = np.zeros(_STAGES)
    for stage in range(_STAGES):
        here = np.interp(batch, sizes, noises[stage])
        best[stage] = float((speed * (here + limits.initial) / (here + batch)).max()) * _BETWEEN
    return best
