"""A cloud in the simulated world: its nodes are rented when jobs are worth it, and given back when nobody needs them.

A backend around the simulated one. The ring sees nodes that come and go, and nothing of rents: a node is down until it
is rented and has booted. What to rent is decided every minute by a rule over what jobs' agents report
(``policy.autoscaling``), and when a job comes or ends. A node is paid for from its order on. Nodes are given back once
they have not been wanted for a while, those with the fewest busy GPUs first; who still sits there saves its work and is
seated anew, as after any restart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any, get_type_hints

import numpy as np

from shoal.core.commands import Command
from shoal.core.errors import InputError, nearest
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
from shoal.core.topology import Topology
from shoal.core.units import JobNumber, Seconds
from shoal.policy.pollux.autoscaling import GoodputRule, Need, NodeOffer, RentRule, ThroughputRule, ValueRule, wanted
from shoal.sim.backend import SimBackend
from shoal.sim.measurement import Habits
from shoal.sim.searches import Searches

REVIEW: Seconds = 60.0
"""How often it is thought over what to rent while there are jobs."""

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
"""The options of every rule, and what each is."""


@dataclass(frozen=True, slots=True)
class CloudTerms:
    """By which rule to rent, how long a node takes to boot, and how long an unwanted one is kept.

    ``probe`` is by which fraction larger and smaller the batches are that agents try beside the one they settled on.
    """

    rule: RentRule = field(default_factory=GoodputRule)
    boot: Seconds = 120.0
    keep: Seconds = 600.0
    probe: float = 0.0

    @property
    def habits(self) -> Habits:
        """How agents choose batches: by throughput only, where the rule is meant for such."""
        return Habits(isinstance(self.rule, ThroughputRule), self.probe)

    @classmethod
    def parse(cls, spec: str) -> "CloudTerms":
        """From ``goodput``, ``throughput`` or ``value`` and options, e.g. ``goodput:above=0.7,to=0.5,boot=60``."""
        name, _, rest = spec.partition(":")
        if name not in _RULES:
            raise InputError("cloud", name, nearest(name, _RULES))
        kinds = {**get_type_hints(_RULES[name]), **dict.fromkeys(_COMMON, float)}
        chosen = _options(name, rest, kinds)
        common = {key: chosen.pop(key) for key in _COMMON if key in chosen}
        for key, value in common.items():
            if not 0.0 <= value < inf:
                raise InputError(f"cloud {name}, option {key}", value, f"must be {_COMMON[key]}, at least 0")
        try:
            return cls(_RULES[name](**chosen), **common)
        except ValueError as error:
            raise InputError(f"cloud {name}", rest, str(error)) from error


def _options(name: str, text: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in kinds:
            raise InputError(f"cloud {name}, option", key, nearest(key, kinds))
        try:
            chosen[key] = kinds[key](value)
        except ValueError:
            raise InputError(f"cloud {name}, option {key}", value, "must be a number") from None
    return chosen


@dataclass(frozen=True, slots=True)
class Rental:
    """A node, from when it was ordered to when it was given back."""

    node: int
    since: Seconds
    until: Seconds


@dataclass(frozen=True, slots=True)
class Bill:
    """What was rented in all, in the order it was given back; what is kept to the end is given back then."""

    rentals: tuple[Rental, ...]
    topology: Topology

    @property
    def node_hours(self) -> float:
        """Hours of all nodes together."""
        return sum(r.until - r.since for r in self.rentals) / 3600.0

    @property
    def cost(self) -> float | None:
        """Dollars; None where the price of something rented is not known."""
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
        """How many nodes were rented from when on, by ascending time."""
        steps: dict[Seconds, int] = {}
        for rental in self.rentals:
            steps[rental.since] = steps.get(rental.since, 0) + 1
            steps[rental.until] = steps.get(rental.until, 0) - 1
        moments = sorted(moment for moment, change in steps.items() if change)
        counts = np.cumsum([steps[moment] for moment in moments]).tolist()
        return list(zip(moments, counts, strict=True))

    def summary(self) -> dict[str, Any]:
        """For a run's summary."""
        most = max((count for _, count in self.nodes_over_time()), default=0)
        return {"node_hours": self.node_hours, "cost": self.cost, "most_nodes": most}


@dataclass(slots=True)
class Cloud:
    """The simulated world ``front``, or ``ground`` itself, on nodes that are rented."""

    front: SimBackend | Searches
    ground: SimBackend
    terms: CloudTerms
    _away: set[int] = field(default_factory=set)
    _since: dict[int, Seconds] = field(default_factory=dict)
    _booting: dict[int, Seconds] = field(default_factory=dict)
    _ended: list[Rental] = field(default_factory=list)
    _failed: set[int] = field(default_factory=set)
    _jobs: dict[JobNumber, Need] = field(default_factory=dict)
    _submitted: int = 0
    _unwanted: Seconds = inf
    _review_at: Seconds = inf
    _open: bool = False

    def __post_init__(self) -> None:
        self._away = set(range(len(self.ground.truth.topology.nodes)))
        self.ground.down = self._away

    @property
    def completed(self) -> int:
        """How many jobs ended."""
        return self.front.completed

    def send(self, commands: Sequence[Command]) -> None:
        """Carry out commands at once."""
        self.front.send(commands)

    def bill(self) -> Bill:
        """What was rented until now."""
        kept = [Rental(node, since, self.ground.now) for node, since in self._since.items()]
        return Bill((*self._ended, *kept), self.ground.truth.topology)

    def wait(self, until: Seconds) -> EventBatch:
        """Jump to the next loud event, to ``until``, or to where a node has booted or is given back."""
        if not self._open:
            self._open = True
            return EventBatch(self.ground.now, tuple(NodeLost(self.ground.now, node) for node in sorted(self._away)))
        events: list[Event] = []
        while True:
            heard = self.front.wait(min(until, self._review_at, *self._booting.values()))
            events += heard.events
            concerned = [self._noted(event) for event in heard.events]
            if heard.over:
                return EventBatch(heard.now, tuple(events), over=True)
            events += self._booted(heard.now)
            if any(concerned) or heard.now >= self._review_at:
                events += self._reviewed(heard.now)
            if heard.now >= until or any(event.urgent for event in events):
                return EventBatch(heard.now, tuple(events))

    def _noted(self, event: Event) -> bool:
        """Whether a job came or ended."""
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

    def _booted(self, now: Seconds) -> list[Event]:
        ready = [node for node, at in self._booting.items() if at <= now]
        for node in ready:
            del self._booting[node]
            self._away.discard(node)
        return [NodeReturned(now, node) for node in ready]

    # ── what to rent ──────────────────────────────────────────────────────────────────────────────────────────

    def _reviewed(self, now: Seconds) -> list[Event]:
        """Order what is missing; give back what has been too much for a while."""
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
        self._unwanted = min(self._unwanted, now) if surplus else inf
        self._review_at = now + REVIEW if self._jobs or surplus else inf
        if not surplus or now < self._unwanted + self.terms.keep:
            return []
        self._unwanted = inf
        return [event for node in surplus for event in self._give_back(node, now)]

    def _needed(self, topology: Topology, now: Seconds) -> dict[str, int]:
        """Nodes by kind, enough for what every job is to have."""
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
