"""How many GPUs a job is worth renting: by its goodput, by its throughput alone, or by what waiting for it is worth.

Pure functions of what jobs' agents report and of what a cloud offers at what price. What one may rely on: an answer is
never above what is on offer, and more than was rented for the job before only up to what it can use and to twice the
GPUs it was ever tried on, since nothing measured stands behind a forecast beyond. On one kind it is never less than
before: nodes go back when jobs end. A job whose batch size is its owner's is rented what it asks for, one that has not
reported yet the fewest it can begin with.

References: Qiao et al., "Pollux", OSDI 2021, §5.4.1 (by goodput); Or et al., "Resource Elasticity in Distributed Deep
Learning", MLSys 2020 (by throughput); Everett, "Generalized Lagrange Multiplier Method", Operations Research 1963 (by
value).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchLimits, JobSpec
from shoal.core.topology import Locality
from shoal.core.units import Seconds
from shoal.perf.goodput import best
from shoal.policy.goodput_options import adapts

_SOON: Seconds = 1.0
"""A job that has only come is thought to stay at least so long."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Nodes of one kind that can be rented; the price is in dollars per GPU-hour, None where nobody said."""

    kind: str
    node_gpus: int
    nodes: int
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """A live job: its specification, what its agent last reported, and the GPUs rented for it so far.

    ``growing`` says that it was worth more than could be rented in one step.
    """

    spec: JobSpec
    report: GoodputReport | None = None
    rented: int = 0
    growing: bool = False


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """How fast a job would go on ascending ``sizes`` in GPUs, all ``rates`` above 0, and place ``at`` where it is.

    A node has ``node_gpus`` and is paid for ``boot`` seconds before it can be used. ``growing`` says that the job was
    on its way to more; ``age`` is how long ago it came.
    """

    sizes: Indices
    rates: Floats
    at: int
    node_gpus: int
    growing: bool = False
    age: Seconds = inf
    boot: Seconds = 0.0

    @property
    def node(self) -> int:
        """The place of one node, or of the most that fit into it."""
        return _place(self.sizes, self.node_gpus)


class RentRule(Protocol):
    """How many GPUs to rent for a job."""

    def step(self, job: ScalingCurve) -> int:
        """The place in its sizes to go to from where it is, never back."""
        ...


@dataclass(frozen=True, slots=True)
class GoodputRule:
    """Rent more once GPUs do more than ``above`` of what they ideally would, until they do about ``to`` of it.

    Ideally all do as much as those of a single ``node``, since nothing smaller can be rented; or, with ``ideal=gpu``
    as in the paper's formula, as one that has nobody to wait for.
    """

    above: float = 2.0 / 3.0
    to: float = 0.5
    ideal: str = "node"

    def __post_init__(self) -> None:
        if not 0.0 < self.to <= self.above <= 1.0:
            raise ValueError("0 < to <= above <= 1 must hold")
        if self.ideal not in ("node", "gpu"):
            raise ValueError("ideal must be node or gpu")

    def step(self, job: ScalingCurve) -> int:
        """To the size whose goodput is nearest to ``to`` of the ideal; the largest of equals."""
        each = job.rates / job.sizes
        share = each / each[job.node if self.ideal == "node" else 0]
        if not (job.growing or share[job.at] > self.above):
            return job.at
        return len(job.sizes) - 1 - int(np.abs(share[job.at :] - self.to)[::-1].argmin())


@dataclass(frozen=True, slots=True)
class ThroughputRule:
    """Rent more while each further GPU adds at least ``gain`` of what a GPU of those there are does.

    Meant for agents that know of throughput only; 0.1 is the default of the authors' code.
    """

    gain: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.gain <= 1.0:
            raise ValueError("gain must be from 0 to 1")

    def step(self, job: ScalingCurve) -> int:
        """On until the first size that gains too little over the one before."""
        sizes, rates = job.sizes, job.rates
        gains = np.diff(rates) / np.diff(sizes) / (rates[:-1] / sizes[:-1])
        stop = np.flatnonzero(gains[job.at :] < self.gain)
        return job.at + int(stop[0]) if len(stop) else len(sizes) - 1


@dataclass(frozen=True, slots=True)
class ValueRule:
    """Rent what makes rent and waiting together least, if an hour of waiting is worth ``hour`` node-hours.

    A useful sample on n nodes costs (n + v)/goodput(n), v being ``hour``. Which n that is least for at one moment says
    nothing of any other, so a training costs least, rent and waiting together, if it is least at every moment: nothing
    need be known of what is to come. If the training then takes T hours, none that takes no longer rents for less, or
    it would cost less together, too. That is Everett's theorem, and says that the rule wastes nothing as far as goodput
    is told right and changes are free.

    They are not: a job that changes waits ``restart`` seconds on all its nodes, and new nodes are paid for while they
    boot. A job is thought to go on for as long as it has been there, as in Pollux, and a change must pay within that.
    """

    hour: float = 5.5
    restart: float = 30.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.hour < inf:
            raise ValueError("hour must be a finite number of node-hours, at least 0")
        if not 0.0 <= self.restart < inf:
            raise ValueError("restart must be a finite number of seconds, at least 0")

    def step(self, job: ScalingCurve) -> int:
        """To where a useful sample costs least, rent and waiting together; the fewest of equals."""
        sizes, rates = job.sizes[job.at :], job.rates[job.at :]
        burden = sizes + self.hour * job.node_gpus
        if not job.growing:
            change = self.restart * burden + job.boot * (sizes - sizes[0])
            burden[1:] += change[1:] / max(job.age, _SOON)
        return job.at + int((burden / rates).argmin())


def wanted(
    rule: RentRule, need: Need, offers: Sequence[NodeOffer], age: Seconds = inf, boot: Seconds = 0.0
) -> tuple[str, Need] | None:
    """The kind of GPUs to rent for a job that came so long ago, and the job with how many; nodes boot for ``boot``.

    None where nothing on offer would do. The kind is the one on which a node does most for its price, and before that
    is known the first on offer.
    """
    spec, report, limits = need.spec, need.report, need.spec.limits
    fewest = spec.min_gpus if adapts(spec) else spec.gpus
    enough = [o for o in offers if (spec.kinds is None or o.kind in spec.kinds) and o.node_gpus * o.nodes >= fewest]
    if not enough:
        return None
    if report is None or limits is None or not adapts(spec):
        return enough[0].kind, replace(need, rented=max(fewest, need.rented))
    offer = max(enough, key=lambda o: _worth(o, limits, report))
    sizes = _sizes(offer, fewest, spec.max_gpus)
    rates = _rates(offer, limits, report, sizes)
    usable = int(np.argmin(np.append(rates > 0, False)))  # the batch limits leave no more GPUs a sample each
    if not usable:
        return offer.kind, replace(need, rented=max(fewest, need.rented))
    sizes, rates = sizes[:usable], rates[:usable]
    at = _place(sizes, need.rented)
    goal = sizes[rule.step(ScalingCurve(sizes, rates, at, offer.node_gpus, need.growing, age, boot))]
    within = sizes[sizes <= max(2 * report.seen_gpus, need.rented, fewest)]
    return offer.kind, replace(need, rented=int(min(goal, within[-1])), growing=bool(goal > within[-1]))


def _place(sizes: Indices, gpus: int) -> int:
    """Where the largest of ascending sizes within so many GPUs is, or the first."""
    return max(int(np.searchsorted(sizes, gpus, side="right")) - 1, 0)


def _sizes(offer: NodeOffer, fewest: int, most: int) -> Indices:
    """Parts of a node, and whole nodes."""
    node = offer.node_gpus
    every = [*range(1, node), *(n * node for n in range(1, offer.nodes + 1))]
    return np.array(sorted({fewest, *(n for n in every if fewest <= n <= most)}), dtype=np.intp)


def _rates(offer: NodeOffer, limits: BatchLimits, report: GoodputReport, sizes: Indices) -> Floats:
    """Goodput at the best batch for each size; 0 on a kind the report says nothing of."""
    fit = dict(report.fits).get(offer.kind)
    if fit is None:
        return np.zeros(len(sizes))
    apart = np.where(sizes <= offer.node_gpus, int(Locality.SAME_NODE), int(Locality.CROSS_NODE))
    return best(fit, limits, report.noise, sizes, apart).goodput


def _worth(offer: NodeOffer, limits: BatchLimits, report: GoodputReport) -> float:
    """Goodput of a node for what it costs."""
    price = 1.0 if offer.price_per_hour is None else max(offer.price_per_hour, 1e-9)
    node = np.array([offer.node_gpus], dtype=np.intp)
    return float(_rates(offer, limits, report, node)[0]) / (price * offer.node_gpus)
