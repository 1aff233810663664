"""Training speed of one model by kind of GPU, number of GPUs, distance between them and batch size.

`LinearProfile` knows only the declared run time, `TableProfile` has measured rates, `ScalingProfile` is Pollux's model
of a training step. All are values; ``rate`` is a pure function of its arguments. In every profile, GPUs further apart
are never faster.

References: Narayanan et al., OSDI 2020 (throughput tables); Qiao et al., OSDI 2021 (step time and efficiency);
Mahajan et al., NSDI 2020 (the placement penalties used where nothing was measured).
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol

from shoal.core.goodput import StepFit
from shoal.core.topology import Locality

CROSS_NODE_PENALTY = 1.1
"""Slowdown over several nodes where none was measured: the first guess of Themis (section on placement preference)."""

CROSS_RACK_PENALTY = 1.3
"""Slowdown over several racks where none was measured, from the same place."""

_MEASURED_NODES = 16
"""Nodes of the cluster on which multi-node step times were measured (Pollux §5.1)."""

_PENALTY = {
    Locality.SAME_NODE: 1.0,
    Locality.CROSS_NODE: CROSS_NODE_PENALTY,
    Locality.CROSS_RACK: CROSS_RACK_PENALTY,
}


Seats = tuple[int, ...]
"""GPUs on each node, in the order of the nodes."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of one pass, alone (``passing``) and with the synchronisation that ends a step (``step``)."""

    passing: float
    step: float


class Profile(Protocol):
    """Training speed of one model."""

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds of GPU with figures; None when any kind will do."""
        ...

    @property
    def per_gpu_batch(self) -> bool:
        """Whether batch sizes are samples on each GPU, and not samples of the whole gang."""
        ...

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Work per second of the whole gang; 0.0 where it cannot run. None means the default batch size.

        Work is in effective samples, or for a `LinearProfile` in seconds of the requested gang.
        """
        ...


@dataclass(frozen=True, slots=True)
class LinearProfile:
    """A job of which only the run time on the requested gang is known: its rate is linear in its GPUs of any kind."""

    gang: int
    kinds: ClassVar[None] = None
    per_gpu_batch: ClassVar[bool] = False

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """``gpus / gang``: exactly 1.0 on the requested gang."""
        return max(gpus, 0) / self.gang


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A measured rate in samples per second: all GPUs on one node, and spread over nodes where that was measured."""

    gpus: int
    together: float
    apart: float | None = None


Figures = tuple[MeasuredRate, ...]
"""Rates of one model, batch size and kind, by ascending number of GPUs."""


@dataclass(frozen=True, slots=True)
class TableProfile:
    """Measured rates by batch size per GPU, kind and GPU count.

    Between measured GPU counts the rate per GPU is linear in log2 of the count; between measured batch sizes the rate
    is linear in log2 of the batch size; outside both it is that of the nearest. A rate of 0 means "does not fit", and
    so does anything between it and its neighbours. Over several nodes or racks the measured spread rate counts, but
    never more than the rate on one node (some tables have it higher, by noise or by contention inside the node); where
    it was not measured, Themis's penalties apply.
    """

    figures: Mapping[int, Mapping[str, Figures]]
    max_gpus: int | None = None
    per_gpu_batch: ClassVar[bool] = True

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds with a figure above 0 for some batch size, in the order of the table."""
        return tuple(dict.fromkeys(kind for batch in self.figures for kind in self.kinds_at(batch)))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The measured batch sizes per GPU, ascending."""
        return tuple(sorted(self.figures))

    @property
    def default_batch(self) -> int:
        """The middle one of the measured batch sizes, the larger of two middle ones."""
        return self.batch_sizes[len(self.figures) // 2]

    def kinds_at(self, batch_size: int) -> tuple[str, ...]:
        """The kinds on which this measured batch size fits."""
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
    """The known numbers around the wanted one, and its position between them on a logarithmic scale, from 0 to 1."""
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
    """Pollux's seven parameters of a step on one kind, and the range in which they were measured.

    ``compute`` is seconds per pass and per sample; ``node`` and ``network`` are seconds of synchronisation for two
    GPUs, and for each one more, on one node and over several (None when only one node was measured). ``max_local`` is
    the most samples a GPU can hold, ``node_gpus`` the GPUs per node of the measured machine, ``error`` the fit's root
    mean squared log error. ``source`` says who published them.
    """

    compute: tuple[float, float]
    node: tuple[float, float]
    network: tuple[float, float] | None
    gamma: float
    max_local: int
    node_gpus: int
    error: float = 0.0
    source: str = ""

    def pass_seconds(self, local: int) -> float:
        """Seconds of forward and backward pass over ``local`` samples on each GPU."""
        return self.compute[0] + self.compute[1] * local

    def sync_seconds(self, gpus: int, locality: Locality) -> float:
        """Seconds of synchronisation of a step if none of it overlapped with computation.

        In some fits a gang over several nodes is faster than the same gang on one. Here it takes at least as long as
        as many GPUs as one node of the measured size has, and a gang on a larger node takes no longer than it would
        over several nodes.
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
        """These parameters as a job would report them, without the penalties for distances that were not measured."""
        network = self.node if self.network is None else self.network
        nodes = 1 if self.network is None else _MEASURED_NODES
        gpus = nodes * self.node_gpus
        return StepFit(self.compute, self.node, network, network, self.gamma, self.max_local, gpus, nodes, self.error)

    def slowdown(self, gpus: int, locality: Locality) -> float:
        """Factor for distance beyond ``sync_seconds``: racks always, nodes only where no network was measured."""
        if gpus < 2:
            return 1.0
        measured = Locality.SAME_NODE if self.network is None else min(locality, Locality.CROSS_NODE)
        return _PENALTY[locality] / _PENALTY[Locality(measured)]

    def iteration_seconds(self, batch_size: int, gpus: int, locality: Locality) -> float:
        """Seconds of one optimizer step over ``batch_size`` samples, divided evenly among the GPUs and rounded up.

        A step without accumulation takes at least the longer of compute and synchronisation, and at most their sum.
        """
        local = math.ceil(batch_size / gpus)
        accumulations = math.ceil(local / self.max_local) - 1
        taken = self.step(gpus, locality, math.ceil(local / (accumulations + 1)))
        return accumulations * taken.passing + taken.step

    def step(self, gpus: int, locality: Locality, local: int) -> StepSeconds:
        """Seconds of a pass over ``local`` samples on each GPU, alone and with the synchronisation that ends a step."""
        compute, sync = self.pass_seconds(local), self.sync_seconds(gpus, locality)
        longer, shorter = max(compute, sync), min(compute, sync)
        step = longer * math.pow(1.0 + math.pow(shorter / longer, self.gamma), 1.0 / self.gamma)
        slowdown = self.slowdown(gpus, locality)
        return StepSeconds(compute * slowdown, step * slowdown)


@dataclass(frozen=True, slots=True)
class ScalingProfile:
    """Pollux's model: step times by kind, GPUs and batch size, and the statistical efficiency of the batch size.

    Batch sizes are samples of the whole gang. ``noise`` has (fraction of training done, gradient noise scale in
    samples), by ascending fraction from 0 to 1; between them the inverse efficiency is linear. ``work`` is the
    effective samples of a whole training.
    """

    times: Mapping[str, StepTimes]
    initial_batch: int
    max_batch: int
    noise: tuple[tuple[float, float], ...]
    work: float
    per_gpu_batch: ClassVar[bool] = False

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds with fitted step times."""
        return tuple(self.times)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The standard batch sizes: the initial one, at which the efficiency is 1, doubled up to the largest."""
        return tuple(self.initial_batch << n for n in range((self.max_batch // self.initial_batch).bit_length()))

    def efficiency(self, batch_size: int) -> float:
        """Return effective samples per sample, as the harmonic mean over the whole training; never above 1.

        Total work divided by samples per second times this is the run time at a constant batch size.
        """
        cost = [(at, max((n + batch_size) / (n + self.initial_batch), 1.0)) for at, n in self.noise]
        return 1.0 / sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(cost))

    def noise_scale(self, progress: float, batch_size: int | None = None) -> float:
        """The gradient noise scale in samples when a fraction of training is done; the same at every batch size."""
        inverse = [(at, 1.0 / (n + self.initial_batch)) for at, n in self.noise]
        within = min(max(progress, inverse[0][0]), inverse[-1][0])
        for (a, x), (b, y) in pairwise(inverse):
            if within <= b:
                return 1.0 / (x + (y - x) * (within - a) / (b - a)) - self.initial_batch
        return self.noise[-1][1]

    def fits(self) -> tuple[tuple[str, StepFit], ...]:
        """By kind, the step times as a job would report them."""
        return tuple((kind, times.fit()) for kind, times in self.times.items())

    def most_local(self, kind: str) -> int:
        """The most samples a GPU of this kind holds; 0 on a kind without figures."""
        return self.times[kind].max_local if kind in self.times else 0

    def step(self, kind: str, seats: Seats, locality: Locality, local: int) -> StepSeconds | None:
        """Seconds of a pass over ``local`` samples on each of these GPUs; None on a kind without figures."""
        times = self.times.get(kind)
        return None if times is None else times.step(sum(seats), locality, local)

    def throughput(self, kind: str, gpus: int, locality: Locality, batch_size: int) -> float:
        """Samples per second; 0.0 on an unknown kind, with less than a sample per GPU, or above ``max_batch``."""
        times = self.times.get(kind)
        if times is None or not 1 <= gpus <= batch_size <= self.max_batch:
            return 0.0
        return batch_size / times.iteration_seconds(batch_size, gpus, locality)

    def rate(self, kind: str, gpus: int, locality: Locality, batch_size: int | None = None) -> float:
        """Effective samples per second, averaged over the training; 0.0 where ``throughput`` is."""
        batch = self.initial_batch if batch_size is None else batch_size
        raw = self.throughput(kind, gpus, locality, batch)
        return raw * self.efficiency(batch) if raw > 0 else 0.0
