"""Simulated jobs that choose their own batch size: their noisy measurements and their true rates.

The true rate of such a job is samples per second on its seats times the statistical efficiency of its batch size at the
true gradient noise scale. The noise scale drifts as training goes on, so rates are set anew at every tick.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from shoal.core.batch_limits import BatchLimits
from shoal.core.job import JobSpec
from shoal.core.topology import Locality
from shoal.core.units import Seconds
from shoal.perf.batch_tuner import BatchTuner, JobGpus, KindProbe, Reading, Update
from shoal.perf.measured_profile import QUIETEST
from shoal.perf.profile import StepSeconds
from shoal.sim.job_run import JobRun
from shoal.sim.truth import Truth, Tunable


class TickResult(Enum):
    """The effect of a tick: none, a new rate, a report, or an urgent report that calls for a decision at once."""

    NONE = auto()
    RATE = auto()
    REPORT = auto()
    DECIDE = auto()


@dataclass(frozen=True, slots=True)
class TunerOptions:
    """How jobs choose batch sizes; by default as in Pollux, by the goodput of the fit.

    With ``blind`` they ignore the noise scale, value every sample alike and so maximise throughput. With a ``probe``
    above 0 they also try batches larger and smaller by that fraction, and choose by what they timed.
    """

    blind: bool = False
    probe: float = 0.0


@dataclass(slots=True)
class AdaptiveJobs:
    """Measurements and rates of all adaptive jobs. What they measure is multiplied by e^(σ·N(0,1)), σ = ``spread``."""

    truth: Truth
    spread: float
    rng: np.random.Generator
    options: TunerOptions

    def adapt(self, job: int, run: JobRun, spec: JobSpec) -> None:
        """Let the job's tuner choose its batch size, if the job has limits and its model can be tuned at all."""
        profile = self.truth.tunable(job)
        run.adapts = spec.limits is not None and profile is not None
        if run.tuner is None and spec.limits is not None and profile is not None:
            probes = self._probes(spec, spec.limits, profile)
            run.tuner = BatchTuner(spec.limits, probes, self.options.probe, noisy=self.spread > 0.0)
            if run.report is not None:
                run.tuner.resume(run.report)

    def _probes(self, spec: JobSpec, limits: BatchLimits, profile: Tunable) -> Mapping[str, KindProbe]:
        """The job's speed on one GPU of each kind, which Sia measures when a job arrives."""
        found: dict[str, KindProbe] = {}
        for kind in self.truth.topology.kinds:
            most = profile.most_local(kind)
            local = min(limits.initial, most)
            taken = profile.step(kind, (1,), Locality.SAME_NODE, local) if most else None
            if taken is not None and (spec.kinds is None or kind in spec.kinds):
                found[kind] = KindProbe(local / taken.passing, most)
        return found

    def allocate(self, run: JobRun) -> None:
        """Choose a batch size for the seats the job was given."""
        assert run.tuner is not None
        assert run.placement is not None
        topology, placement = self.truth.topology, run.placement
        kind = topology.kinds[topology.kind_of(placement)]
        if kind in run.tuner.probes:
            nodes = len(placement.seats)
            run.tuner.allocate(JobGpus(kind, placement.gpus, nodes, topology.locality(placement)))
        else:
            run.adapts = False  # it cannot run there at any batch size

    def rate(self, job: int, run: JobRun, partner: int | None) -> float:
        """True effective samples per second at this moment with the batch size that the job chose."""
        tuner, profile, taken = run.tuner, self.truth.tunable(job), self._step(job, run, partner)
        if tuner is None or profile is None or taken is None or not tuner.local:
            return 0.0
        batch = run.batch_size = tuner.batch.size
        run.noise = self._noise(job, profile, run.done, batch)
        efficiency = (run.noise + profile.initial_batch) / (run.noise + batch)
        return batch / (taken.step + tuner.accumulation * taken.passing) * efficiency

    def _step(self, job: int, run: JobRun, partner: int | None) -> StepSeconds | None:
        tuner, profile = run.tuner, self.truth.tunable(job)
        if tuner is None or profile is None or run.placement is None:
            return None
        return self.truth.step(job, profile, run.placement, tuner.local, partner)

    def _noise(self, job: int, profile: Tunable, done: float, batch: int) -> float:
        return profile.noise_scale(min(done / self.truth.jobs[job].work, 1.0), batch)

    def tick(self, job: int, run: JobRun, partner: int | None, now: Seconds) -> TickResult:
        """Give the job's tuner its next reading; without measurement noise a configuration is timed only once."""
        tuner, profile = run.tuner, self.truth.tunable(job)
        assert tuner is not None
        assert profile is not None
        batch = tuner.batch.size
        noise = self._noise(job, profile, run.progress(now), batch)
        drifted = noise != run.noise
        taken = self._step(job, run, partner) if tuner.noisy or not tuner.timed else None
        times = None if taken is None else StepSeconds(self._measured(taken.passing), self._measured(taken.step))
        reading = Reading(tuner.local, batch, times, QUIETEST if self.options.blind else self._measured(noise))
        update = tuner.update(reading)
        probing = tuner.try_neighbour()
        if update is Update.NONE:
            return TickResult.RATE if drifted or probing else TickResult.NONE
        return TickResult.DECIDE if update is Update.DECIDE else TickResult.REPORT

    def _measured(self, true: float) -> float:
        return true * math.exp(self.spread * self.rng.standard_normal()) if self.spread else true
