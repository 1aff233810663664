"""Modelled agents and users of ``tests.live.year``: what they report to the control plane and ask of it, in its time.

Every run has a fate that its job's number and incarnation determine: it completes, crashes, or is cancelled by its
owner, after a random time; some save their work meanwhile. Once a day a node dies with its runs and comes back.
"""

import heapq
import random
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from shoal.live.control_plane import ControlPlane
from shoal.wire.messages import PROTOCOL, AgentReport, Hello, RankExit, RunOrder, RunReport

DAY = 86_400.0
HEARTBEAT = 1800.0
"""Seconds after which an idle agent reports again; the lease is twice as long."""

_SAVE_EVERY = 1800.0
_NODE_AWAY = 3 * 3600.0

RunKey: TypeAlias = tuple[int, int]
"""A job's number and an incarnation."""

Action: TypeAlias = Literal["end", "save", "cancel", "node dies", "node returns"]


@dataclass(slots=True)
class ModelledRun:
    """A run's part on one node; ``status`` is that with which its ranks exit by themselves."""

    order: RunOrder
    phase: Literal["ready", "running", "ended"] = "ready"
    status: int = 0
    warned: bool = False
    saved: float | None = None

    def report(self) -> RunReport:
        """Return what its agent reports of it."""
        job, incarnation = self.order.job, self.order.incarnation
        if self.phase != "ended":
            port = 4000 if self.phase == "ready" else 0
            return RunReport(job=job, incarnation=incarnation, phase=self.phase, port=port, saved=self.saved)
        first = self.order.first_rank
        exits = [RankExit(rank, self.status, self.warned) for rank in range(first, first + self.order.local_ranks)]
        finished = not self.status and not self.warned
        return RunReport(
            job=job, incarnation=incarnation, phase="ended", exits=exits, finished=finished, saved=self.saved
        )


@dataclass(slots=True)
class Fate:
    """How a run ends by itself: after this many seconds, by completing, a crash or its owner's cancel."""

    seconds: float
    end: Literal["completes", "crashes", "cancelled"]
    saves: bool


def fate_of(run: RunKey, mean: float) -> Fate:
    """Return the fate of a run of jobs that last ``mean`` seconds on average: most are short and a few are long."""
    chance = random.Random(run[0] * 1009 + run[1])
    seconds = max(1.0, chance.lognormvariate(-0.5, 1.0) * mean)
    drawn = chance.random()
    saves = chance.random() < 0.2
    if drawn < 0.05:
        return Fate(max(1.0, 0.1 * seconds), "crashes", saves)
    return Fate(seconds, "cancelled" if drawn < 0.08 else "completes", saves)


@dataclass(slots=True)
class Site:
    """The agents of a cluster; ``mean`` is the mean length of a run in seconds."""

    plane: ControlPlane
    mean: float
    now: float = 0.0
    runs: dict[str, dict[RunKey, ModelledRun]] = field(default_factory=dict)
    """By node, its runs."""
    nodes_of: dict[RunKey, set[str]] = field(default_factory=dict)
    """The nodes on which a run's ranks have started."""
    due: list[tuple[float, int, Action, RunKey, str]] = field(default_factory=list)
    """What happens next: time, number, action, run, node."""
    heard: dict[str, float] = field(default_factory=dict)
    boots: dict[str, str] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    deaths: int = 0
    _heartbeats: list[tuple[float, str]] = field(default_factory=list)
    _numbered: int = 0

    def connect(self) -> None:
        """Let every agent say hello, with no run of an earlier one alive."""
        for node in self.plane.members.present.nodes:
            self._hello(node.name)
        day = self.now - self.now % DAY
        self._plan(day + DAY + 1.0, "node dies")

    def _hello(self, name: str) -> None:
        node = self.plane.backend.topology.nodes[self.plane.backend.index_of(name)]
        boot = self.boots[name] = f"boot-{name}-{self.now:.0f}"
        self.plane.hello(Hello(PROTOCOL, name, boot, node.kind, node.gpus, "127.0.0.1", place=name))
        self.runs[name] = {}
        self.dead.discard(name)
        self._sync(name)

    def _plan(self, at: float, action: Action, run: RunKey = (0, 0), node: str = "") -> None:
        self._numbered += 1
        heapq.heappush(self.due, (at, self._numbered, action, run, node))

    @property
    def next(self) -> float:
        """When something happens next at the agents."""
        first = self.due[0][0] if self.due else float("inf")
        return min(first, self._heartbeats[0][0] if self._heartbeats else first)

    def react(self) -> None:
        """Let the agents whose orders changed report until none has."""
        while touched := self.plane.touched():
            for name in touched:
                if name not in self.dead:
                    self._sync(name)

    def act(self, now: float) -> None:
        """Carry out what is due by ``now``."""
        self.now = now
        changed: dict[str, None] = {}
        while self.due and self.due[0][0] <= now:
            _, _, action, run, node = heapq.heappop(self.due)
            if action == "node dies":
                self._node_dies()
            elif action == "node returns":
                self._hello(node)
            elif action == "cancel":
                self._cancel(run)
            else:
                changed |= dict.fromkeys(self._go_on(run, action))
        while self._heartbeats and self._heartbeats[0][0] <= now:
            at, name = heapq.heappop(self._heartbeats)
            if self.heard[name] + HEARTBEAT <= at:
                changed[name] = None
        for name in changed:
            if name not in self.dead:
                self._sync(name)

    def _go_on(self, run: RunKey, action: Action) -> set[str]:
        """End a run, or let it save; return its nodes."""
        nodes = self.nodes_of.get(run, set())
        for name in nodes:
            part = self.runs[name].get(run)
            if part is None or part.phase != "running":
                continue
            if action == "end":
                part.phase = "ended"
            else:
                part.saved = (part.saved or 0.0) + _SAVE_EVERY
        if action == "save" and nodes:
            self._plan(self.now + _SAVE_EVERY, "save", run)
        return nodes

    def _cancel(self, run: RunKey) -> None:
        account = self.plane.accounts.live.get(run[0])
        if account is not None and account.incarnation == run[1]:
            self.plane.cancel(account.spec.id, None)

    def _node_dies(self) -> None:
        name = sorted(self.runs)[self.deaths * 37 % len(self.runs)]
        self.deaths += 1
        self.dead.add(name)
        for run in self.runs[name]:
            self._forget(run, name)
        self.runs[name] = {}
        self._plan(self.now + _NODE_AWAY, "node returns", node=name)
        self._plan(self.now + DAY, "node dies")

    def _sync(self, name: str) -> None:
        """Let an agent report, and take up its orders."""
        runs = self.runs[name]
        report = AgentReport(
            protocol=PROTOCOL, node=name, boot=self.boots[name], known=0, runs=[run.report() for run in runs.values()]
        )
        orders = {(order.job, order.incarnation): order for order in self.plane.sync(report).runs}
        self.heard[name] = self.now
        heapq.heappush(self._heartbeats, (self.now + HEARTBEAT, name))
        for key in [key for key in runs if key not in orders]:
            del runs[key]
            self._forget(key, name)
        changed = False
        for key, order in orders.items():
            changed |= self._obey(name, key, order)
        if changed:
            self._sync(name)

    def _obey(self, name: str, key: RunKey, order: RunOrder) -> bool:
        """Carry out one order; return whether the agent has something new to report."""
        part = self.runs[name].get(key)
        if part is None:
            part = self.runs[name][key] = ModelledRun(order)
            if order.phase == "prepare":
                return True
        before, part.order = part.phase, order
        if order.phase == "go" and part.phase == "ready":
            self._begin(name, key, part)
        elif order.phase == "stop" and part.phase != "ended":
            part.phase, part.warned = "ended", True
        return part.phase != before

    def _begin(self, name: str, key: RunKey, part: ModelledRun) -> None:
        part.phase = "running"
        fate = fate_of(key, self.mean)
        part.status = int(fate.end == "crashes")
        first = key not in self.nodes_of
        self.nodes_of.setdefault(key, set()).add(name)
        if first:
            self._plan(self.now + fate.seconds, "cancel" if fate.end == "cancelled" else "end", key)
            if fate.saves:
                self._plan(self.now + _SAVE_EVERY, "save", key)

    def _forget(self, run: RunKey, name: str) -> None:
        nodes = self.nodes_of.get(run, set())
        nodes.discard(name)
        if not nodes:
            self.nodes_of.pop(run, None)
