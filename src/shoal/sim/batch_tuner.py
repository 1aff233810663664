"""A job's agent in the simulated world: it measures its steps, fits them, and chooses the batch that trains best.

It knows what it has seen of its own job and nothing else of the truth: step times on the seats it held at the batch
sizes it tried, the noise scale where it is now, and, as Sia has every job tried for a moment on one GPU of each kind
when it comes, how fast it is there. What it makes of that it says in ``report``. One that probes also times batches
next to the one it has settled on, and chooses by what it timed where it sits.

References: Qiao et al., OSDI 2021, §4.1 (PolluxAgent); Jayaram Subramanya et al., SOSP 2023, §3.2 (other kinds).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchLimits, BatchSetting
from shoal.core.topology import Locality
from shoal.core.units import Seconds
from shoal.perf.fit import Observation, carried_over, completed, fitted
from shoal.perf.goodput import best, iteration_seconds
from shoal.perf.profile import StepSeconds
from shoal.perf.seat_corrections import Timed, best_timed, neighbour, range_of

TICK: Seconds = 30.0
"""How long an agent trains before it looks again at its speed and its batch size (§4.1)."""

MOVED = 0.05
"""By how much, as a fraction, the noise scale must have moved to be worth a report."""

_CHOSEN_WITHIN = 0.1
"""By how much it must have moved for another choice of batch size: the best one goes with its root."""

_SURPRISE = 0.03
"""A step predicted this well, or within twice the error of its fit, teaches little."""

_SMOOTHING = 0.2
"""How much one more reading of the noise scale counts where readings are noisy."""


@dataclass(frozen=True, slots=True)
class Tried:
    """How a job does on one GPU of a kind: samples per second, and the most that it holds in one pass."""

    rate: float
    most_local: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a job sits on, as its agent sees it."""

    kind: str
    gpus: int
    nodes: int
    locality: Locality


@dataclass(slots=True)
class _Seen:
    """One configuration that was timed, in logarithms of seconds: the means of so many readings."""

    passing: float
    step: float
    count: int = 1

    def add(self, passing: float, step: float) -> None:
        self.count += 1
        self.passing += (passing - self.passing) / self.count
        self.step += (step - self.step) / self.count


@dataclass(slots=True)
class SimulatedTuner:
    """The agent of one job, over all its incarnations; ``tried`` has every kind that its cluster has for it.

    ``probe`` is by how much more and less, as a fraction, the batches are that it tries; 0 where it tries none.
    """

    limits: BatchLimits
    tried: Mapping[str, Tried]
    probe: float = 0.0
    fits: dict[str, StepFit] = field(default_factory=dict)
    seen_gpus: int = 0
    noise: float = math.nan
    noise_batch: int = 0
    local: int = 0
    accumulation: int = 0
    _at: Allocation | None = None
    _chosen_at: float = math.nan
    _told: float = math.nan
    _seen: dict[tuple[Allocation, int], _Seen] = field(default_factory=dict)

    @classmethod
    def of(
        cls, report: GoodputReport, limits: BatchLimits, tried: Mapping[str, Tried], probe: float
    ) -> "SimulatedTuner":
        """An agent that remembers what it reported last, but not what that rested on."""
        fits = {kind: fit for kind, fit in report.fits if kind in tried}
        known = cls(limits, tried, probe, fits, report.seen_gpus, report.noise, report.noise_batch)
        known._told = report.noise
        return known

    @property
    def batch_size(self) -> int:
        """The samples of a whole step."""
        return 0 if self._at is None else self._at.gpus * self.local * (self.accumulation + 1)

    @property
    def widened(self) -> bool:
        """Whether the job is on more GPUs than it was ever measured on."""
        return self._at is not None and self._at.gpus > self.seen_gpus

    def seat(self, at: Allocation) -> None:
        """The job starts there: choose a batch for it."""
        self._at = at
        self._choose(at)

    def _choose(self, at: Allocation) -> None:
        fit = self.fits.get(at.kind)
        self._chosen_at = self.noise
        if fit is not None and not math.isnan(self.noise):
            found = best(fit, self.limits, self.noise, np.array([at.gpus]), np.array([at.locality]))
            if found.goodput[0] > 0:
                self.local, self.accumulation = int(found.local[0]), int(found.accumulation[0])
                timed = self._timed(at) if self.probe else {}
                if timed:
                    here = at.gpus, at.locality, self.accumulation
                    self.local = best_timed(fit, self.limits, self.noise, *here, timed) or self.local
                return
        self._begin(at)

    def _timed(self, at: Allocation) -> Timed:
        """What was timed on seats like these."""
        seen = {local: seen for (where, local), seen in self._seen.items() if where == at}
        return {local: (math.exp(times.passing), math.exp(times.step)) for local, times in seen.items()}

    def _begin(self, at: Allocation) -> None:
        """Before anything is known: the initial batch, or the least that so many GPUs can be given."""
        limits, most_local = self.limits, self._most_local(at.kind)
        batch = min(max(limits.initial, limits.least_local * at.gpus), limits.most)
        share = max(batch // at.gpus, 1) if batch == limits.most else math.ceil(batch / at.gpus)
        self.accumulation = math.ceil(share / most_local) - 1
        self.local = math.ceil(share / (self.accumulation + 1))

    def _most_local(self, kind: str) -> int:
        return min(self.tried[kind].most_local, self.limits.most_local)

    def knows(self) -> bool:
        """Whether the present configuration has been timed already."""
        return self._at is not None and (self._at, self.local) in self._seen

    def time(self, taken: StepSeconds) -> bool:
        """Note what a step of the present configuration took; whether the fits changed for it."""
        assert self._at is not None
        at, passing, step = self._at, math.log(taken.passing), math.log(taken.step)
        self.seen_gpus = max(self.seen_gpus, at.gpus)
        seen = self._seen.get((at, self.local))
        if seen is not None:
            seen.add(passing, step)
            if seen.count & (seen.count - 1):  # more of the same is worth a fit each time there is twice as much
                return False
        else:
            self._seen[at, self.local] = _Seen(passing, step)
            if not self._surprised(at, taken):
                return False
        self._refit(at)
        return True

    def _surprised(self, at: Allocation, taken: StepSeconds) -> bool:
        """Whether the fit has seen nothing so wide yet, or tells other times than these."""
        fit = self.fits.get(at.kind)
        if fit is None or fit.gpus < at.gpus or fit.nodes < at.nodes:
            return True
        pass_error = math.log((fit.compute[0] + fit.compute[1] * self.local) / taken.passing)
        step_error = math.log(float(iteration_seconds(fit, self.local, 0, at.gpus, at.locality)) / taken.step)
        return max(abs(pass_error), abs(step_error)) > max(_SURPRISE, 2.0 * fit.error)

    def _refit(self, at: Allocation) -> None:
        """Fit the kind just timed, and carry what is known of synchronising over to kinds that have seen less."""
        timed = [
            Observation(a.gpus, a.nodes, a.locality, local, math.exp(seen.passing), math.exp(seen.step))
            for (a, local), seen in self._seen.items()
            if a.kind == at.kind
        ]
        before = self.fits.get(at.kind)
        start = before if before is not None and before.gpus else None
        fit = self.fits[at.kind] = fitted(timed, self._most_local(at.kind), start)
        widest = max(self.fits, key=lambda kind: self.fits[kind].gpus)
        if fit.gpus == 1 < self.fits[widest].gpus:
            self.fits[at.kind] = completed(fit, self.fits[widest], self.local)
        for kind, tried in self.tried.items():
            if kind not in self.fits or not self.fits[kind].gpus:
                speed = tried.rate / self.tried[widest].rate
                self.fits[kind] = carried_over(self.fits[widest], speed, self._most_local(kind))

    def read(self, noise: float, *, smooth: bool) -> bool:
        """Note the noise scale as it is read now; whether it moved since it was last reported."""
        if smooth and not math.isnan(self.noise):
            noise = self.noise ** (1.0 - _SMOOTHING) * noise**_SMOOTHING
        self.noise, self.noise_batch = noise, self.batch_size
        return not abs(noise - self._told) <= MOVED * self._told  # nothing was reported yet: not a number

    def rechoose(self, *, refitted: bool) -> None:
        """Choose the batch anew for what is known now, where that could make a difference."""
        assert self._at is not None
        if refitted or not abs(self.noise - self._chosen_at) <= _CHOSEN_WITHIN * self._chosen_at:
            self._choose(self._at)

    def probed(self) -> bool:
        """Settle on what is best by all that was timed here, or try a batch next to it; whether that is another one."""
        at, before = self._at, (self.local, self.accumulation)
        if not self.probe or at is None or not self.knows():
            return False
        self._choose(at)
        if self.knows():
            within = range_of(self.limits, self._most_local(at.kind), at.gpus, self.accumulation)
            self.local = neighbour(self.local, self._timed(at), self.probe, *within) or self.local
        return (self.local, self.accumulation) != before

    def report(self) -> GoodputReport:
        """All it knows, which from now on counts as told."""
        self._told = self.noise
        batch = BatchSetting(self.batch_size, self.accumulation)
        return GoodputReport(tuple(self.fits.items()), self.noise, self.noise_batch, self.seen_gpus, batch)
