"""Models as they were measured, and nothing fitted: step times by placement, noise scale by epoch and batch size.

What was measured is given back as it is; between measurements every figure is linear, as in the simulators for which
these profiles were published, and beyond them it is that of the nearest. Seats are GPUs per node, in the order of the
nodes. Seconds and samples throughout; progress is in effective samples.

References: Qiao et al., OSDI 2021, §5.3 (the simulator); Jayaram Subramanya et al., SOSP 2023, §5 (the same by kind).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

from shoal.core.arrays import Floats
from shoal.core.goodput import StepFit
from shoal.core.topology import Locality
from shoal.perf.fit import Observation, fitted
from shoal.perf.profile import Seats, StepSeconds

QUIETEST = 1e15
"""Stands for the noise scale where the gradient itself was measured as nothing: every batch size is then as good."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: on these seats, or somewhere on so many nodes (then ``seats`` is empty)."""

    nodes: int
    gpus: int
    local: int
    step: float
    sync: float
    seats: Seats = ()


@dataclass(frozen=True)
class StepTable:
    """Measured steps of one model on one kind of GPU, on nodes of up to ``node_gpus``.

    More GPUs on a node than were ever measured count as several nodes of that size. ``slowdown`` multiplies all times.
    """

    cells: tuple[Cell, ...]
    least_local: int
    most_local: int
    slowdown: float = 1.0
    _known: dict[tuple[Seats, int], StepSeconds] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def node_gpus(self) -> int:
        """The most GPUs of a node that were measured together."""
        return max((max(cell.seats) for cell in self.cells if cell.seats), default=1)

    def seconds(self, seats: Seats, local: int) -> StepSeconds:
        """What a pass over ``local`` samples on each of these seats takes; fewer than were measured are no faster."""
        key = (seats, local)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._between(_rotated(self._measurable(seats)), max(local, self.least_local))
        return found

    def packed(self, gpus: int, locality: Locality) -> Seats:
        """So many GPUs on as few nodes as were measured to hold them, on two at least where they are apart."""
        most = self.node_gpus if locality is Locality.SAME_NODE else min(self.node_gpus, max(gpus - 1, 1))
        whole, rest = divmod(gpus, most)
        return (*((rest,) if rest else ()), *([most] * whole))

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
        """By measured seats: rows of samples on each GPU, step and sync, by ascending samples."""
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
        """Every measured (nodes, GPUs, samples) once, and the mean step and sync of all measured there."""
        points = np.array([(c.nodes, c.gpus, c.local) for c in self.cells], np.float64)
        values = np.array([(c.step, c.sync) for c in self.cells])
        distinct, which, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
        sums = np.zeros((len(distinct), 2))
        np.add.at(sums, which.ravel(), values)
        return distinct, sums / counts[:, None]

    @cached_property
    def _inside(self) -> LinearNDInterpolator:
        return LinearNDInterpolator(*self._means)

    @cached_property
    def _outside(self) -> NearestNDInterpolator:
        return NearestNDInterpolator(*self._means)

    @cached_property
    def fit(self) -> StepFit:
        """Pollux's parameters fitted to all of these measurements."""
        seen = []
        for cell in self.cells:
            apart = Locality.SAME_NODE if cell.nodes == 1 else Locality.CROSS_NODE
            step = cell.step * self.slowdown
            passing = max(step - cell.sync * self.slowdown, 1e-9)
            seen.append(Observation(cell.gpus, cell.nodes, apart, cell.local, passing, step))
        return fitted(seen, self.most_local)


def _rotated(seats: Seats) -> Seats:
    """The smallest of its rotations: round a ring it does not matter where one begins."""
    return min(seats[i:] + seats[:i] for i in range(len(seats)))


def _along(curve: Floats, local: int) -> tuple[float, float]:
    """Step and sync at so many samples, linear between the measured ones and on from the last two."""
    samples, step, sync = curve.T
    if local > samples[-1] and len(samples) > 1:
        slope = (step[-1] - step[-2]) / (samples[-1] - samples[-2])
        return float(step[-1] + max(slope, 0.0) * (local - samples[-1])), float(sync[-1])
    return float(np.interp(local, samples, step)), float(np.interp(local, samples, sync))


@dataclass(frozen=True)
class NoiseTable:
    """Gradient statistics of whole trainings, one at each of some batch sizes, epoch by epoch.

    ``ends`` is the progress at the end of each epoch; ``square`` and ``variance`` have a row for each batch size and
    a column for each epoch. The variance is that of a gradient over ``batch_sizes[0]`` samples.
    """

    batch_sizes: tuple[int, ...]
    ends: Floats
    square: Floats
    variance: Floats

    def epoch(self, fraction: float) -> int:
        """Which epoch it is when a fraction of training is done."""
        return min(int(np.searchsorted(self.ends, fraction * self.ends[-1], side="right")), len(self.ends) - 1)

    def at(self, epoch: int, batch_size: float) -> float:
        """The noise scale in an epoch at a batch size; the statistics, not the scale, are linear in the batch size."""
        square, variance = (float(np.interp(batch_size, self.batch_sizes, t[:, epoch])) for t in self._tables)
        return min(self.batch_sizes[0] * variance / square, QUIETEST) if square > 0 else QUIETEST

    @property
    def _tables(self) -> tuple[Floats, Floats]:
        return self.square, self.variance


@dataclass(frozen=True)
class MeasuredProfile:
    """A model known from measurements alone: what a simulated job really does. Batch sizes are of the whole gang."""

    times: Mapping[str, StepTable]
    noise: NoiseTable
    _noises: dict[tuple[int, int], float] = field(default_factory=dict, repr=False, compare=False)
    _rates: dict[tuple[str, Seats, int], float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def unit(self) -> str:
        """Effective samples."""
        return "samples"

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds that were measured."""
        return tuple(self.times)

    @property
    def per_gpu_batch(self) -> bool:
        """Batch sizes count the samples of the whole gang."""
        return False

    @property
    def initial_batch(self) -> int:
        """The smallest batch size trained at, for which the learning rate was tuned."""
        return self.noise.batch_sizes[0]

    @property
    def max_batch(self) -> int:
        """The largest batch size trained at."""
        return self.noise.batch_sizes[-1]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those that were trained at."""
        return self.noise.batch_sizes

    @property
    def default_batch(self) -> int:
        """The initial batch size, at which the efficiency is 1."""
        return self.initial_batch

    @property
    def work(self) -> float:
        """The effective samples of a whole training."""
        return float(self.noise.ends[-1])

    def spread(self, kind: str) -> float:
        """Measurements are taken as they are."""
        return 0.0

    def most_local(self, kind: str) -> int:
        """The most samples a GPU of this kind holds; 0 where none was measured."""
        return self.times[kind].most_local if kind in self.times else 0

    def fits(self) -> tuple[tuple[str, StepFit], ...]:
        """Pollux's parameters by kind, fitted to all that was measured."""
        return tuple((kind, table.fit) for kind, table in self.times.items())

    def noise_scale(self, progress: float, batch_size: int | None = None) -> float:
        """The gradient noise scale in samples when a fraction of training is done, as seen at this batch size."""
        key = (self.noise.epoch(progress), batch_size or self.initial_batch)
        found = self._noises.get(key)
        if found is None:
            found = self._noises[key] = self.noise.at(*key)
        return found

    def step(self, kind: str, seats: Seats, locality: Locality, local: int) -> StepSeconds | None:
        """What a pass over ``local`` samples on each of these GPUs takes; None on a kind that was not measured."""
        table = self.times.get(kind)
        return None if table is None else table.seconds(seats, local)

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Effective samples per second on as few nodes as hold so many GPUs, averaged over the training."""
        table = self.times.get(kind)
        if table is None or gpus < 1:
            return 0.0
        return self.rate_on(kind, table.packed(gpus, locality), batch_size)

    def rate_on(self, kind: str, seats: Seats, batch_size: int | None = None) -> float:
        """Effective samples per second on exactly these seats, averaged over the training.

        0.0 on a kind that was not measured, with less than a sample for each GPU, or above the largest batch size.
        """
        size = self.initial_batch if batch_size is None else batch_size
        key = (kind, seats, size)
        found = self._rates.get(key)
        if found is None:
            found = self._rates[key] = self._rate_on(kind, seats, size)
        return found

    def _rate_on(self, kind: str, seats: Seats, size: int) -> float:
        table, gpus = self.times.get(kind), sum(seats)
        if table is None or not gpus <= size <= self.max_batch:
            return 0.0
        share = math.ceil(size / gpus)
        added = math.ceil(share / table.most_local) - 1
        if gpus == 1 and size > self.initial_batch:
            added = max(added, 1)  # one GPU tells signal from noise only by comparing two passes of a step
        local = min(math.ceil(share / (added + 1)), self.max_batch // (gpus * (added + 1)))
        taken = table.seconds(seats, local)
        batch = gpus * local * (added + 1)
        return batch / (taken.step + added * taken.passing) * self._mean_efficiency(batch)

    def _mean_efficiency(self, batch: int) -> float:
        """The harmonic mean over the training: total work over samples per second times this is the run time."""
        lengths = np.diff(self.noise.ends, prepend=0.0)
        noise = np.array([self.noise.at(epoch, batch) for epoch in range(len(lengths))])
        cost = (noise + batch) / (noise + self.initial_batch)
        return float(lengths.sum() / (lengths * cost).sum())
