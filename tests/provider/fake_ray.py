"""Ray in memory, with the messages of `shoal.provider.ray.bridge`; `test_ray_provider` holds it to the real one."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.provider.protocol import EngineAway

Row = dict[str, Any]


def node_row(name: str, number: int, gpus: int = 2) -> Row:
    """Return a node as the bridge reports it."""
    resources = {"CPU": 1.0, "GPU": float(gpus), "accelerator_type:V100": 1.0} if gpus else {"CPU": 1.0}
    return {
        "id": f"{number:02x}" * 28,
        "alive": True,
        "host": "vm",
        "name": name,
        "address": f"127.0.0.{number}",
        "resources": resources,
        "labels": {"pool": "gpu"} if gpus else {},
        "why": "",
        "draining": False,
    }


@dataclass
class FakeRay:
    """A head and two nodes with two GPUs each; agents are entries of ``agents``, by the reference of their actor."""

    nodes: list[Row] = field(default_factory=lambda: [node_row("head", 2, 0), node_row("n1", 3), node_row("n2", 4)])
    actors: dict[str, Row] = field(default_factory=dict)
    agents: dict[str, Row] = field(default_factory=dict)
    wishes: list[dict[str, float]] = field(default_factory=list)
    away: bool = False
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    deaf: bool = False
    """Whether agents ignore warnings, and outlive their actors."""

    def connect(self, namespace: str) -> "FakeConnection":
        """Return a connection for the control plane of a namespace."""
        return FakeConnection(self, namespace)

    def hold(self, node: str, gpus: int) -> list[str]:
        """Start another person's actor; return its GPUs."""
        return self.create("stranger", f"stranger-{len(self.actors)}", self._id(node), gpus)["gpus"]  # type: ignore[no-any-return]

    def kill(self, name: str, namespace: str) -> None:
        """Kill an actor, as a person would."""
        self.end(self.find(name, namespace)["id"], "RAY_KILL The actor is dead because it was killed by `ray.kill`.")

    def lose(self, node: str) -> None:
        """Lose a node, with its actors and agents."""
        row = self._row(node)
        row |= {"alive": False, "resources": {}, "why": "health check failed"}
        for actor in [one for one in self.actors.values() if one["node"] == row["id"]]:
            self.end(actor["id"], "NODE_DIED The actor died because its node has died.")

    def regain(self, node: str) -> None:
        """Start a lost node again, which gets another identifier."""
        self.nodes.append(node_row(node, 10 + len(self.nodes)))

    def find(self, name: str, namespace: str) -> Row:
        """Return the actor of a name that has not ended."""
        (found,) = (
            one
            for one in self.actors.values()
            if (one["name"], one["namespace"]) == (name, namespace) and one["state"] != "DEAD"
        )
        return found

    def create(self, namespace: str, name: str, node: str, gpus: int) -> Row:
        """Create an actor, which waits if its GPUs are not free."""
        ref = f"{len(self.actors) + 1:08x}"
        self.actors[ref] = {
            "id": ref,
            "name": name,
            "namespace": namespace,
            "class": "Pilot",
            "job": "01000000",
            "node": node,
            "state": "PENDING_CREATION",
            "resources": {"GPU": float(gpus)},
            "group": "",
            "began": 0.0,
            "ended": 0.0,
            "why": "",
            "status": "",
            "gpus": [],
        }
        self.schedule()
        return self.actors[ref]

    def schedule(self) -> None:
        """Give free GPUs to the actors that wait, in their order."""
        for actor in self.actors.values():
            free = self.free().get(actor["node"], [])
            wanted = int(actor["resources"]["GPU"])
            if actor["state"] == "PENDING_CREATION" and len(free) >= wanted:
                actor |= {"state": "ALIVE", "gpus": free[:wanted], "began": time.time()}

    def free(self) -> dict[str, list[str]]:
        """Return the GPUs of each node that no actor has."""
        taken = [(one["node"], gpu) for one in self.actors.values() if one["state"] == "ALIVE" for gpu in one["gpus"]]
        ids = {row["id"]: [str(gpu) for gpu in range(int(row["resources"].get("GPU", 0)))] for row in self.nodes}
        return {node: [gpu for gpu in gpus if (node, gpu) not in taken] for node, gpus in ids.items()}

    def end(self, ref: str, why: str) -> None:
        """End an actor and its agent."""
        self.actors[ref] |= {"state": "DEAD", "ended": time.time(), "why": why}
        if not self.deaf:
            self.agents.pop(ref, None)
        self.schedule()

    def _row(self, node: str) -> Row:
        return next(row for row in self.nodes if row["name"] == node and row["alive"])

    def _id(self, node: str) -> str:
        found: str = self._row(node)["id"]
        return found


@dataclass
class FakeConnection:
    """The verbs of the bridge on a `FakeRay`."""

    ray: FakeRay
    namespace: str

    def call(self, verb: str, seconds: float, **arguments: object) -> Any:
        """Answer one request."""
        assert seconds > 0
        self.ray.calls.append((verb, arguments))
        if self.ray.away:
            raise EngineAway("Ray did not answer within 5 s")
        does: Callable[..., Any] = getattr(self, f"_{verb}")
        return does(**arguments)

    def close(self) -> None:
        """Do nothing."""

    def _survey(self) -> list[Row]:
        return [dict(row) for row in self.ray.nodes]

    def _allocations(self) -> Row:
        ours = [one for one in self.ray.actors.values() if one["namespace"] == self.namespace]
        for actor in ours:
            names = [self.ray.actors[ref]["name"] for ref in self.ray.agents if ref != actor["id"]]
            if actor["state"] == "ALIVE" and actor["status"] != "started":
                actor["status"] = "busy" if actor["name"] in names else "ready"
        return {"actors": [dict(one) for one in ours], "free": {k: float(len(v)) for k, v in self.ray.free().items()}}

    def _create(self, name: str, node: str, gpus: int, cpus: int) -> str:
        assert cpus >= 0
        ref: str = self.ray.create(self.namespace, name, node, gpus)["id"]
        return ref

    def _start(self, ref: str, name: str, words: list[str], log_file: str, token: str) -> None:
        assert self.ray.actors[ref]["name"] == name
        self.ray.actors[ref]["status"] = "started"
        self.ray.agents[ref] = {"words": words, "log": log_file, "token": token, "signals": []}

    def _warn(self, ref: str, name: str) -> None:
        assert self.ray.actors[ref]["name"] == name
        self.ray.agents[ref]["signals"].append("TERM")
        if not self.ray.deaf:
            self.ray.end(ref, "WORKER_DIED The actor exited by exit_actor().")

    def _kill(self, ref: str, name: str) -> None:
        if self.ray.actors[ref]["state"] != "DEAD":
            self.ray.kill(name, self.namespace)

    def _ask(self, bundles: list[dict[str, float]]) -> None:
        self.ray.wishes = bundles
