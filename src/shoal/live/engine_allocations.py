"""Keeps the allocations of a provider: nodes that its engine has join the cluster, and each gets one agent.

In native mode each part of a run gets one instead, which is closed with the run.

An engine that does not answer changes nothing, and its reports never end a run: only an agent's lease does.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from shoal.core.errors import InputError, ShoalError
from shoal.core.lifecycle import JobState
from shoal.core.topology import Node
from shoal.core.units import Seconds
from shoal.live.accounts import Account
from shoal.live.control_plane import ControlPlane
from shoal.live.growth import wished_gpus
from shoal.live.native_runs import RunPart, fail, run_parts, see, set_up
from shoal.live.run_allocations import RunCall, engine_words, wanted_allocations
from shoal.live.runs import RunRegistry
from shoal.provider.protocol import AgentCall, Allocation, AllocationState, EngineAway, Provider, Seen, Site
from shoal.provider.reconcile import SILENCE, Memory, Open, reconcile
from shoal.wire.messages import NewNode

log = logging.getLogger(__name__)

PERIOD: Seconds = 3.0
"""Seconds between two queries of the engine."""

PATIENCE: Seconds = 300.0
"""Seconds for which the allocations of a run may wait in the engine's queue before all of them are withdrawn."""

_NATIVE_PERIOD: Seconds = 1.0
"""Seconds between two queries of the engine while an allocation of a run has not begun."""

_ASK_PERIOD: Seconds = 30.0
"""Seconds between two wishes for more nodes."""

_PAUSED: Seconds = 30.0
"""Seconds between two queries of the engine after which the silence of agents is counted anew."""


@dataclass(slots=True)
class EngineAllocations:
    """Keeps the allocations of a provider, called ``name`` in sentences: one on each node, or one for each run's part.

    ``call`` returns how to start the agent of a node, ``run_call`` that of an allocation for a run (native mode), which
    may wait in the engine's queue for ``patience`` seconds. ``tick`` may be called by any one thread; ``start`` makes
    one.
    """

    name: str
    provider: Provider
    plane: ControlPlane
    call: Callable[[Node], AgentCall]
    grace: Seconds = 30.0
    silence: Seconds = SILENCE
    run_call: RunCall | None = None
    patience: Seconds | None = PATIENCE
    home: Path = Path()
    """The control plane's home, below which the folders of runs are."""
    away: str = ""
    """Why the engine did not answer; empty if it did."""
    _memory: Memory = field(default_factory=Memory)
    _sites: dict[str, Site] = field(default_factory=dict)
    _seen: dict[str, Seen] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _refused_since: dict[str, Seconds] = field(default_factory=dict)
    _changes: int = 0
    _starting: bool = False
    _asked_at: Seconds = -inf
    _wake: threading.Event = field(default_factory=threading.Event)
    _ticked_at: Seconds = -inf
    _awake_since: Seconds = -inf
    _stopped: bool = False
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.plane.engine_note, self.plane.engine_lines = self.note, self.lines

    @property
    def native(self) -> bool:
        """Whether each part of a run has an allocation of its own."""
        return self.run_call is not None and self.provider.abilities.native

    def _query_early(self) -> None:
        """Query the engine at once if other parts of runs need allocations."""
        if self.plane.backend.allocation_changes != self._changes:
            self._wake.set()

    def tick(self) -> None:
        """Query the engine once, and open and close the allocations that are due."""
        try:
            sites, seen = self.provider.survey(), self.provider.seen()
        except EngineAway as error:
            if not self.away:
                log.warning("engine away", extra={"engine": self.name, "error": str(error)})
            self.away = str(error)
            return
        self.away = ""
        self._sites = {site.name: site for site in sites}
        latest = sorted(seen, key=lambda one: one.state.open)
        self._seen = {one.name: one for one in latest}
        self._join(sites)
        self._follow_drains()
        wanted = self._wanted_for_runs() if self.native else self._wanted()
        now = self.plane.backend.clock.now()
        if now > self._ticked_at + _PAUSED:  # this machine slept: no agent could report
            self._awake_since = now
        self._ticked_at = now
        heard = dict.fromkeys((allocation.name for allocation in wanted), self._awake_since)
        heard |= {name: max(at, self._awake_since) for name, at in self.plane.backend.heard().items()}
        silence = inf if self.native else self.silence  # the lease of a run's agent ends its run
        acts, self._memory = reconcile(wanted, seen, heard, now, self._memory, silence=silence)
        up = {one.name for one in seen if one.state is AllocationState.UP}
        self._ask(now)
        self._starting = self.native and any(allocation.name not in up for allocation in wanted)
        names = {*self._sites, *(allocation.name for allocation in wanted)}
        self._refused = {name: why for name, why in self._refused.items() if name in names}
        self._refused_since = {name: at for name, at in self._refused_since.items() if name in self._refused}
        for act in acts:
            name = act.allocation.name if isinstance(act, Open) else act.name
            try:
                if isinstance(act, Open):
                    self.provider.open(act.allocation)
                else:
                    log.info("allocation closes", extra={"allocation": name, "why": act.why})
                    self.provider.close(act.ref, act.grace)
                    self._withdraw(name, act.why)
            except ShoalError as error:
                log.warning("engine refuses", extra={"allocation": name, "error": str(error)})
                self._refused[name] = str(error)
                since = self._refused_since.setdefault(name, now)
                if self.patience is not None and now - since >= self.patience:
                    self._withdraw(name, f"it was refused for {self.patience:g} s ({error})")
            else:
                self._refused.pop(name, None)

    def _ask(self, now: Seconds) -> None:
        """Ask an engine that can bring nodes for the GPUs that jobs wait for under the last decision."""
        if self.provider.abilities.scales and now >= self._asked_at + _ASK_PERIOD:
            wished = wished_gpus(self.plane.last_decision)
            if wished:
                self._asked_at = now
                log.info("more nodes asked for", extra={"engine": self.name, "gpus": wished})
                self.provider.ask(wished)

    def _cut(self, call: AgentCall) -> AgentCall:
        """Return the call with which an agent kills its runs before the engine ends its allocation."""
        longest = self.provider.abilities.longest_grace
        return call if longest is None else AgentCall((*call.arguments, "--longest-grace", f"{longest:g}"), call.token)

    def _join(self, sites: Sequence[Site]) -> None:
        """Add the nodes that the engine has and the cluster has not; one that an operator removed stays removed."""
        known = self.plane.backend.topology.node_index
        for site in sites:
            if site.name not in known and site.state != "asleep":
                try:
                    self.plane.members.add(NewNode(site.name, site.kind, site.gpus, site.rack))
                except InputError as error:
                    self._refused[site.name] = str(error)

    def _follow_drains(self) -> None:
        """Drain the nodes that the engine drains, and resume them when the engine does."""
        names, mark = self.plane.backend.topology.nodes, f"{self.name}: "
        drained = {names[index].name: reason for index, reason in self.plane.scheduler.state.nodes.drained.items()}
        for node in self.plane.members.present.nodes:
            site = self._sites.get(node.name)
            if site is not None and site.state == "draining" and node.name not in drained:
                self.plane.drain(node.name, mark + (site.why or "is draining"), self.name)
            elif site is not None and site.state == "up" and drained.get(node.name, "").startswith(mark):
                self.plane.resume_node(node.name)

    def _wanted(self) -> list[Allocation]:
        """Return an allocation for each node that is up in its engine, and each allocation that exists already.

        A node that the engine drains gives its allocation back once it has no runs.
        """
        wanted = []
        for node in self.plane.members.present.nodes:
            site, seen = self._sites.get(node.name), self._seen.get(node.name)
            opened = seen is not None and seen.state.open
            if opened and site is not None and site.state == "draining":
                opened = self.plane.members.has_runs(node.name)
            if opened or (site is not None and site.state == "up" and (site.kind, site.gpus) == (node.kind, node.gpus)):
                call = self._cut(self.call(node))
                wanted.append(Allocation(node.name, node.name, node.kind, node.gpus, call, grace=self.grace))
        return wanted

    def _wanted_for_runs(self) -> list[Allocation]:
        """Return an allocation for each part of a run, after the survey and the engine's list have been processed."""
        assert self.run_call is not None
        backend, index = self.plane.backend, self.plane.backend.topology.node_index
        up = {
            index[site.name] for site in self._sites.values() if site.state in ("up", "draining") and site.name in index
        }
        present = {index[node.name]: node for node in self.plane.members.present.nodes}

        def look(runs: RunRegistry, now: Seconds) -> list[RunPart]:
            set_up(runs, up & present.keys(), now)
            see(runs, self._seen, now)
            self._changes = runs.agents.changes
            return run_parts(runs)

        parts, make = backend.look(look), self.run_call

        def run_call(node: Node, name: str, gpus: int) -> AgentCall:
            return self._cut(make(node, name, gpus))

        return wanted_allocations(
            parts, dict(enumerate(backend.topology.nodes)), self._seen, run_call, self.patience, self.home
        )

    def _withdraw(self, name: str, why: str) -> None:
        """End the part of a run whose allocation the engine does not give, and with it the run."""

        def end(runs: RunRegistry, now: Seconds) -> None:
            if name in runs.agents and runs.agents[name].boot is None:
                agent = runs.agents[name]
                fail(runs, agent, f"{self.name} gave it no GPUs on {runs.nodes[agent.node].name}: {why}", now)

        if self.native:
            self.plane.backend.look(end)

    def lines(self, account: Account) -> tuple[list[str], str]:
        """Return a line on each allocation of a job, and one on the cause that keeps its run from starting, if any."""
        nodes, found, waits = self.plane.backend.topology.nodes, [], []
        for incarnation, placement in account.placements.items() if self.native else ((0, account.placement),):
            for node in [] if placement is None else placement.nodes:
                node_name = nodes[node].name
                name = f"{account.spec.id}.{incarnation}.{node_name}" if self.native else node_name
                one, refused = self._seen.get(name), self._refused.get(name, "")
                if line := engine_words(self.name, node_name, one, refused):
                    found.append(line)
                    if incarnation == account.incarnation and (one is None or one.state is AllocationState.WAITING):
                        waits.append(line)
        longest, grace = self.provider.abilities.longest_grace, account.launch.grace
        if found and longest is not None and grace > longest:
            found.append(
                f"{self.name} leaves {longest:g} s of its {grace:g} s of grace where it ends an allocation itself"
            )
        away = [f"{self.name} did not answer: {self.away}"] if self.away and self.native else []
        return found, "; ".join([*away, *waits]) if account.state is JobState.STARTING else ""

    def note(self, node: str) -> str:
        """Return the engine's text on a node and its allocation; empty if it has none."""
        site, seen = self._sites.get(node), self._seen.get(node)
        parts = [f"did not answer: {self.away}"] if self.away else []
        if site is not None and site.state != "up":
            parts.append(site.state + f" ({site.why})" * bool(site.why))
        if node in self._refused:
            parts.append(self._refused[node])
        elif seen is not None and seen.state is not AllocationState.UP:
            parts.append(f"{seen.state}" + f" ({seen.why})" * bool(seen.why))
        return f"{self.name}: {'; '.join(parts)}" if parts else ""

    def start(self) -> None:
        """Keep the allocations from a thread until ``stop``."""
        if self.native:
            self.plane.listen(self._query_early)
        self._thread = threading.Thread(target=self._run, name="allocations", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; allocations stay, for the next control plane."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self.tick()
            except Exception:  # it must not end: the next look may succeed
                log.exception("keeping the allocations failed")
            self._wake.wait(_NATIVE_PERIOD if self._starting else PERIOD)
            self._wake.clear()


def sites_as_nodes(sites: Sequence[Site]) -> list[Node]:
    """Return the nodes of a survey, for a cluster's first start."""
    return [Node(site.name, site.kind, site.gpus, site.rack) for site in sites]
