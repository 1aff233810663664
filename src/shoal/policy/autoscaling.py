"""How many GPUs a job is worth renting: by its goodput, or by its throughput alone.

Pure functions of what jobs' agents report and of what a cloud offers at what price. What one may rely on: an answer is
never above what is on offer, and more than was rented for the job before only up to what it can use and to twice the
GPUs it was ever tried on, since nothing measured stands behind a forecast beyond. On one kind it is never less than
before: nodes go back when jobs end. A job whose batch size is its owner's is rented what it asks for, one that has not
reported yet the fewest it can begin with.

References: Qiao et al., "Pollux", OSDI 2021, §5.4.1 (by goodput); Or et al., "Resource Elasticity in Distributed Deep
Learning", MLSys 2020 (by throughput).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from shoal.core.decision import Floats
from shoal.core.goodput import GoodputReport
from shoal.core.job import BatchLimits, JobSpec
from shoal.core.topology import Locality
from shoal.perf.goodput import best
from shoal.policy.goodput import adapts
from shoal.solve.choices import Ints


@dataclass(frozen=True, slots=True)
class Offer:
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


class Rule(Protocol):
    """How many GPUs to rent for a job."""

    def step(self, sizes: Ints, rates: Floats, at: int, node: int, *, growing: bool) -> int:
        """The place in the ascending ``sizes`` to go to from place ``at``, never back; place ``node`` is one node.

        ``rates`` is how fast the job would go on so many GPUs, all above 0.
        """
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

    def step(self, sizes: Ints, rates: Floats, at: int, node: int, *, growing: bool) -> int:
        """To the size whose goodput is nearest to ``to`` of the ideal; the largest of equals."""
        each = rates / sizes
        share = each / each[node if self.ideal == "node" else 0]
        if not (growing or share[at] > self.above):
            return at
        return len(sizes) - 1 - int(np.abs(share[at:] - self.to)[::-1].argmin())


@dataclass(frozen=True, slots=True)
class ThroughputRule:
    """Rent more while each further GPU adds at least ``gain`` of what a GPU of those there are does.

    Meant for agents that know of throughput only; 0.1 is the default of the authors' code.
    """

    gain: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.gain <= 1.0:
            raise ValueError("gain must be from 0 to 1")

    def step(self, sizes: Ints, rates: Floats, at: int, node: int, *, growing: bool) -> int:
        """On until the first size that gains too little over the one before."""
        gains = np.diff(rates) / np.diff(sizes) / (rates[:-1] / sizes[:-1])
        stop = np.flatnonzero(gains[at:] < self.gain)
        return at + int(stop[0]) if len(stop) else len(sizes) - 1


def wanted(rule: Rule, need: Need, offers: Sequence[Offer]) -> tuple[str, Need] | None:
    """The kind of GPUs to rent for a job, and the job with how many; None where nothing on offer would do.

    The kind is the one on which a node does most for its price, and before that is known the first on offer.
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
    at, node = (max(int(np.searchsorted(sizes, n, side="right")) - 1, 0) for n in (need.rented, offer.node_gpus))
    goal = sizes[rule.step(sizes, rates, at, node, growing=need.growing)]
    within = sizes[sizes <= max(2 * report.seen_gpus, need.rented, fewest)]
    return offer.kind, replace(need, rented=int(min(goal, within[-1])), growing=bool(goal > within[-1]))


def _sizes(offer: Offer, fewest: int, most: int) -> Ints:
    """Parts of a node, and whole nodes."""
    node = offer.node_gpus
    every = [*range(1, node), *(n * node for n in range(1, offer.nodes + 1))]
    return np.array(sorted({fewest, *(n for n in every if fewest <= n <= most)}), dtype=np.intp)


def _rates(offer: Offer, limits: BatchLimits, report: GoodputReport, sizes: Ints) -> Floats:
    """Goodput at the best batch for each size; 0 on a kind the report says nothing of."""
    fit = dict(report.fits).get(offer.kind)
    if fit is None:
        return np.zeros(len(sizes))
    apart = np.where(sizes <= offer.node_gpus, int(Locality.SAME_NODE), int(Locality.CROSS_NODE))
    return best(fit, limits, report.noise, sizes, apart).goodput


def _worth(offer: Offer, limits: BatchLimits, report: GoodputReport) -> float:
    """Goodput of a node for what it costs."""
    price = 1.0 if offer.price_per_hour is None else max(offer.price_per_hour, 1e-9)
    node = np.array([offer.node_gpus], dtype=np.intp)
    return float(_rates(offer, limits, report, node)[0]) / (price * offer.node_gpus)
