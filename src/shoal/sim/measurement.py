"""What lies between agents and the truth: they time real steps and read the real noise scale, through some noise.

Only this room knows both sides. A job's true speed is samples per second on its seats times the efficiency of its batch
at the true noise scale of the moment; since that drifts as training goes on, speeds are set anew at every tick.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from shoal.core.job import BatchLimits, JobSpec
from shoal.core.topology import Locality
from shoal.core.units import Seconds
from shoal.perf.batch_tuner import Allocation, BatchTuner, KindProbe, Reading, Update
from shoal.perf.measured_profile import QUIETEST
from shoal.perf.profile import StepSeconds
from shoal.sim.job_run import JobRun
from shoal.sim.truth import Truth, Tunable


class TickResult(Enum):
    """What came of a tick: nothing, a slightly other speed, something worth a report, or worth a decision."""

    NONE = auto()
    PACE = auto()
    REPORT = auto()
    LOUD = auto()


@dataclass(frozen=True, slots=True)
class Habits:
    """How agents choose batch sizes.

    A ``blind`` one does not look at the noise scale and takes every sample to be worth the same: it goes by
    throughput. One with a ``probe`` tries batches that are larger and smaller by this fraction than what it has settled
    on, and chooses by what it timed.
    """

    blind: bool = False
    probe: float = 0.0


PLAIN = Habits()
"""As in Pollux: by goodput, as the fit has it."""


@dataclass(slots=True)
class Agents:
    """The agents of all jobs; what they measure is off by a factor e^(σ·N(0,1)), σ being ``spread``."""

    truth: Truth
    spread: float
    chance: np.random.Generator
    habits: Habits = PLAIN

    def adapt(self, job: int, run: JobRun, spec: JobSpec) -> None:
        """From now on the job's agent chooses its batch size, if it may and its model can be tuned at all."""
        profile = self.truth.tunable(job)
        run.adapts = spec.limits is not None and profile is not None
        if run.tuner is None and spec.limits is not None and profile is not None:
            probes = self._probes(spec, spec.limits, profile)
            run.tuner = BatchTuner(spec.limits, probes, self.habits.probe, noisy=self.spread > 0.0)
            if run.report is not None:
                run.tuner.resume(run.report)

    def _probes(self, spec: JobSpec, limits: BatchLimits, profile: Tunable) -> Mapping[str, KindProbe]:
        found: dict[str, KindProbe] = {}
        for kind in self.truth.topology.kinds:
            most = profile.most_local(kind)
            local = min(limits.initial, most)
            taken = profile.step(kind, (1,), Locality.SAME_NODE, local) if most else None
            if taken is not None and (spec.kinds is None or kind in spec.kinds):
                found[kind] = KindProbe(local / taken.passing, most)
        return found

    def seat(self, run: JobRun) -> None:
        """The job sits somewhere else: its agent chooses a batch size for that."""
        assert run.tuner is not None
        assert run.placement is not None
        topology, placement = self.truth.topology, run.placement
        kind = topology.kinds[topology.kind_of(placement)]
        if kind in run.tuner.probes:
            nodes = len(placement.seats)
            run.tuner.allocate(Allocation(kind, placement.gpus, nodes, topology.locality(placement)))
        else:
            run.adapts = False  # it cannot run there, whatever the batch size

    def rate(self, job: int, run: JobRun, partner: int | None) -> float:
        """Real effective samples per second at this moment, with the batch its agent chose."""
        tuner, profile, taken = run.tuner, self.truth.tunable(job), self._step(job, run, partner)
        if tuner is None or profile is None or taken is None or not tuner.local:
            return 0.0
        batch = run.batch_size = tuner.batch.size
        run.noise = self._noise(job, profile, run.done, batch)
        worth = (run.noise + profile.initial_batch) / (run.noise + batch)
        return batch / (taken.step + tuner.accumulation * taken.passing) * worth

    def _step(self, job: int, run: JobRun, partner: int | None) -> StepSeconds | None:
        tuner, profile = run.tuner, self.truth.tunable(job)
        if tuner is None or profile is None or run.placement is None:
            return None
        return self.truth.step(job, profile, run.placement, tuner.local, partner)

    def _noise(self, job: int, profile: Tunable, done: float, batch: int) -> float:
        return profile.noise_scale(min(done / self.truth.jobs[job].work, 1.0), batch)

    def tick(self, job: int, run: JobRun, partner: int | None, now: Seconds) -> TickResult:
        """Let the job's tuner measure and choose; returns how far that matters."""
        tuner, profile = run.tuner, self.truth.tunable(job)
        assert tuner is not None
        assert profile is not None
        batch = tuner.batch.size
        noise = self._noise(job, profile, run.progress(now), batch)
        drifted = noise != run.noise
        taken = self._step(job, run, partner) if tuner.noisy or not tuner.timed else None
        times = None if taken is None else StepSeconds(self._seen(taken.passing), self._seen(taken.step))
        reading = Reading(tuner.local, batch, times, QUIETEST if self.habits.blind else self._seen(noise))
        update = tuner.update(reading)
        probing = tuner.try_neighbour()
        if update is Update.NONE:
            return TickResult.PACE if drifted or probing else TickResult.NONE
        return TickResult.LOUD if update is Update.LOUD else TickResult.REPORT

    def _seen(self, true: float) -> float:
        return true * math.exp(self.spread * self.chance.standard_normal()) if self.spread else true
