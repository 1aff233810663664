"""Rules for the number of GPUs to rent for a job: by goodput, by throughput alone, or by the value of waiting time.

Pure functions of the reports of jobs' agents and of a cloud's offers and prices. An answer never exceeds the offer. It
exceeds what was rented for the job before only up to what the job can use and to twice the GPUs it was ever tried on,
since no measurement supports a forecast beyond that. On one kind it is never less than before: nodes are given back
when jobs end. A job of fixed batch size gets what it requests, one that has not reported yet its fewest GPUs.

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
from shoal.core.batch_limits import BatchLimits
from shoal.core.goodput import GoodputReport
from shoal.core.job import JobSpec
from shoal.core.topology import Locality
from shoal.core.units import Seconds
from shoal.perf.goodput import best
from shoal.policy.goodput_options import adapts

_LEAST_AGE: Seconds = 1.0
"""Least expected remaining time of a job that has just arrived, in seconds."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Nodes of one kind that can be rented; the price is in dollars per GPU-hour, None if unknown."""

    kind: str
    node_gpus: int
    nodes: int
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """A live job: its specification, its agent's last report, and the GPUs rented for it so far.

    ``growing``: the rule wanted more than could be rented in one step.
    """

    spec: JobSpec
    report: GoodputReport | None = None
    rented: int = 0
    growing: bool = False


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """A job's ``rates``, all above 0, by ascending ``sizes`` in GPUs; ``at`` is the index of its present size.

    A node has ``node_gpus`` and is paid for ``boot`` seconds before it can be used. ``growing``: the rule wanted more
    than the last step allowed. ``age``: seconds since the job arrived.
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
        """The index of one node, or of the largest size within it."""
        return _index(self.sizes, self.node_gpus)


class RentRule(Protocol):
    """A rule for the number of GPUs to rent for a job."""

    def step(self, job: ScalingCurve) -> int:
        """The index of the size to rent, at least that of the present one."""
        ...


@dataclass(frozen=True, slots=True)
class GoodputRule:
    """Rent more once goodput exceeds the fraction ``above`` of the ideal, until it is about the fraction ``to``.

    Ideal is the goodput per GPU of a single ``node``, since nothing smaller can be rented; or, with ``ideal=gpu``
    as in the paper's formula, that of a GPU on its own.
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
        """Return the index of the size whose goodput is nearest to ``to`` of the ideal; of equals the largest."""
        each = job.rates / job.sizes
        share = each / each[job.node if self.ideal == "node" else 0]
        if not (job.growing or share[job.at] > self.above):
            return job.at
        return len(job.sizes) - 1 - int(np.abs(share[job.at :] - self.to)[::-1].argmin())


@dataclass(frozen=True, slots=True)
class ThroughputRule:
    """Rent more while each further GPU adds at least ``gain`` of the throughput of a present one.

    Meant for agents that know only throughput; 0.1 is the default of the authors' code.
    """

    gain: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.gain <= 1.0:
            raise ValueError("gain must be from 0 to 1")

    def step(self, job: ScalingCurve) -> int:
        """Return the index of the last size before the first that gains too little."""
        sizes, rates = job.sizes, job.rates
        gains = np.diff(rates) / np.diff(sizes) / (rates[:-1] / sizes[:-1])
        stop = np.flatnonzero(gains[job.at :] < self.gain)
        return job.at + int(stop[0]) if len(stop) else len(sizes) - 1


@dataclass(frozen=True, slots=True)
class ValueRule:
    """Rent what minimises the sum of rent and waiting, an hour of waiting being worth ``hour`` node-hours.

    A useful sample on n nodes costs (n + v)/goodput(n), v being ``hour``. The n that minimises it at one moment does
    not depend on any other moment, so a training costs least, rent and waiting together, if n does so at every moment:
    the future need not be known. If the training then takes T hours, none that takes no longer rents for less, or it
    would cost less in sum, too. That is Everett's theorem: the rule wastes nothing as far as goodput is reported
    correctly and changes are free.

    Changes are not free: a job that changes waits ``restart`` seconds on all its nodes, and new nodes are paid for
    while they boot. A job is expected to run for as long again as its age, as in Pollux, and a change must pay for
    itself in that time.
    """

    hour: float = 5.5
    restart: float = 30.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.hour < inf:
            raise ValueError("hour must be a finite number of node-hours, at least 0")
        if not 0.0 <= self.restart < inf:
            raise ValueError("restart must be a finite number of seconds, at least 0")

    def step(self, job: ScalingCurve) -> int:
        """The index of the size on which a useful sample costs least, rent and waiting together."""
        sizes, rates = job.sizes[job.at :], job.rates[job.at :]
        cost_rate = sizes + self.hour * job.node_gpus
        if not job.growing:
            change = self.restart * cost_rate + job.boot * (sizes - sizes[0])
            cost_rate[1:] += change[1:] / max(job.age, _LEAST_AGE)
        return job.at + int((cost_rate / rates).argmin())


def wanted(
    rule: RentRule, need: Need, offers: Sequence[NodeOffer], age: Seconds = inf, boot: Seconds = 0.0
) -> tuple[str, Need] | None:
    """Return the kind to rent for a job that arrived ``age`` seconds ago, and the job with its new number of GPUs.

    None if no offer suffices. The kind is the one with the most goodput of a node for its price; the first on offer
    before that is known. ``boot``: seconds that a node takes to boot.
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
    usable = int(np.argmin(np.append(rates > 0, False)))  # beyond, the batch limits leave some GPU without a sample
    if not usable:
        return offer.kind, replace(need, rented=max(fewest, need.rented))
    sizes, rates = sizes[:usable], rates[:usable]
    at = _index(sizes, need.rented)
    goal = sizes[rule.step(ScalingCurve(sizes, rates, at, offer.node_gpus, need.growing, age, boot))]
    within = sizes[sizes <= max(2 * report.seen_gpus, need.rented, fewest)]
    return offer.kind, replace(need, rented=int(min(goal, within[-1])), growing=bool(goal > within[-1]))


def _index(sizes: Indices, gpus: int) -> int:
    """The index of the largest of ascending sizes that is at most ``gpus``, or 0."""
    return max(int(np.searchsorted(sizes, gpus, side="right")) - 1, 0)


def _sizes(offer: NodeOffer, fewest: int, most: int) -> Indices:
    """Numbers of GPUs from ``fewest`` to ``most``: parts of a node, and whole nodes."""
    node = offer.node_gpus
    every = [*range(1, node), *(n * node for n in range(1, offer.nodes + 1))]
    return np.array(sorted({fewest, *(n for n in every if fewest <= n <= most)}), dtype=np.intp)


def _rates(offer: NodeOffer, limits: BatchLimits, report: GoodputReport, sizes: Indices) -> Floats:
    """Goodput at the best batch for each size; 0 on a kind that the report does not have."""
    fit = dict(report.fits).get(offer.kind)
    if fit is None:
        return np.zeros(len(sizes))
    apart = np.where(sizes <= offer.node_gpus, int(Locality.SAME_NODE), int(Locality.CROSS_NODE))
    return best(fit, limits, report.noise, sizes, apart).goodput


def _worth(offer: NodeOffer, limits: BatchLimits, report: GoodputReport) -> float:
    """Goodput of a node per unit of its price."""
    price = 1.0 if offer.price_per_hour is None else max(offer.price_per_hour, 1e-9)
    node = np.array([offer.node_gpus], dtype=np.intp)
    return float(_rates(offer, limits, report, node)[0]) / (price * offer.node_gpus)
