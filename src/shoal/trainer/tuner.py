"""Readings for the batch tuner of a real run: step times and gradient noise, averaged between two ticks.

`shoal.perf.batch_tuner` fits, chooses and decides when to report, with the same thresholds as for simulated jobs. This
module turns single steps into its readings, and its state into plain values for checkpoints. Framework-free.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.core.batch_limits import BatchLimits
from shoal.core.job import BatchSetting
from shoal.core.topology import Locality
from shoal.perf.batch_tuner import BatchTuner, JobGpus, Reading, StepMean, Update
from shoal.perf.noise import NOISIEST, NoiseEstimate, NoiseScale
from shoal.perf.profile import StepSeconds

_STEPS = 20
"""Timed steps of one configuration that make a reading."""

_DECAY = 0.99
"""Weight left to earlier steps in the noise scale after one step at the initial batch size."""

_MOST_CHANGE = 4.0
"""Limit of one noise-scale reading: this factor above or below the average so far.

A reading from few steps may be 0 or infinite."""


@dataclass(slots=True)
class RunTuner:
    """The batch tuner of one run on its present GPUs, with the measurements that make its next reading."""

    tuner: BatchTuner
    noise: NoiseScale = field(default_factory=NoiseScale)
    _local: int = 0
    _mean: StepMean | None = None
    _report: dict[str, Any] | None = None
    _reported: BatchSetting | None = None

    @classmethod
    def of(cls, limits: BatchLimits, kind: str, gpus: int, nodes: int) -> "RunTuner":
        """Return a tuner without measurements; it trains at the initial batch size until it has some."""
        tuner = BatchTuner(limits, noisy=True)
        tuner.allocate(_allocation(kind, gpus, nodes))
        return cls(tuner)

    def add_step(self, local: int, pass_seconds: float, step_seconds: float) -> None:
        """Include one step: seconds of a pass over ``local`` samples on each GPU, and of the synchronised pass."""
        times = math.log(pass_seconds), math.log(step_seconds)
        if self._mean is None or local != self._local:
            self._local, self._mean = local, StepMean(*times)
        else:
            self._mean.add(*times)

    def add_noise(self, estimate: NoiseEstimate, batch: int) -> None:
        """Include the noise of one step's gradients at a total batch size in samples."""
        self.noise = self.noise.observed(estimate, _DECAY ** (batch / self.initial))

    def tick(self, batch: int) -> tuple[BatchSetting, int]:
        """Give the tuner its next reading; return the setting to train with, and the samples of a pass on each GPU.

        ``batch`` is the total batch size trained with since the last tick.
        """
        times, local = None, self.tuner.local
        if self._mean is not None and self._mean.count >= _STEPS:
            times = StepSeconds(math.exp(self._mean.passing), math.exp(self._mean.step))
            local, self._mean = self._local, None
        update = self.tuner.update(Reading(local, batch, times, self._noise_reading()))
        if update is not Update.NONE:
            self._reported = None
        return self.chosen

    @property
    def initial(self) -> int:
        """The total batch size at which one sample counts as one effective sample."""
        return self.tuner.limits.initial

    @property
    def chosen(self) -> tuple[BatchSetting, int]:
        """The setting to train with, and the samples of a pass on each GPU."""
        return self.tuner.batch, self.tuner.local

    def report(self, now: BatchSetting) -> dict[str, Any] | None:
        """Return a `GoodputReport` as plain values, for the scheduler; None until step times are fitted.

        It is made anew when a tick calls for it and when ``now``, the setting trained with, has changed.
        """
        if self.tuner.fits and now != self._reported:
            self._report, self._reported = asdict(self.tuner.report(now)), now
        return self._report

    def _noise_reading(self) -> float:
        noise, known = self.noise.samples, self.tuner.noise
        if math.isnan(known):
            return noise if 0.0 < noise < NOISIEST else math.nan
        return min(max(noise, known / _MOST_CHANGE), known * _MOST_CHANGE)

    def state(self) -> dict[str, Any]:
        """All measurements as plain values, for a checkpoint."""
        tuner = self.tuner
        means = [[at.kind, at.gpus, at.nodes, local, asdict(mean)] for (at, local), mean in tuner.means.items()]
        known = {"scale": tuner.noise, "batch": tuner.noise_batch}
        return {"noise": asdict(self.noise), "means": means, "known": known}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the measurements of a checkpoint and choose a setting for the present GPUs."""
        self.noise = NoiseScale(**state["noise"])
        means = {(_allocation(*at), local): StepMean(**mean) for *at, local, mean in state["means"]}
        self.tuner.restore(means, state["known"]["scale"], state["known"]["batch"])


def _allocation(kind: str, gpus: int, nodes: int) -> JobGpus:
    # A rank cannot see racks. The scheduler can, and takes racks to cost what nodes do until they are measured.
    return JobGpus(kind, gpus, nodes, Locality.CROSS_NODE if nodes > 1 else Locality.SAME_NODE)
