"""Measured profiles: step times by placement, gradient noise scale by epoch and batch size, without any fit.

A measured figure is returned as it is; between measurements every figure is linear, as in the simulators for which
these profiles were published, and beyond them it is that of the nearest. Times are in seconds, batches in samples,
progress in effective samples.

References: Qiao et al., OSDI 2021, §5.3 (the simulator); Jayaram Subramanya et al., SOSP 2023, §5 (the same by kind).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from shoal.core.arrays import Floats
from shoal.core.goodput import StepFit
from shoal.core.topology import Locality
from shoal.perf.fit import Observation, fitted
from shoal.perf.profile import Seats, StepSeconds

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator  # imported where used: it takes 0.3 s

QUIETEST = 1e15
"""Noise scale in samples where the gradient itself was measured as 0: every batch size is then as efficient."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: seconds of a step and of its synchronisation, on ``seats`` or, where empty, on any seats."""

    nodes: int
    gpus: int
    local: int
    step: float
    sync: float
    seats: Seats = ()


@dataclass(frozen=True)
class StepTable:
    """Measured steps of one model on one kind of GPU, with ``least_local`` to ``most_local`` samples on each GPU.

    More GPUs on a node than ``node_gpus`` count as several nodes of that size. ``slowdown`` multiplies all times.
    """

    cells: tuple[Cell, ...]
    least_local: int
    most_local: int
    slowdown: float = 1.0
    _known: dict[tuple[Seats, int], StepSeconds] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def node_gpus(self) -> int:
        """The most GPUs of one node that were measured together."""
        return max((max(cell.seats) for cell in self.cells if cell.seats), default=1)

    def seconds(self, seats: Seats, local: int) -> StepSeconds:
        """Seconds of a pass over ``local`` samples on each of these seats; at least those of ``least_local``."""
        key = (seats, local)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._between(_rotated(self._measurable(seats)), max(local, self.least_local))
        return found

    def packed(self, gpus: int, locality: Locality) -> Seats:
        """Return seats of this many GPUs on the fewest nodes that hold them, on at least two where they are apart."""
        most = self.node_gpus if locality is Locality.SAME_NODE else min(self.node_gpus, max(gpus - 1, 1))
        whole, rest = divmod(gpus, most)
        return (*((rest,) if rest else ()), *([most] * whole))

    def least_seconds(self, gpus: int, local: Floats) -> tuple[Floats, Floats]:
        """Return, by samples on each GPU, the least seconds of a pass and of a step on any seats of this many GPUs."""
        samples = np.maximum(local, self.least_local)
        found = [_all_along(curve, samples) for seats, curve in self._curves.items() if sum(seats) == gpus]
        for nodes in range(-(-gpus // self.node_gpus), min(gpus, self._most_nodes) + 1):
            at = np.column_stack([np.full(len(samples), nodes), np.full(len(samples), gpus), samples])
            inside = self._inside(at)
            found.append(np.where(np.isnan(inside), self._outside(at), inside).T)
        if not found:  # on more nodes than were measured, all count as the most that were
            found = [self._outside(np.column_stack([np.full((len(samples), 2), gpus), samples])).T]
        step, sync = (self.slowdown * np.array([pair[k] for pair in found]) for k in (0, 1))
        return np.maximum(step - sync, 1e-9).min(axis=0), step.min(axis=0)

    def _measurable(self, seats: Seats) -> Seats:
        most = self.node_gpus
        if max(seats) <= most:
            return seats
        return tuple(part for count in seats for part in (*([most] * (count // most)), count % most) if part)

    def _between(self, seats: Seats, local: int) -> StepSeconds:
        curve = self._curves.get(seats)
        if curve is not None:
            step, sync = _along(curve, local)
        else:
            at = [(min(len(seats), self._most_nodes), sum(seats), local)]
            step, sync = self._inside(at)[0].tolist()
            if math.isnan(step):
                step, sync = self._outside(at)[0].tolist()
        step *= self.slowdown
        return StepSeconds(max(step - sync * self.slowdown, 1e-9), step)

    @cached_property
    def _curves(self) -> Mapping[Seats, Floats]:
        """By measured seats: rows of samples on each GPU, step and synchronisation seconds, by ascending samples."""
        rows: dict[Seats, list[tuple[float, float, float]]] = {}
        for cell in self.cells:
            if cell.seats:
                rows.setdefault(_rotated(cell.seats), []).append((cell.local, cell.step, cell.sync))
        return {seats: np.array(sorted(points)) for seats, points in rows.items()}

    @cached_property
    def _most_nodes(self) -> int:
        return max(cell.nodes for cell in self.cells)

    @cached_property
    def _means(self) -> tuple[Floats, Floats]:
        """Every measured (nodes, GPUs, samples) once, and the mean step and synchronisation seconds there."""
        points = np.array([(c.nodes, c.gpus, c.local) for c in self.cells], np.float64)
        values = np.array([(c.step, c.sync) for c in self.cells])
        distinct, which, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
        sums = np.zeros((len(distinct), 2))
        np.add.at(sums, which.ravel(), values)
        return distinct, sums / counts[:, None]

    @cached_property
    def _inside(self) -> "LinearNDInterpolator":
        from scipy.interpolate import LinearNDInterpolator

        return LinearNDInterpolator(*self._means)

    @cached_property
    def _outside(self) -> "NearestNDInterpolator":
        from scipy.interpolate import NearestNDInterpolator

        return NearestNDInterpolator(*self._means)

    @cached_property
    def fit(self) -> StepFit:
        """Pollux's parameters fitted to all measurements."""
        seen = []
        for cell in self.cells:
            apart = Locality.SAME_NODE if cell.nodes == 1 else Locality.CROSS_NODE
            step = cell.step * self.slowdown
            passing = max(step - cell.sync * self.slowdown, 1e-9)
            seen.append(Observation(cell.gpus, cell.nodes, apart, cell.local, passing, step))
        return fitted(seen, self.most_local)


def _rotated(seats: Seats) -> Seats:
    """The smallest rotation of the seats: a ring of GPUs has no first one."""
    return min(seats[i:] + seats[:i] for i in range(len(seats)))


def _along(curve: Floats, local: int) -> tuple[float, float]:
    """Return step and synchronisation seconds at ``local`` samples, linear between and beyond the measured ones."""
    samples, step, sync = curve.T
    if local > samples[-1] and len(samples) > 1:
        slope = (step[-1] - step[-2]) / (samples[-1] - samples[-2])
        return float(step[-1] + max(slope, 0.0) * (local - samples[-1])), float(sync[-1])
    return float(np.interp(local, samples, step)), float(np.interp(local, samples, sync))


def _all_along(curve: Floats, local: Floats) -> Floats:
    """Step and synchronisation seconds (2 × samples), as `_along` has them."""
    return np.array([_along(curve, samples) for samples in local.tolist()]).T


@dataclass(frozen=True)
class NoiseTable:
    """Gradient statistics of whole trainings, one for each of some batch sizes.

    ``ends`` is the progress at the end of each epoch; ``square`` and ``variance`` are (batch sizes × epochs). The
    variance is that of a gradient over ``batch_sizes[0]`` samples.
    """

    batch_sizes: tuple[int, ...]
    ends: Floats
    square: Floats
    variance: Floats

    def epoch(self, fraction: float) -> int:
        """Number of the epoch, from 0, when a fraction of training is done."""
        return min(int(np.searchsorted(self.ends, fraction * self.ends[-1], side="right")), len(self.ends) - 1)

    def at(self, epoch: int, batch_size: float) -> float:
        """The noise scale in samples in an epoch at a batch size; the statistics are interpolated, not the scale."""
        tables = self.square, self.variance
        square, variance = (float(np.interp(batch_size, self.batch_sizes, table[:, epoch])) for table in tables)
        return min(self.batch_sizes[0] * variance / square, QUIETEST) if square > 0 else QUIETEST


@dataclass(frozen=True)
class MeasuredProfile:
    """A model known from measurements alone, for true speeds of simulated jobs. Batch sizes are of the whole gang."""

    times: Mapping[str, StepTable]
    noise: NoiseTable
    per_gpu_batch: ClassVar[bool] = False
    _noises: dict[tuple[int, int], float] = field(default_factory=dict, repr=False, compare=False)
    _rates: dict[tuple[str, Seats, int], float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds with measurements."""
        return tuple(self.times)

    @property
    def initial_batch(self) -> int:
        """The smallest measured batch size, for which the learning rate was tuned and the efficiency is 1."""
        return self.noise.batch_sizes[0]

    @property
    def max_batch(self) -> int:
        """The largest measured batch size."""
        return self.noise.batch_sizes[-1]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The measured batch sizes, ascending."""
        return self.noise.batch_sizes

    @property
    def work(self) -> float:
        """The effective samples of a whole training."""
        return float(self.noise.ends[-1])

    def most_local(self, kind: str) -> int:
        """The most samples a GPU of this kind holds; 0 on a kind without measurements."""
        return self.times[kind].most_local if kind in self.times else 0

    def fits(self) -> tuple[tuple[str, StepFit], ...]:
        """By kind, Pollux's parameters fitted to all measurements."""
        return tuple((kind, table.fit) for kind, table in self.times.items())

    def noise_scale(self, progress: float, batch_size: int | None = None) -> float:
        """The gradient noise scale in samples when a fraction of training is done, as measured at this batch size."""
        key = (self.noise.epoch(progress), batch_size or self.initial_batch)
        found = self._noises.get(key)
        if found is None:
            found = self._noises[key] = self.noise.at(*key)
        return found

    def step(self, kind: str, seats: Seats, locality: Locality, local: int) -> StepSeconds | None:
        """Seconds of a pass over ``local`` samples on each of these GPUs; None on a kind without measurements."""
        table = self.times.get(kind)
        return None if table is None else table.seconds(seats, local)

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Effective samples per second on as few nodes as hold the GPUs, averaged over the training."""
        table = self.times.get(kind)
        if table is None or gpus < 1:
            return 0.0
        return self.rate_on(kind, table.packed(gpus, locality), batch_size)

    def rate_on(self, kind: str, seats: Seats, batch_size: int | None = None) -> float:
        """Effective samples per second on exactly these seats, averaged over the training.

        0.0 on a kind without measurements, with less than a sample for each GPU, or above the largest batch size.
        """
        size = self.initial_batch if batch_size is None else batch_size
        key = (kind, seats, size)
        found = self._rates.get(key)
        if found is None:
            found = self._rates[key] = self._rate_on(kind, seats, size)
        return found

    def best_rate(self, kind: str, gpus: int, batch_size: int | None = None) -> float:
        """Effective samples per second on the best seats for this many GPUs, averaged over the training."""
        table, size = self.times.get(kind), self.initial_batch if batch_size is None else batch_size
        if table is None or not gpus <= size <= self.max_batch:
            return 0.0
        local, added = self._split(table, gpus, size)
        passing, step = (float(seconds[0]) for seconds in table.least_seconds(gpus, np.array([float(local)])))
        batch = gpus * local * (added + 1)
        return batch / (step + added * passing) * self._mean_efficiency(batch)

    def _split(self, table: StepTable, gpus: int, size: int) -> tuple[int, int]:
        """Samples of a pass on each GPU, and added passes, of this batch size."""
        share = math.ceil(size / gpus)
        added = math.ceil(share / table.most_local) - 1
        if gpus == 1 and size > self.initial_batch:
            added = max(added, 1)  # one GPU can measure its noise scale only from two passes of a step
        return min(math.ceil(share / (added + 1)), self.max_batch // (gpus * (added + 1))), added

    def _rate_on(self, kind: str, seats: Seats, size: int) -> float:
        table, gpus = self.times.get(kind), sum(seats)
        if table is None or not gpus <= size <= self.max_batch:
            return 0.0
        local, added = self._split(table, gpus, size)
        taken = table.seconds(seats, local)
        batch = gpus * local * (added + 1)
        return batch / (taken.step + added * taken.passing) * self._mean_efficiency(batch)

    def _mean_efficiency(self, batch: int) -> float:
        """Return the harmonic mean over the training: run time = total work / (samples per second × this)."""
        lengths = np.diff(self.noise.ends, prepend=0.0)
        noise = np.array([self.noise.at(epoch, batch) for epoch in range(len(lengths))])
        cost = (noise + batch) / (noise + self.initial_batch)
        return float(lengths.sum() / (lengths * cost).sum())
