"""The provider `ray`: each allocation is a detached actor on one node, whose child process is the agent.

Ray's own environment has its own Python: this process does not import Ray, but runs the program `bridge` there. Actors
are in a namespace of this cluster; those of other namespaces are never touched.
"""

import hashlib
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import InputError
from shoal.core.units import Seconds
from shoal.provider.protocol import Abilities, Allocation, EngineAway, EngineRefusal, Seen, Site
from shoal.provider.ray import rows
from shoal.provider.ray.connection import BRIDGE, CONNECT_SECONDS, BridgeConnection, Connection, bridge_environment
from shoal.provider.ray.rows import RayNode, RayOptions

log = logging.getLogger("shoal.provider.ray")

_SECONDS = 5.0
"""Seconds after which Ray is taken not to answer."""


@dataclass(slots=True)
class RayProvider:
    """Opens and closes actors; all state is Ray's, except for agents that wait to be started and the times of warnings.

    An actor gets the token of its agent only when it is ready for one: while an earlier agent of the node has not
    ended, a new token would replace that agent's.
    """

    options: RayOptions
    home: Path
    connection: Connection
    abilities: Abilities = field(default_factory=lambda: Abilities(scales=True))
    clock: Callable[[], float] = time.monotonic
    _nodes: dict[str, RayNode] = field(default_factory=dict)
    """The nodes of the last survey by host name."""
    _opened: dict[str, Allocation] = field(default_factory=dict)
    """By ref: allocations whose agents are to be started."""
    _names: dict[str, str] = field(default_factory=dict)
    _warned: dict[str, Seconds] = field(default_factory=dict)
    """By ref: when an allocation that was warned is to be ended."""
    _asked: Sequence[Mapping[str, float]] = field(default_factory=list)

    def survey(self) -> Sequence[Site]:
        """Return the nodes with GPUs, also those that Ray has lost since this process began."""
        self._nodes = rows.read_nodes(self._list("survey"), self.options, self._nodes)
        return [node.site for node in self._nodes.values()]

    def seen(self) -> Sequence[Seen]:
        """Return all allocations of this cluster, and start the agents of those that are ready."""
        answer = self._list("allocations")
        found = []
        for row in sorted(answer["actors"], key=lambda row: row["ended"]):
            if row["state"] == "ALIVE" and row["status"] == "ready":
                row.update(self._start(row["id"], row["name"]))
            one = rows.read_actor(row, answer["free"], time.time())
            found += [one] if one is not None else []
        self._names = {one.ref: one.name for one in found if one.state.open}
        self._opened = {ref: one for ref, one in self._opened.items() if ref in self._names}
        self._warned = {ref: at for ref, at in self._warned.items() if ref in self._names}
        return found

    def open(self, allocation: Allocation) -> None:
        """Create the allocation's actor on its node, unless it has one."""
        if not re.fullmatch(r"[A-Za-z0-9_.@-]+", allocation.name):
            raise EngineRefusal(f"the allocation's name {allocation.name!r} cannot be an actor's")
        node = self._nodes.get(allocation.node)
        if node is None or not node.id:
            raise EngineRefusal(f"Ray has no node {allocation.node} now")
        if any(one.name == allocation.name and one.state.open for one in self.seen()):
            return
        cpus = self.options.cpus_per_gpu * allocation.gpus
        ref = self.connection.call(
            "create", _SECONDS, name=allocation.name, node=node.id, gpus=allocation.gpus, cpus=cpus
        )
        self._opened[ref], self._names[ref] = allocation, allocation.name
        log.info("actor created", extra={"allocation": allocation.name, "actor": ref})

    def close(self, ref: str, grace: Seconds) -> None:
        """Warn the agent of an actor, once, and kill the actor after ``grace`` seconds; one without an agent at once.

        An agent whose actor is killed lets its jobs save, or kills them if it was warned before.
        """
        name, now, ends = self._names.get(ref), self.clock(), self._warned.get(ref)
        if name is None:
            return
        if ends is None and grace > 0 and ref not in self._opened:
            self.connection.call("warn", _SECONDS, ref=ref, name=name)
            self._warned[ref] = now + grace
        elif ends is None or grace <= 0 or now >= ends:
            self._opened.pop(ref, None)
            self.connection.call("kill", _SECONDS, ref=ref, name=name)

    def ask(self, kinds: Mapping[str, int]) -> None:
        """Ask Ray's autoscaler, if any, for a cluster with this many GPUs more; the request is never withdrawn."""
        wanted = rows.bundles(kinds, self._nodes.values())
        if wanted != self._asked:
            self.connection.call("ask", _SECONDS, bundles=wanted)
            self._asked = wanted

    def _start(self, ref: str, name: str) -> dict[str, object]:
        """Start the agent of an actor that is ready; return the changed fields of its row.

        An actor that another control plane created without starting its agent is ended: `open` creates another.
        """
        allocation = self._opened.pop(ref, None)
        if allocation is None:
            self.connection.call("kill", _SECONDS, ref=ref, name=name)
            return {"state": "DEAD", "ended": time.time(), "why": "RAY_KILL"}
        node = self._nodes.get(allocation.node)
        words = [self.options.python or sys.executable, "-P", "-m", "shoal.agent", *allocation.call.arguments]
        words += ["--address", node.address] if node is not None else []
        log_file = str(self.home / "nodes" / allocation.node / "agent.log")
        self.connection.call(
            "start", _SECONDS, ref=ref, name=name, words=words, log_file=log_file, token=allocation.call.token()
        )
        return {"status": "started"}

    def _list(self, verb: str) -> Any:
        try:
            return self.connection.call(verb, _SECONDS)
        except EngineRefusal as error:
            raise EngineAway(str(error)) from None


def make_ray(text: str, home: Path) -> RayProvider:
    """Return the provider for ``ray:key=value,…``; ``InputError`` if the Ray cluster cannot be used."""
    options = rows.read_ray_options(text)
    folder = home / "ray"
    folder.mkdir(parents=True, exist_ok=True)
    namespace = f"shoal-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:8]}"
    connection = connect(options, folder / "bridge.log", namespace)
    return RayProvider(options, home, connection)


def connect(options: RayOptions, log_file: Path, *namespace: str) -> BridgeConnection:
    """Return a connection to the cluster; without a namespace it only reads. ``InputError`` if there is none."""
    python = options.ray_python or _python_beside_ray()
    words = [python, "-P", str(BRIDGE), options.address, *namespace]
    connection = BridgeConnection(words, bridge_environment(options.address, os.environ), log_file)
    try:
        connection.connect(CONNECT_SECONDS)
    except EngineAway as error:
        connection.close()
        raise InputError("on", f"ray:address={options.address}", f"Ray cannot be used here: {error}") from None
    return connection


def _python_beside_ray() -> str:
    """Return the interpreter of the environment whose program ``ray`` is on the PATH."""
    program = shutil.which("ray")
    python = Path(program).with_name("python") if program else None
    if python is None or not python.exists():
        hint = "no program `ray` is on the PATH; name the Python that has Ray, e.g. ray_python=/opt/ray/bin/python"
        raise InputError("provider ray, option ray_python", None, hint)
    return str(python)
