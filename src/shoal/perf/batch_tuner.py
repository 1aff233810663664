"""Choice of a training job's batch size from its own measurements, for simulated jobs and for real ones alike.

A `BatchTuner` belongs to one job over all its incarnations. Once per `TICK` it takes a `Reading`: mean step times and
the gradient noise scale. It fits step times by kind of GPU, chooses the batch setting with the highest goodput, and
says whether the scheduler should get a new report. It knows nothing but its readings and, where given, the speed of one
GPU of each kind (`KindProbe`). It has no clock and draws no random numbers: equal readings give equal choices.

References: Qiao et al., OSDI 2021, §4.1 (PolluxAgent); Jayaram Subramanya et al., SOSP 2023, §3.2 (other kinds).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from shoal.core.batch_limits import BatchLimits
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchSetting
from shoal.core.topology import Locality
from shoal.core.units import Seconds
from shoal.perf.fit import Observation, carried_over, completed, fitted
from shoal.perf.goodput import best, iteration_seconds
from shoal.perf.profile import StepSeconds
from shoal.perf.timed_batches import Timed, best_timed, neighbour, range_of

TICK: Seconds = 30.0
"""Time between two readings (Pollux §4.1)."""

_REPORT_AT = 0.05
"""Relative change of the noise scale since the last report that is worth another report."""

_CHOOSE_AT = 0.1
"""Relative change of the noise scale since the last choice that is worth another one: the best batch size grows with
its square root."""

_SURPRISE = 0.03
"""A step time predicted with a smaller log error than this, or than twice the fit's own, causes no new fit."""

_SMOOTHING = 0.2
"""Weight of a new noisy reading in the average of the noise scale's logarithm."""


@dataclass(frozen=True, slots=True)
class KindProbe:
    """Speed of a job on one GPU of a kind: samples per second, and the most samples the GPU holds in one pass."""

    rate: float
    most_local: int


@dataclass(frozen=True, slots=True)
class JobGpus:
    """The GPUs of a job as its tuner sees them."""

    kind: str
    gpus: int
    nodes: int
    locality: Locality


@dataclass(frozen=True, slots=True)
class Reading:
    """Measurements since the last tick: mean seconds of a pass over ``local`` samples on each GPU, and the noise scale.

    ``batch`` is the total batch size in samples. ``times`` is None where no step was timed; ``noise``, in samples, is
    NaN where it was not measured.
    """

    local: int
    batch: int
    times: StepSeconds | None
    noise: float


class Update(Enum):
    """The effect of a reading on the scheduler: none, a new report, or a report that calls for a decision at once."""

    NONE = auto()
    REPORT = auto()
    DECIDE = auto()


@dataclass(slots=True)
class StepMean:
    """Mean logarithms of seconds over the readings of one configuration."""

    passing: float
    step: float
    count: int = 1

    def add(self, passing: float, step: float) -> None:
        """Include one more reading."""
        self.count += 1
        self.passing += (passing - self.passing) / self.count
        self.step += (step - self.step) / self.count


@dataclass(slots=True)
class BatchTuner:
    """Fitted step times, noise scale and batch setting of one job.

    ``probes`` has the kinds of GPU for which the speed on one GPU is known. ``noisy`` readings are averaged over ticks.
    With a ``probe`` above 0 the tuner also tries batches larger and smaller by that fraction than the best one it knows
    and chooses by what was timed. ``local`` is the samples of a pass on each GPU, ``accumulation`` the passes added up
    before the synchronised one.
    """

    limits: BatchLimits
    probes: Mapping[str, KindProbe] = field(default_factory=dict)
    probe: float = 0.0
    noisy: bool = False
    fits: dict[str, StepFit] = field(default_factory=dict)
    seen_gpus: int = 0
    noise: float = math.nan
    noise_batch: int = 0
    local: int = 0
    accumulation: int = 0
    means: dict[tuple[JobGpus, int], StepMean] = field(default_factory=dict)
    """By allocation and samples of a pass."""
    _at: JobGpus | None = None
    _chosen_noise: float = math.nan
    _reported_noise: float = math.nan

    def resume(self, report: GoodputReport) -> None:
        """Start from an earlier report: its fits and noise scale, without the measurements behind them."""
        self.fits = {kind: fit for kind, fit in report.fits if kind in self.probes}
        self.seen_gpus, self.noise, self.noise_batch = report.seen_gpus, report.noise, report.noise_batch
        self._reported_noise = report.noise

    def restore(self, means: Mapping[tuple[JobGpus, int], StepMean], noise: float, noise_batch: int) -> None:
        """Start from the measurements of earlier incarnations, and choose a batch for the present allocation."""
        self.means, self.noise, self.noise_batch = dict(means), noise, noise_batch
        self.seen_gpus = max((at.gpus for at, _ in means), default=0)
        for at, local in {at.kind: (at, local) for at, local in means}.values():
            self._refit(at.kind, local)
        if self._at is not None:
            self._choose(self._at)

    @property
    def batch(self) -> BatchSetting:
        """The setting to train with now: total batch size in samples, and added passes."""
        gpus = 0 if self._at is None else self._at.gpus
        return BatchSetting(gpus * self.local * (self.accumulation + 1), self.accumulation)

    @property
    def timed(self) -> bool:
        """Whether the present configuration was timed before."""
        return self._at is not None and (self._at, self.local) in self.means

    def allocate(self, at: JobGpus) -> None:
        """Choose a batch setting for the GPUs that the job gets."""
        self._at = at
        self._choose(at)

    def update(self, reading: Reading) -> Update:
        """Take one reading of the present allocation, and choose a new batch setting where that may help."""
        at = self._at
        assert at is not None
        widened = at.gpus > self.seen_gpus
        refitted = reading.times is not None and self._time(at, reading.local, reading.times)
        moved = not math.isnan(reading.noise) and self._read_noise(reading.noise, reading.batch)
        if not refitted and not moved:
            return Update.NONE
        if refitted or not abs(self.noise - self._chosen_noise) <= _CHOOSE_AT * self._chosen_noise:
            self._choose(at)
        return Update.DECIDE if widened else Update.REPORT

    def try_neighbour(self) -> bool:
        """Change to the best batch timed here, or to an untimed one next to it; return whether the batch changed."""
        at, before = self._at, (self.local, self.accumulation)
        if not self.probe or at is None or not self.timed:
            return False
        self._choose(at)
        if self.timed:
            within = range_of(self.limits, self._most_local(at.kind), at.gpus, self.accumulation)
            self.local = neighbour(self.local, self._times(at), self.probe, *within) or self.local
        return (self.local, self.accumulation) != before

    def report(self, batch: BatchSetting | None = None) -> GoodputReport:
        """Everything known, for the scheduler; the noise scale counts as reported. ``batch`` overrides the setting."""
        self._reported_noise = self.noise
        noise = 0.0 if math.isnan(self.noise) else self.noise
        return GoodputReport(tuple(self.fits.items()), noise, self.noise_batch, self.seen_gpus, batch or self.batch)

    def _choose(self, at: JobGpus) -> None:
        fit = self.fits.get(at.kind)
        self._chosen_noise = self.noise
        if fit is None or math.isnan(self.noise):
            self._begin(at)
            return
        found = best(fit, self.limits, self.noise, np.array([at.gpus]), np.array([at.locality]))
        if found.goodput[0] <= 0:
            self._begin(at)
            return
        self.local, self.accumulation = int(found.local[0]), int(found.accumulation[0])
        if self.probe and (times := self._times(at)):
            here = at.gpus, at.locality, self.accumulation
            self.local = best_timed(fit, self.limits, self.noise, *here, times) or self.local

    def _begin(self, at: JobGpus) -> None:
        """Choose the initial batch, rounded up to whole samples on each GPU, or the least that the GPUs can take."""
        limits, most_local = self.limits, self._most_local(at.kind)
        batch = min(max(limits.initial, limits.least_local * at.gpus), limits.most)
        share = max(batch // at.gpus, 1) if batch == limits.most else math.ceil(batch / at.gpus)
        self.accumulation = math.ceil(share / most_local) - 1
        self.local = math.ceil(share / (self.accumulation + 1))

    def _times(self, at: JobGpus) -> Timed:
        means = {local: mean for (where, local), mean in self.means.items() if where == at}
        return {local: (math.exp(mean.passing), math.exp(mean.step)) for local, mean in means.items()}

    def _most_local(self, kind: str) -> int:
        probed = self.probes.get(kind)
        return self.limits.most_local if probed is None else min(probed.most_local, self.limits.most_local)

    def _time(self, at: JobGpus, local: int, times: StepSeconds) -> bool:
        """Include step times in their mean; True if the fits changed.

        A configuration timed before causes a new fit each time its count of readings doubles.
        """
        passing, step = math.log(times.passing), math.log(times.step)
        self.seen_gpus = max(self.seen_gpus, at.gpus)
        mean = self.means.get((at, local))
        if mean is not None:
            mean.add(passing, step)
            if mean.count & (mean.count - 1):
                return False
        else:
            self.means[at, local] = StepMean(passing, step)
            if not self._surprised(at, local, times):
                return False
        self._refit(at.kind, local)
        return True

    def _surprised(self, at: JobGpus, local: int, times: StepSeconds) -> bool:
        """Whether the fit covers fewer GPUs or nodes than the present ones, or predicts times unlike those measured."""
        fit = self.fits.get(at.kind)
        if fit is None or fit.gpus < at.gpus or fit.nodes < at.nodes:
            return True
        pass_error = math.log((fit.compute[0] + fit.compute[1] * local) / times.passing)
        step_error = math.log(float(iteration_seconds(fit, local, 0, at.gpus, at.locality)) / times.step)
        return max(abs(pass_error), abs(step_error)) > max(_SURPRISE, 2.0 * fit.error)

    def _refit(self, kind: str, local: int) -> None:
        """Fit a kind, and carry synchronisation costs over to kinds that were measured on fewer GPUs."""
        before = self.fits.get(kind)
        start = before if before is not None and before.gpus else None
        fit = self.fits[kind] = fitted(list(self._observations(kind)), self._most_local(kind), start)
        widest = max(self.fits, key=lambda kind: self.fits[kind].gpus)
        if fit.gpus == 1 < self.fits[widest].gpus:
            self.fits[kind] = completed(fit, self.fits[widest], local)
        for other, probed in self.probes.items():
            if other not in self.fits or not self.fits[other].gpus:
                speed = probed.rate / self.probes[widest].rate
                self.fits[other] = carried_over(self.fits[widest], speed, self._most_local(other))

    def _observations(self, kind: str) -> Iterable[Observation]:
        for (at, local), mean in self.means.items():
            if at.kind == kind:
                times = math.exp(mean.passing), math.exp(mean.step)
                yield Observation(at.gpus, at.nodes, at.locality, local, *times)

    def _read_noise(self, noise: float, batch: int) -> bool:
        """Include a noise scale, in samples; True if it moved enough since the last report, or none was made."""
        if self.noisy and not math.isnan(self.noise):
            noise = self.noise ** (1.0 - _SMOOTHING) * noise**_SMOOTHING
        self.noise, self.noise_batch = noise, batch
        return not abs(noise - self._reported_noise) <= _REPORT_AT * self._reported_noise
