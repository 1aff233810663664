"""The speeds that policies see: those of the catalogue (`ProfiledModel`), or only measured ones (`OnlineModel`).

Both are pure and cache their answers; every array they return is read-only and may be the same object each time. Rates
are work per second in the job's own unit.

A `BatchSetting` is in samples of the whole gang; for a model whose batch sizes are per GPU it is divided by the GPUs,
and the profile decides how it is accumulated. A job's ``batch_size`` is in its model's unit: per GPU or whole gang.
"""

import math
from collections.abc import Sequence

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchSetting, JobSpec
from shoal.core.snapshot import Estimate, JobView, Measurement
from shoal.core.topology import Locality, Placement, Topology
from shoal.perf.catalog import TIME_SLICED, Catalog
from shoal.perf.measured_profile import MeasuredProfile
from shoal.perf.profile import LinearProfile, Profile, ScalingProfile

EXTRAPOLATED_SPREAD = 0.5
"""Relative error of a rate scaled from a measurement on other seats: a factor of about two either way is usual."""

UNKNOWN_SPREAD = 1.0
"""Relative error of a rate without any measurement."""


class ProfiledModel:
    """Rates from the catalogue; a job without a model runs by its declared run time, linear in its GPUs.

    A job whose model the catalogue does not know is an ``InputError`` that suggests the nearest names.
    """

    def __init__(self, topology: Topology, catalog: Catalog) -> None:
        self.topology = topology
        self.catalog = catalog
        self._speeds: dict[tuple[str | None, int | None, int, tuple[str, ...] | None, float], Floats] = {}
        self._curves: dict[tuple[str | None, int | None, int, float, int, str], Floats] = {}
        self._rates: dict[tuple[str | None, int | None, int, float, str, int, Locality], Estimate] = {}

    def profile(self, spec: JobSpec) -> Profile:
        """The profile of a job."""
        return LinearProfile(spec.gpus) if spec.model is None else self.catalog.profile(spec.model)

    def rate(self, job: JobView, placement: Placement, batch: BatchSetting | None = None) -> Estimate:
        """The rate on exactly these seats; 0 on a kind the job does not allow."""
        spec = job.spec
        kind = self.topology.kinds[self.topology.kind_of(placement)]
        if not _allowed(spec, kind):
            return Estimate(0.0, "profiled")
        gpus = placement.gpus
        size = job.batch_size if batch is None else _batch_of(self.profile(spec), batch, gpus)
        key = (spec.model, size, spec.gpus, spec.speed, kind, gpus, self.topology.locality(placement))
        found = self._rates.get(key)
        if found is None:
            profile = self.profile(spec)
            rate = profile.rate(kind, gpus, key[-1], size) * spec.speed
            found = self._rates[key] = Estimate(rate, "profiled", _spread(profile, kind))
        return found

    def speeds(self, spec: JobSpec, batch_size: int | None = None) -> Floats:
        """Return, by kind, the rate of the requested gang at this or its declared batch size, on one node if possible.

        0 where the job does not allow the kind, there is no figure, or the cluster has too few GPUs of it.
        """
        size = batch_size or spec.batch_size
        key = (spec.model, size, spec.gpus, spec.kinds, spec.speed)
        found = self._speeds.get(key)
        if found is None:
            profile = self.profile(spec)
            found = self._speeds[key] = _sealed(
                [
                    self._packed_rate(profile, k, spec.gpus, size) * spec.speed if _allowed(spec, kind) else 0.0
                    for k, kind in enumerate(self.topology.kinds)
                ]
            )
        return found

    def curve(self, job: JobView, kind: str) -> Floats:
        """By GPUs from 0 to the job's most: the rate at its present batch size, on one node as long as one will do.

        0 beyond the GPUs the cluster has of this kind, and throughout on a kind the job does not allow.
        """
        spec, most = job.spec, max(job.spec.max_gpus, 1)
        if not _allowed(spec, kind):
            return _sealed([0.0] * (most + 1))
        key = (spec.model, job.batch_size, spec.gpus, spec.speed, most, kind)
        found = self._curves.get(key)
        if found is None:
            profile, k = self.profile(spec), self.topology.kind_index[kind]
            rates = [self._packed_rate(profile, k, gpus, job.batch_size) * spec.speed for gpus in range(1, most + 1)]
            found = self._curves[key] = _sealed([0.0, *rates])
        return found

    def colocated(self, a: JobView, b: JobView) -> tuple[float, float]:
        """The fractions of their rates that two jobs keep on shared GPUs, as measured, else by taking turns."""
        gpus = max(a.spec.gpus, b.spec.gpus)
        return self.catalog.colocated(a.spec.model, a.batch_size, b.spec.model, b.batch_size, gpus)

    def goodput(self, job: JobView) -> GoodputReport | None:
        """The catalogue's report at the job's present progress; None without figures for other batch sizes.

        All figures count as measured, so that no number of GPUs has to be explored first.
        """
        profile = self.profile(job.spec)
        if not isinstance(profile, ScalingProfile | MeasuredProfile):
            return None
        size = job.batch_size or profile.initial_batch
        done = min(job.done / (job.spec.work or profile.work), 1.0)
        return GoodputReport(
            fits=profile.fits(),
            noise=profile.noise_scale(done, size),
            noise_batch=size,
            seen_gpus=self.topology.total_gpus,
            batch=BatchSetting(size),
        )

    def on(self, cluster: Topology) -> "ProfiledModel":
        """Return the model for another cluster."""
        return ProfiledModel(cluster, self.catalog)

    def _packed_rate(self, profile: Profile, kind: int, gpus: int, batch_size: int | None) -> float:
        if gpus > self.topology.installed[kind]:
            return 0.0
        return profile.rate(self.topology.kinds[kind], gpus, _best_locality(self.topology, kind, gpus), batch_size)


class OnlineModel:
    """Rates measured on the job itself, scaled where necessary; nothing is declared.

    A rate measured in the same setting is returned as it is (basis ``measured``). Otherwise the nearest measurement
    (same kind first, then closest in GPUs, distance and batch size) is scaled by the number of GPUs (``extrapolated``).
    Without any, the requested gang is assumed to do one unit of work per second (``unknown``): true for a job without a
    model, whose unit is seconds of that gang, and for others a scale that cannot be compared between jobs.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._speeds: dict[tuple[int, tuple[str, ...] | None], Floats] = {}
        self._unmeasured: dict[tuple[int, int, int], Floats] = {}
        """By GPUs of the requested gang, most GPUs and kind: the curve of a job of which nothing was measured."""

    def rate(self, job: JobView, placement: Placement, batch: BatchSetting | None = None) -> Estimate:
        """The rate on exactly these seats; 0 on a kind the job does not allow.

        A batch setting is compared with measured batch sizes without conversion.
        """
        kind = self.topology.kind_of(placement)
        if not _allowed(job.spec, self.topology.kinds[kind]):
            return Estimate(0.0, "unknown")
        size = job.batch_size if batch is None else batch.size
        seats = Measurement(kind, placement.gpus, self.topology.locality(placement), size or 0, 0.0)
        return _from_measured(job.spec, job.measured, seats)

    def speeds(self, spec: JobSpec, batch_size: int | None = None) -> Floats:
        """By kind: 1 where the requested gang may run and fits, else 0, since nothing is measured yet."""
        key = (spec.gpus, spec.kinds)
        found = self._speeds.get(key)
        if found is None:
            installed = zip(self.topology.kinds, self.topology.installed, strict=True)
            found = _sealed([float(_allowed(spec, kind) and spec.gpus <= gpus) for kind, gpus in installed])
            self._speeds[key] = found
        return found

    def curve(self, job: JobView, kind: str) -> Floats:
        """By GPUs from 0 to the job's most: the rate as measured, else scaled from the nearest measurement."""
        most, k = max(job.spec.max_gpus, 1), self.topology.kind_index[kind]
        measured = job.measured
        if not measured and _allowed(job.spec, kind):
            key = (job.spec.gpus, most, k)
            found = self._unmeasured.get(key)
            if found is None:
                found = self._unmeasured[key] = self._curve(job, most, k, ())
            return found
        return self._curve(job, most, k, measured)

    def _curve(self, job: JobView, most: int, k: int, measured: Sequence[Measurement]) -> Floats:
        rates = [0.0] * (most + 1)
        if _allowed(job.spec, self.topology.kinds[k]):
            size, reach = job.batch_size or 0, min(most, self.topology.installed[k])
            known = [m for m in measured if m.rate > 0]
            if len(known) == 1:  # as `_from_measured`, at once
                one = known[0]
                rates[1 : reach + 1] = [one.rate * gpus / one.gpus for gpus in range(1, reach + 1)]
                same = Measurement(k, one.gpus, _best_locality(self.topology, k, one.gpus), size, 0.0)
                if one.gpus <= reach and _distance(one, same) == (False, 0.0, 0, 0.0):
                    rates[one.gpus] = one.rate
                return _sealed(rates)
            for gpus in range(1, reach + 1):
                seats = Measurement(k, gpus, _best_locality(self.topology, k, gpus), size, 0.0)
                rates[gpus] = _from_measured(job.spec, known, seats).value
        return _sealed(rates)

    def colocated(self, a: JobView, b: JobView) -> tuple[float, float]:
        """Half of their rates each: pairs are not measured, so they are assumed to take turns."""
        return TIME_SLICED

    def goodput(self, job: JobView) -> GoodputReport | None:
        """The job's own last report."""
        return job.report

    def on(self, cluster: Topology) -> "OnlineModel":
        """Return the model for another cluster."""
        return OnlineModel(cluster)


def _from_measured(spec: JobSpec, measured: Sequence[Measurement], seats: Measurement) -> Estimate:
    known = [m for m in measured if m.rate > 0]
    if not known:
        return Estimate(seats.gpus / spec.gpus, "unknown", UNKNOWN_SPREAD)
    # min keeps the first of equals, and measurements come latest first.
    near = min(known, key=lambda m: _distance(m, seats))
    if _distance(near, seats) == (False, 0.0, 0, 0.0):
        return Estimate(near.rate, "measured")
    return Estimate(near.rate * seats.gpus / near.gpus, "extrapolated", EXTRAPOLATED_SPREAD)


def _distance(m: Measurement, seats: Measurement) -> tuple[bool, float, int, float]:
    comparable = m.batch_size > 0 and seats.batch_size > 0
    batch = abs(math.log2(m.batch_size / seats.batch_size)) if comparable else 0.0
    return m.kind != seats.kind, abs(math.log2(m.gpus / seats.gpus)), abs(m.locality - seats.locality), batch


def _allowed(spec: JobSpec, kind: str) -> bool:
    return spec.kinds is None or kind in spec.kinds


def _batch_of(profile: Profile, batch: BatchSetting, gpus: int) -> int:
    return math.ceil(batch.size / gpus) if profile.per_gpu_batch else batch.size


def _spread(profile: Profile, kind: str) -> float:
    """Relative error of a rate: that of the fit for fitted step times, else 0."""
    return profile.times[kind].error if isinstance(profile, ScalingProfile) and kind in profile.times else 0.0


def _best_locality(topology: Topology, kind: int, gpus: int) -> Locality:
    return Locality.SAME_NODE if gpus <= topology.node_size[kind] else Locality.CROSS_NODE


def _sealed(rates: Sequence[float]) -> Floats:
    array = np.array(rates, dtype=np.float64)
    array.flags.writeable = False
    return array
