"""The provider `local`: each allocation is an agent process on this machine, a child of this one."""

import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

from shoal.core.errors import InputError
from shoal.core.spec_text import split_options
from shoal.core.topology import Node, parse_cluster
from shoal.core.units import Seconds
from shoal.provider.protocol import Abilities, AgentCall, Allocation, AllocationState, EngineRefusal, Seen, Site
from shoal.provider.reconcile import Memory, Open, reconcile

log = logging.getLogger("shoal.provider.local")

MOST_LOCAL_NODES = 64
"""Most nodes on one machine, each of which is an agent process."""

LOG_BYTES = 16 * 2**20
"""Length of a local agent's own log after which it is copied to a second file and begun anew."""


def agent_call(
    url: str,
    token: Callable[[str], str],
    node: Node,
    *,
    home: Path,
    roots: Sequence[str] = (),
    log_bytes: int | None = None,
    cafile: str | None = None,
    tenant_users: str = "off",
) -> AgentCall:
    """Return how to start the agent of a node: ``url`` is the control plane's, ``token`` returns a node's token.

    Files go under ``home``. Jobs may work in the folders ``roots``, as users that ``tenant_users`` says
    (`choose_users`). Of a rank's log at most ``log_bytes`` are kept.
    """
    words = ["--server", url, "--node", node.name, "--kind", node.kind, "--gpus", str(node.gpus), "--home", str(home)]
    words += [word for root in roots for word in ("--root", root)]
    words += ["--log-bytes", str(log_bytes)] if log_bytes is not None else []
    words += ["--cafile", cafile] if cafile is not None else []
    return AgentCall((*words, "--tenant-users", tenant_users), partial(token, node.name))


def call_for_run(call: AgentCall, allocation: str, token: Callable[[str], str]) -> AgentCall:
    """Return how to start the agent of an allocation for one run, from how to start that of its node."""
    return AgentCall((*call.arguments, "--allocation", allocation), partial(token, allocation))


@dataclass(slots=True)
class _LocalAgent:
    """An agent process of one node."""

    name: str
    log_file: Path
    process: "subprocess.Popen[bytes]"
    closing_until: Seconds | None = None
    """When it has had its grace, since it was first to close."""

    @property
    def ref(self) -> str:
        return str(self.process.pid)

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self.process.poll() is None

    @property
    def seen(self) -> Seen:
        """The allocation, as the provider reports it."""
        if self.running:
            return Seen(self.name, self.ref, AllocationState.UP)
        status = self.process.returncode
        why = f"its agent exited with status {status}; see {self.log_file}"
        return Seen(self.name, self.ref, AllocationState.ENDED, status, why=why)


@dataclass(slots=True)
class LocalProvider:
    """Agents on this machine for the nodes that ``nodes`` returns; their own logs go under ``home``.

    Call ``open`` from one thread only, which must not end before the agents: they end when that thread does.
    """

    nodes: Callable[[], Sequence[Node]]
    home: Path
    clock: Callable[[], float] = time.monotonic
    abilities: Abilities = field(default_factory=Abilities)
    _agents: dict[str, _LocalAgent] = field(default_factory=dict)
    """The latest agent of each name."""
    _first_devices: dict[str, int] = field(default_factory=dict)
    _devices: int = 0
    """GPUs of the nodes so far: the number of the next node's first."""

    def survey(self) -> Sequence[Site]:
        """Return the nodes."""
        return [Site(node.name, node.kind, node.gpus, node.rack) for node in self.nodes()]

    def seen(self) -> Sequence[Seen]:
        """Return the agents, also those that have ended; keep their logs short."""
        for agent in self._agents.values():
            with suppress(OSError):
                if agent.log_file.stat().st_size > LOG_BYTES:
                    shutil.copyfile(agent.log_file, f"{agent.log_file}.1")
                    os.truncate(agent.log_file, 0)  # the process appends to it
        return [agent.seen for agent in self._agents.values()]

    def open(self, allocation: Allocation) -> None:
        """Start the agent; it gets its token over a pipe. Device numbers continue from node to node."""
        before = self._agents.get(allocation.name)
        if before is not None and before.running:
            return
        if before is not None:
            log.warning("agent died", extra={"status": before.process.returncode, "log": str(before.log_file)})
        if allocation.name not in self._first_devices:
            self._first_devices[allocation.name] = self._devices
            self._devices += allocation.gpus
        log_file = self.home / "nodes" / allocation.node / "agent.log"
        arguments = [*allocation.call.arguments, "--first-device", str(self._first_devices[allocation.name])]
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            with log_file.open("ab") as out:
                # A session of its own: this process passes Ctrl-C on, once.
                process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "shoal.agent", *arguments),
                        *("--token-fd", "0", "--parent", str(os.getpid())),
                    ],
                    env={name: value for name, value in os.environ.items() if name != "SHOAL_TOKEN"},
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        except OSError as error:  # a full disk, or too many processes
            raise EngineRefusal(f"its agent cannot be started: {error}") from error
        self._agents[allocation.name] = _LocalAgent(allocation.name, log_file, process)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(f"{allocation.call.token()}\n".encode())

    def close(self, ref: str, grace: Seconds) -> None:
        """Send SIGTERM, once: the agent warns its jobs; after ``grace`` it kills them."""
        now = self.clock()
        for agent in self._agents.values():
            if agent.ref != ref or not agent.running:
                continue
            if agent.closing_until is None:
                agent.closing_until = now + grace
                agent.process.terminate()
            elif now >= agent.closing_until:
                agent.process.send_signal(signal.SIGINT)

    def ask(self, kinds: Mapping[str, int]) -> None:
        """Do nothing: the nodes of this machine are fixed."""

    def stop(self, impatient: Callable[[], bool]) -> None:
        """Close all and wait until they have ended.

        ``impatient`` is polled meanwhile and should block briefly; each time it returns True the jobs are killed.
        """
        for agent in self._agents.values():
            self.close(agent.ref, inf)
        while any(agent.running for agent in self._agents.values()):
            if impatient():
                for agent in self._agents.values():
                    if agent.running:
                        agent.process.send_signal(signal.SIGINT)


@dataclass(slots=True)
class LocalNodes:
    """A fixed set of nodes on this machine; the thread that made it starts and stops their agents."""

    provider: LocalProvider
    allocations: Sequence[Allocation]
    clock: Callable[[], float] = time.monotonic
    _memory: Memory = field(default_factory=Memory)

    @classmethod
    def of(
        cls,
        url: str,
        token: Callable[[str], str],
        nodes: Sequence[Node],
        home: Path,
        *,
        roots: Sequence[str] = (),
        cafile: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> "LocalNodes":
        """Return the nodes with one agent each, not started yet; arguments as for ``agent_call``."""
        calls = {node.name: agent_call(url, token, node, home=home, roots=roots, cafile=cafile) for node in nodes}
        wanted = [Allocation(node.name, node.name, node.kind, node.gpus, calls[node.name]) for node in nodes]
        return cls(LocalProvider(lambda: nodes, home, clock), wanted, clock)

    def ensure_running(self) -> None:
        """Start the agents that do not run, after the pauses of `reconcile`."""
        acts, self._memory = reconcile(
            self.allocations, self.provider.seen(), {}, self.clock(), self._memory, silence=inf
        )
        for act in itertools.takewhile(lambda act: isinstance(act, Open), acts):
            assert isinstance(act, Open)
            try:
                self.provider.open(act.allocation)
            except EngineRefusal as error:
                log.warning("agent not started", extra={"error": str(error)})

    def stop(self, impatient: Callable[[], bool]) -> None:
        """Stop all agents; as `LocalProvider.stop`."""
        self.provider.stop(impatient)


def make_provider(options: str, home: Path) -> LocalProvider:
    """Return the provider of virtual nodes on this machine: ``nodes=NODESxGPUS``, and ``kind``, by default ``gpu``."""
    given = split_options("on local", options, ("nodes", "kind"))
    if "nodes" not in given:
        raise InputError("on local, option nodes", None, "say how many, e.g. local:nodes=2x2")
    nodes = parse_cluster(f"{given.get('kind', 'gpu')}:{given['nodes']}", most_nodes=MOST_LOCAL_NODES).nodes
    return LocalProvider(lambda: nodes, home)
