"""How fast one model trains, as a function of the accelerator kind, the GPUs, how far apart they sit, and the batch.

Three ways of knowing: nothing but the declared run time (``LinearProfile``), measured rates (``TableProfile``), and
Pollux's model of a training step (``ScalingProfile``). All are values; ``rate`` is a pure function of its arguments.
Every profile keeps one promise: spreading the same GPUs further apart never makes them faster.

References: Narayanan et al., OSDI 2020 (throughput tables); Qiao et al., OSDI 2021 (step time and efficiency);
Mahajan et al., NSDI 2020 (the placement penalties used where nothing was measured).
"""

import bisect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from shoal.core.goodput import StepFit
from shoal.core.topology import Locality

CROSS_NODE_PENALTY = 1.1
"""Slowdown over several nodes where none was measured: Themis's first guess (its section on placement preference)."""

CROSS_RACK_PENALTY = 1.3
"""Slowdown over several racks where none was measured, from the same place."""

_MEASURED_NODES = 16
"""Over how many nodes the profiles behind the fitted step times were taken, where over more than one (Pollux §5.1)."""

_PENALTY = {
    Locality.SAME_NODE: 1.0,
    Locality.CROSS_NODE: CROSS_NODE_PENALTY,
    Locality.CROSS_RACK: CROSS_RACK_PENALTY,
}


Seats = tuple[int, ...]
"""How many GPUs on each node, in the order of the nodes."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of a pass over so many samples on each GPU, alone and with the synchronisation that ends a step."""

    passing: float
    step: float


class Profile(Protocol):
    """How fast one model goes."""

    @property
    def unit(self) -> str:
        """What progress is counted in: ``samples`` (effective ones) or ``seconds`` of the requested gang."""
        ...

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The accelerator kinds there are figures for; None when any kind will do."""
        ...

    @property
    def per_gpu_batch(self) -> bool:
        """Whether this model's batch sizes count the samples on each GPU, and not those of the whole gang."""
        ...

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Progress per second of the whole gang; 0.0 when it cannot run there. None means the default batch size."""
        ...

    def spread(self, kind: str) -> float:
        """How far off a rate on this kind may be, as a fraction of it; 0.0 when the figures are taken as they are."""
        ...


@dataclass(frozen=True, slots=True)
class LinearProfile:
    """Nothing is known but the run time on the requested gang: twice the GPUs go twice as fast, whatever they are."""

    gang: int

    @property
    def unit(self) -> str:
        """Seconds of run time on the requested gang."""
        return "seconds"

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """Any kind will do."""
        return None

    @property
    def per_gpu_batch(self) -> bool:
        """The batch size plays no part."""
        return False

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """``gpus / gang``: exactly 1.0 on the requested gang."""
        return max(gpus, 0) / self.gang

    def spread(self, kind: str) -> float:
        """The declared run time is taken at its word."""
        return 0.0


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A measured rate in samples per second: all GPUs on one node, and spread over nodes where that was measured."""

    gpus: int
    together: float
    apart: float | None = None


Figures = tuple[MeasuredRate, ...]
"""Figures of one model, batch size and kind, by ascending GPU count."""


@dataclass(frozen=True, slots=True)
class TableProfile:
    """Measured rates by batch size per GPU, kind and GPU count.

    Between measured GPU counts the rate per GPU is linear in log2 of the count; outside them it stays what it was at
    the nearest. Between measured batch sizes the rate is linear in log2 of the batch size; outside them it stays what
    it was at the nearest. A figure of 0 means "does not fit", and so does anything between it and its neighbours.
    Over several nodes or racks the measured spread rate counts, but never more than the rate on one node (some tables
    have it higher, by noise or by contention inside the node); where it was not measured, Themis's penalties apply.
    """

    figures: Mapping[int, Mapping[str, Figures]]
    max_gpus: int | None = None

    @property
    def unit(self) -> str:
        """Samples."""
        return "samples"

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds with a figure above 0 for some batch size, in the order of the table."""
        return tuple(dict.fromkeys(kind for batch in self.figures for kind in self.kinds_at(batch)))

    @property
    def per_gpu_batch(self) -> bool:
        """Batch sizes count the samples on each GPU, as the tables do."""
        return True

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The measured batch sizes per GPU, ascending."""
        return tuple(sorted(self.figures))

    @property
    def default_batch(self) -> int:
        """The middle one of the measured batch sizes, the larger of two."""
        return self.batch_sizes[len(self.figures) // 2]

    def kinds_at(self, batch_size: int) -> tuple[str, ...]:
        """The kinds on which this measured batch size runs at all."""
        return tuple(kind for kind, row in self.figures[batch_size].items() if any(f.together > 0 for f in row))

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Samples per second of the gang; 0.0 without figures, out of memory, or beyond ``max_gpus``."""
        if gpus < 1 or (self.max_gpus is not None and gpus > self.max_gpus):
            return 0.0
        sizes = [size for size in self.batch_sizes if kind in self.figures[size]]
        if not sizes:
            return 0.0
        wanted = self.default_batch if batch_size is None else batch_size
        low, high, share = _between(sizes, wanted)
        below = _rate_of(self.figures[low][kind], gpus, locality)
        if low == high:
            return below
        above = _rate_of(self.figures[high][kind], gpus, locality)
        return _mix(below, above, share)

    def spread(self, kind: str) -> float:
        """The tables state no error, so none is claimed."""
        return 0.0


def _rate_of(figures: Figures, gpus: int, locality: Locality) -> float:
    together = _at_count([(f.gpus, f.together) for f in figures], gpus)
    if locality is Locality.SAME_NODE or gpus == 1:
        return together
    apart = [(f.gpus, f.apart) for f in figures if f.apart is not None]
    if not apart:
        return together / _PENALTY[locality]
    return min(together, _at_count(apart, gpus))


def _at_count(points: list[tuple[int, float]], gpus: int) -> float:
    rates = dict(points)
    if gpus in rates:
        return rates[gpus]
    low, high, share = _between(list(rates), gpus)
    return gpus * _mix(rates[low] / low, rates[high] / high, share)


def _between(known: list[int], wanted: int) -> tuple[int, int, float]:
    """The known numbers around the wanted one, and how far between them it is on a logarithmic scale."""
    at = bisect.bisect_left(known, wanted)
    if at == len(known) or known[at] == wanted or at == 0:
        nearest = known[min(at, len(known) - 1)]
        return nearest, nearest, 0.0
    low, high = known[at - 1], known[at]
    return low, high, math.log(wanted / low) / math.log(high / low)


def _mix(low: float, high: float, share: float) -> float:
    return low + (high - low) * share if low > 0 and high > 0 else 0.0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Pollux's seven parameters on one kind, and the limits they hold within.

    ``compute`` is seconds per pass and per sample; ``node`` and ``network`` are seconds of synchronisation for two
    GPUs, and for each one more, on one node and over several (None when only one node was measured). ``max_local`` is
    the most samples a GPU can hold, ``node_gpus`` the GPUs per node of the measured machine, ``error`` the fit's root
    mean squared log error.
    """

    compute: tuple[float, float]
    node: tuple[float, float]
    network: tuple[float, float] | None
    gamma: float
    max_local: int
    node_gpus: int
    error: float = 0.0

    def pass_seconds(self, local: int) -> float:
        """Seconds of forward and backward pass over ``local`` samples on each GPU."""
        return self.compute[0] + self.compute[1] * local

    def sync_seconds(self, gpus: int, locality: Locality) -> float:
        """Seconds of synchronisation that a step would take if none of it were hidden.

        Some fits put a gang over several nodes ahead of the same gang on one. Here it waits at least as long as its
        share of GPUs on one node of the measured size would, and a gang on a node larger than any measured waits no
        longer than it would over several.
        """
        if gpus < 2:
            return 0.0
        on_node = self.node[0] + self.node[1] * (gpus - 2)
        if self.network is None:
            return on_node
        within = self.node[0] + self.node[1] * (min(gpus, self.node_gpus) - 2)
        across = max(self.network[0] + self.network[1] * (gpus - 2), within)
        return min(on_node, across) if locality is Locality.SAME_NODE else across

    def fit(self) -> StepFit:
        """These figures as an agent would report them: what distance costs beyond what was measured is not in them."""
        network = self.node if self.network is None else self.network
        nodes = 1 if self.network is None else _MEASURED_NODES
        gpus = nodes * self.node_gpus
        return StepFit(self.compute, self.node, network, network, self.gamma, self.max_local, gpus, nodes, self.error)

    def slowdown(self, gpus: int, locality: Locality) -> float:
        """What distance costs beyond ``sync_seconds``: racks always, nodes only where no network was measured."""
        if gpus < 2:
            return 1.0
        measured = Locality.SAME_NODE if self.network is None else min(locality, Locality.CROSS_NODE)
        return _PENALTY[locality] / _PENALTY[Locality(measured)]

    def iteration_seconds(self, batch_size: int, gpus: int, locality: Locality) -> float:
        """Seconds for one optimizer step over ``batch_size`` samples in all, split evenly and rounded up.

        Without accumulation it lies between the larger of compute and sync and their sum.
        """
        local = math.ceil(batch_size / gpus)
        accumulations = math.ceil(local / self.max_local) - 1
        taken = self.step(gpus, locality, math.ceil(local / (accumulations + 1)))
        return accumulations * taken.passing + taken.step

    def step(self, gpus: int, locality: Locality, local: int) -> StepSeconds:
        """What a pass over ``local`` samples on each GPU takes, alone and with the synchronisation that ends a step."""
        compute, sync = self.pass_seconds(local), self.sync_seconds(gpus, locality)
        longer, shorter = max(compute, sync), min(compute, sync)
        step = longer * math.pow(1.0 + math.pow(shorter / longer, self.gamma), 1.0 / self.gamma)
        slowdown = self.slowdown(gpus, locality)
        return StepSeconds(compute * slowdown, step * slowdown)


@dataclass(frozen=True, slots=True)
class ScalingProfile:
    """Pollux's model: step time by kind, GPUs and batch size, times the statistical efficiency of the batch size.

    Batch sizes count the samples of the whole gang. ``noise`` holds (fraction of training done, gradient noise scale
    in samples), by ascending fraction from 0 to 1; between them the inverse efficiency is linear.
    """

    times: Mapping[str, StepTimes]
    initial_batch: int
    max_batch: int
    noise: tuple[tuple[float, float], ...]
    work: float

    @property
    def unit(self) -> str:
        """Effective samples."""
        return "samples"

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds that were fitted."""
        return tuple(self.times)

    @property
    def per_gpu_batch(self) -> bool:
        """Batch sizes count the samples of the whole gang."""
        return False

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The standard ones: the initial batch size doubled up to the largest."""
        return tuple(self._doubled())

    def _doubled(self) -> Iterator[int]:
        size = self.initial_batch
        while size <= self.max_batch:
            yield size
            size *= 2

    @property
    def default_batch(self) -> int:
        """The initial batch size, at which the efficiency is 1."""
        return self.initial_batch

    def efficiency(self, batch_size: int, progress: float | None = None) -> float:
        """How much a sample is worth against one at the initial batch size, when a fraction of training is done.

        Without ``progress``, the harmonic mean over the whole training: total work divided by samples per second
        times this is the run time at a constant batch size. Never above 1.
        """
        cost = [(at, max((n + batch_size) / (n + self.initial_batch), 1.0)) for at, n in self.noise]
        if progress is None:
            return 1.0 / sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(cost))
        for (a, x), (b, y) in pairwise(cost):
            if progress <= b:
                return 1.0 / (x + (y - x) * max(progress - a, 0.0) / (b - a))
        return 1.0 / cost[-1][1]

    def noise_scale(self, progress: float, batch_size: int | None = None) -> float:
        """The gradient noise scale in samples when a fraction of training is done: ``efficiency`` follows from it.

        It is the same at every batch size.
        """
        inverse = [(at, 1.0 / (n + self.initial_batch)) for at, n in self.noise]
        within = min(max(progress, inverse[0][0]), inverse[-1][0])
        for (a, x), (b, y) in pairwise(inverse):
            if within <= b:
                return 1.0 / (x + (y - x) * (within - a) / (b - a)) - self.initial_batch
        return self.noise[-1][1]

    def fits(self) -> tuple[tuple[str, StepFit], ...]:
        """The same step times as an agent would report them, by kind."""
        return tuple((kind, times.fit()) for kind, times in self.times.items())

    def most_local(self, kind: str) -> int:
        """The most samples a GPU of this kind holds; 0 on a kind that was not fitted."""
        return self.times[kind].max_local if kind in self.times else 0

    def step(self, kind: str, seats: Seats, locality: Locality, local: int) -> StepSeconds | None:
        """What a pass over ``local`` samples on each of these GPUs takes; None on a kind that was not fitted."""
        times = self.times.get(kind)
        return None if times is None else times.step(sum(seats), locality, local)

    def throughput(self, kind: str, gpus: int, locality: Locality, batch_size: int) -> float:
        """Raw samples per second; 0.0 on an unknown kind, with less than a sample per GPU, or above ``max_batch``."""
        times = self.times.get(kind)
        if times is None or not 1 <= gpus <= batch_size <= self.max_batch:
            return 0.0
        return batch_size / times.iteration_seconds(batch_size, gpus, locality)

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Effective samples per second, averaged over the training; 0.0 where ``throughput`` is."""
        batch = self.initial_batch if batch_size is None else batch_size
        raw = self.throughput(kind, gpus, locality, batch)
        return raw * self.efficiency(batch) if raw > 0 else 0.0

    def spread(self, kind: str) -> float:
        """The fit's error on step times there."""
        times = self.times.get(kind)
        return times.error if times is not None else 0.0
