"""A job's own agent for goodput: what it has measured, what follows from it, and the batch it should train with now.

Framework-free. Times are averaged by what they were measured with; the fit is made anew when there is something new to
fit. One may rely on this: the batch chosen lies within the limits, and changes only for a gain worth the change.

References: Qiao et al., OSDI 2021, §4.1 (PolluxAgent); Jayaram Subramanya et al., SOSP 2023 (one fit for each kind).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchLimits, BatchSetting
from shoal.core.topology import Locality
from shoal.perf import goodput
from shoal.perf.fit import Observation, fitted
from shoal.perf.noise import NoiseEstimate, NoiseScale

_WORTH = 1.05
"""A batch is changed for at least so many times the goodput."""

_STEPS = 20
"""Steps of one kind before their mean counts."""

_SMOOTH = 0.99
"""What is left of the weight of earlier steps, at the initial batch, where the noise scale is averaged."""

_RECENT = 0.98
"""The same of step times, once there are enough: a machine may get slower."""


@dataclass(slots=True)
class _Times:
    """Mean times of steps of one kind."""

    passing: float = 0.0
    step: float = 0.0
    count: int = 0

    def add(self, passing: float, step: float) -> None:
        self.count += 1
        fresh = max(1.0 / self.count, 1.0 - _RECENT)
        self.passing += fresh * (passing - self.passing)
        self.step += fresh * (step - self.step)


_Key = tuple[str, int, int, int]
"""Kind, GPUs, nodes, samples a pass on each GPU."""


@dataclass(slots=True)
class BatchTuner:
    """What one job knows of its goodput, over all its incarnations."""

    limits: BatchLimits
    kind: str
    gpus: int
    nodes: int
    noise: NoiseScale = field(default_factory=NoiseScale)
    _times: dict[_Key, _Times] = field(default_factory=dict)
    _fits: dict[str, StepFit] = field(default_factory=dict)
    _stale: bool = True

    def timed(self, local: int, pass_seconds: float, step_seconds: float) -> None:
        """A step was measured: one pass over ``local`` samples on each GPU, and one that was synchronised."""
        times = self._times.setdefault((self.kind, self.gpus, self.nodes, local), _Times())
        times.add(pass_seconds, max(step_seconds, pass_seconds))
        self._stale = self._stale or times.count == _STEPS

    def heard(self, estimate: NoiseEstimate, batch: int) -> None:
        """The noise of a step's gradients was measured."""
        self.noise = self.noise.observed(estimate, _SMOOTH ** (batch / self.limits.initial))

    @property
    def fit(self) -> StepFit | None:
        """Step times on this kind of GPU; None until enough was measured there."""
        if self._stale:
            self._stale = False
            self._refit()
        return self._fits.get(self.kind)

    def choose(self, now: BatchSetting) -> tuple[BatchSetting, int]:
        """The batch to train with from now on, its added passes, and how many samples a pass has on a GPU."""
        kept = now, -(-now.size // (self.gpus * (now.accumulation + 1)))
        self._stale = True
        fit = self.fit
        if fit is None:
            return kept
        here = np.array([self.gpus]), np.array([_apart(self.nodes)])
        found = goodput.best(fit, self.limits, self.noise.samples, *here)
        local, added = int(found.local[0]), int(found.accumulation[0])
        if local == 0 or found.goodput[0] < _WORTH * self._goodput(fit, now, kept[1]):
            return kept
        return BatchSetting(self.gpus * local * (added + 1), added), local

    def efficiency(self, batch: int) -> float:
        """What a sample is worth at this batch size."""
        return float(goodput.efficiency(self.noise.samples, self.limits.initial, batch))

    def report(self, now: BatchSetting) -> GoodputReport | None:
        """All of it, for the scheduler; None until there is something to say."""
        if self.fit is None:
            return None
        seen = max(gpus for _, gpus, _, _ in self._times)
        return GoodputReport(tuple(sorted(self._fits.items())), self.noise.samples, now.size, seen, now)

    def _goodput(self, fit: StepFit, now: BatchSetting, local: int) -> float:
        seconds = goodput.iteration_seconds(fit, local, now.accumulation, self.gpus, _apart(self.nodes))
        return now.size / float(seconds) * self.efficiency(now.size)

    def _refit(self) -> None:
        for kind in {key[0] for key in self._times}:
            seen = [
                Observation(gpus, nodes, _apart(nodes), local, t.passing, t.step)
                for (of, gpus, nodes, local), t in self._times.items()
                if of == kind and t.count >= _STEPS
            ]
            if seen:
                self._fits[kind] = fitted(seen, self.limits.most_local, self._fits.get(kind))

    # ── kept with the run ─────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> dict[str, Any]:
        """What it knows, as plain values."""
        times = [[list(key), asdict(times)] for key, times in self._times.items()]
        return {"noise": asdict(self.noise), "times": times}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Know what was known then."""
        self.noise = NoiseScale(**state["noise"])
        self._times = {(key[0], key[1], key[2], key[3]): _Times(**times) for key, times in state["times"]}
        self._stale = True


def _apart(nodes: int) -> Locality:
    # A rank cannot see racks; the scheduler can, and takes racks to cost what nodes do until they were seen.
    return Locality.CROSS_NODE if nodes > 1 else Locality.SAME_NODE
