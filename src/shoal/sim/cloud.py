"""A simulated cloud: nodes are rented as a rule over the jobs' goodput decides, and given back afterwards.

A backend around the simulated one. The ring sees nodes that are lost and return, and nothing of rentals: a node is down
until it is rented and has booted. A rule over the jobs' goodput reports (``policy.pollux.autoscaling``) decides what to
rent every minute and when a job arrives or ends. A node is paid for from its order on. Nodes are given back after they
were not needed for a while, those with the fewest busy GPUs first; jobs still on them save their work and are seated
anew, as after any restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any, get_type_hints

import numpy as np

from shoal.core.commands import Command
from shoal.core.errors import InputError
from shoal.core.events import (
    Event,
    EventBatch,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobProfiled,
    JobSubmitted,
    NodeLost,
    NodeReturned,
)
from shoal.core.spec_text import read_options, split_name
from shoal.core.topology import Topology
from shoal.core.units import JobNumber, Seconds
from shoal.policy.pollux.autoscaling import GoodputRule, Need, NodeOffer, RentRule, ThroughputRule, ValueRule, wanted
from shoal.sim.adaptive_jobs import TunerOptions
from shoal.sim.backend import SimulatedBackend
from shoal.sim.searches import Searches

REVIEW: Seconds = 60.0
"""Seconds between two decisions on what to rent while there are jobs."""

_RULES: Mapping[str, type[GoodputRule] | type[ThroughputRule] | type[ValueRule]] = {
    "goodput": GoodputRule,
    "throughput": ThroughputRule,
    "value": ValueRule,
}

_COMMON: Mapping[str, str] = {
    "boot": "a finite number of seconds",
    "keep": "a finite number of seconds",
    "probe": "a finite fraction",
}
"""Options that every rule has, each with the constraint on its value."""


@dataclass(frozen=True, slots=True)
class CloudTerms:
    """The rule to rent by, the seconds a node takes to boot, and the seconds an unneeded one is kept.

    ``probe`` is the fraction by which jobs try larger and smaller batches than the best one they know.
    """

    rule: RentRule = field(default_factory=GoodputRule)
    boot: Seconds = 120.0
    keep: Seconds = 600.0
    probe: float = 0.0

    @property
    def tuning(self) -> TunerOptions:
        """How jobs choose batch sizes: by throughput alone under the throughput rule."""
        return TunerOptions(isinstance(self.rule, ThroughputRule), self.probe)

    @classmethod
    def parse(cls, spec: str) -> "CloudTerms":
        """Read ``goodput``, ``throughput`` or ``value`` and options, e.g. ``goodput:above=0.7,to=0.5,boot=60``."""
        name, rest = split_name("cloud", spec, _RULES)
        kinds = {**get_type_hints(_RULES[name]), **dict.fromkeys(_COMMON, float)}
        chosen = read_options(f"cloud {name}", rest, kinds)
        common = {key: chosen.pop(key) for key in _COMMON if key in chosen}
        for key, value in common.items():
            if not 0.0 <= value < inf:
                raise InputError(f"cloud {name}, option {key}", value, f"must be {_COMMON[key]}, at least 0")
        try:
            return cls(_RULES[name](**chosen), **common)
        except ValueError as error:
            raise InputError(f"cloud {name}", rest, str(error)) from error


@dataclass(frozen=True, slots=True)
class Rental:
    """The time from the order of a node to its return."""

    node: int
    since: Seconds
    until: Seconds


@dataclass(frozen=True, slots=True)
class Bill:
    """All rentals in the order they ended; those that last to the end of the simulation end there."""

    rentals: tuple[Rental, ...]
    topology: Topology

    @property
    def node_hours(self) -> float:
        """The sum of the hours of all nodes."""
        return sum(r.until - r.since for r in self.rentals) / 3600.0

    @property
    def cost(self) -> float | None:
        """Dollars; None where the price of a rented node is unknown."""
        price = {t.name: t.price_per_hour for t in self.topology.types}
        total = 0.0
        for rental in self.rentals:
            node = self.topology.nodes[rental.node]
            hourly = price[node.kind]
            if hourly is None:
                return None
            total += (rental.until - rental.since) / 3600.0 * node.gpus * hourly
        return total

    def nodes_over_time(self) -> list[tuple[Seconds, int]]:
        """Times at which the number of rented nodes changed, ascending, each with the number from then on."""
        steps: dict[Seconds, int] = {}
        for rental in self.rentals:
            steps[rental.since] = steps.get(rental.since, 0) + 1
            steps[rental.until] = steps.get(rental.until, 0) - 1
        moments = sorted(moment for moment, change in steps.items() if change)
        counts = np.cumsum([steps[moment] for moment in moments]).tolist()
        return list(zip(moments, counts, strict=True))

    def summary(self) -> dict[str, Any]:
        """Figures for a run's summary: node hours, dollars, and the most nodes at a time."""
        most = max((count for _, count in self.nodes_over_time()), default=0)
        return {"node_hours": self.node_hours, "cost": self.cost, "most_nodes": most}


@dataclass(slots=True)
class Cloud:
    """A backend on rented nodes around ``front``, which is the simulated backend ``ground`` or wraps it."""

    front: SimulatedBackend | Searches
    ground: SimulatedBackend
    terms: CloudTerms
    _away: set[int] = field(default_factory=set)
    _since: dict[int, Seconds] = field(default_factory=dict)
    _booting: dict[int, Seconds] = field(default_factory=dict)
    _ended: list[Rental] = field(default_factory=list)
    _failed: set[int] = field(default_factory=set)
    _jobs: dict[JobNumber, Need] = field(default_factory=dict)
    _submitted: int = 0
    _surplus_since: Seconds = inf
    _review_at: Seconds = inf
    _announced: bool = False

    def __post_init__(self) -> None:
        self._away = set(range(len(self.ground.truth.topology.nodes)))
        self.ground.down = self._away

    @property
    def completed(self) -> int:
        """Number of jobs that ended."""
        return self.front.completed

    def send(self, commands: Sequence[Command]) -> None:
        """Carry out commands at once."""
        self.front.send(commands)

    def bill(self) -> Bill:
        """All rentals until now."""
        kept = [Rental(node, since, self.ground.now) for node, since in self._since.items()]
        return Bill((*self._ended, *kept), self.ground.truth.topology)

    def wait(self, until: Seconds) -> EventBatch:
        """Jump to the next event that calls for a decision, the end of a boot or a return, or to ``until``."""
        if not self._announced:
            self._announced = True
            return EventBatch(self.ground.now, tuple(NodeLost(self.ground.now, node) for node in sorted(self._away)))
        events: list[Event] = []
        while True:
            batch = self.front.wait(min(until, self._review_at, *self._booting.values()))
            events += batch.events
            concerned = [self._note(event) for event in batch.events]
            if batch.over:
                return EventBatch(batch.now, tuple(events), over=True)
            events += self._finish_boots(batch.now)
            if any(concerned) or batch.now >= self._review_at:
                events += self._review(batch.now)
            if batch.now >= until or any(event.urgent for event in events):
                return EventBatch(batch.now, tuple(events))

    def _note(self, event: Event) -> bool:
        """Note an event; True if a job arrived or ended."""
        if isinstance(event, JobSubmitted):
            self._jobs[self._submitted] = Need(event.spec)
            self._submitted += 1
            return True
        if isinstance(event, NodeLost):
            self._failed.add(event.node)
        elif isinstance(event, NodeReturned):
            self._failed.discard(event.node)
        elif isinstance(event, JobProfiled) and event.job in self._jobs:
            self._jobs[event.job] = replace(self._jobs[event.job], report=event.report)
        if isinstance(event, JobCompleted | JobCancelled) or (
            isinstance(event, JobCrashed) and event.blamed and not event.retry_in
        ):
            return self._jobs.pop(event.job, None) is not None
        return False

    def _finish_boots(self, now: Seconds) -> list[Event]:
        ready = [node for node, at in self._booting.items() if at <= now]
        for node in ready:
            del self._booting[node]
            self._away.discard(node)
        return [NodeReturned(now, node) for node in ready]

    # ── what to rent ──────────────────────────────────────────────────────────────────────────────────────────

    def _review(self, now: Seconds) -> list[Event]:
        """Order the nodes that are missing; give back those not needed for ``keep`` seconds."""
        topology = self.ground.truth.topology
        needed = self._needed(topology, now)
        surplus: list[int] = []
        for kind in topology.kinds:
            of_kind = [n for n, node in enumerate(topology.nodes) if node.kind == kind]
            rented = [n for n in of_kind if n in self._since]
            missing = needed.get(kind, 0) - len(rented)
            for node in [n for n in of_kind if n not in self._since][: max(missing, 0)]:
                self._since[node], self._booting[node] = now, now + self.terms.boot
            surplus += self._least_busy(rented)[: max(-missing, 0)]
        self._surplus_since = min(self._surplus_since, now) if surplus else inf
        self._review_at = now + REVIEW if self._jobs or surplus else inf
        if not surplus or now < self._surplus_since + self.terms.keep:
            return []
        self._surplus_since = inf
        return [event for node in surplus for event in self._give_back(node, now)]

    def _needed(self, topology: Topology, now: Seconds) -> dict[str, int]:
        """Nodes needed, by kind, for the GPUs that the rule gives every job."""
        offers = _offers(topology)
        size = {offer.kind: offer.node_gpus for offer in offers}
        gpus: dict[str, int] = {}
        for job, need in self._jobs.items():
            found = wanted(self.terms.rule, need, offers, now - need.spec.submitted, self.terms.boot)
            if found is not None:
                kind, self._jobs[job] = found
                gpus[kind] = gpus.get(kind, 0) + self._jobs[job].rented
        return {kind: ceil(count / size[kind]) for kind, count in gpus.items()}

    def _least_busy(self, nodes: Sequence[int]) -> list[int]:
        busy = self.ground.busy()
        up = (n for n in nodes if n not in self._booting and n not in self._failed)
        return sorted(up, key=lambda n: (busy.get(n, 0), -n))

    def _give_back(self, node: int, now: Seconds) -> list[Event]:
        self._away.add(node)
        self._ended.append(Rental(node, self._since.pop(node), now))
        name = self.ground.truth.topology.nodes[node].name
        return [NodeLost(now, node), *self.ground.vacate(node, f"node {name} was given back")]


def _offers(topology: Topology) -> tuple[NodeOffer, ...]:
    counts = {kind: sum(node.kind == kind for node in topology.nodes) for kind in topology.kinds}
    return tuple(
        NodeOffer(t.name, size, counts[t.name], t.price_per_hour)
        for t, size in zip(topology.types, topology.node_size, strict=True)
    )
