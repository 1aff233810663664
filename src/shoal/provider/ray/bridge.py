"""The one program of Shoal that imports Ray; it is run by the Python that has Ray, and imports nothing of Shoal.

``python bridge.py ADDRESS [NAMESPACE]`` connects to a Ray cluster and answers requests, one JSON object a line on stdin
and stdout: ``{"do": VERB, …}`` is answered by ``{"answer": …}`` or by ``{"refused": TEXT}``; the first line says
whether it connected. Without a namespace it is no driver of Ray, and its one verb, ``state``, changes nothing.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Row = dict[str, Any]

GUARD = """
import ctypes, os, signal, subprocess, sys
worker, pipe, held, *words = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: ends with Ray's worker, however that ends
if os.getppid() != int(worker):
    sys.exit(1)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
words += ["--token-fd", pipe, "--parent", str(os.getpid())]
agent = subprocess.Popen(words, stdout=2, pass_fds=(int(pipe), int(held)))
print(agent.pid, flush=True)
sys.exit(agent.wait())
"""
"""Stands between Ray's worker and the agent. Ray kills a worker's children with it, at once; when this one is killed,
the agent gets SIGTERM and lets its jobs save."""


class Pilot:
    """The actor of one allocation, which has the GPUs of its agent; it ends when the agent has ended.

    An abstract socket that the agent inherits shows whether an agent of this name still runs on the node: one whose
    actor was killed may be giving its jobs time to save.
    """

    def __init__(self, name: str) -> None:
        self._name, self._agent, self._warned = name, 0, False
        self._held: socket.socket | None = None
        self._guard: subprocess.Popen[str] | None = None

    def status(self) -> str:
        """Return ``started``, ``ready`` for an agent, or ``busy`` while an earlier agent has not ended."""
        if self._guard is None and self._held is None:
            held = socket.socket(socket.AF_UNIX)
            try:
                held.bind(f"\0shoal-{os.getuid()}-{self._name}")
            except OSError:
                held.close()
                return "busy"
            self._held = held
        return "ready" if self._guard is None else "started"

    def run(self, words: list[str], log_file: str, token: str) -> None:
        """Run the agent with its token on a pipe, wait until it has ended, and end this actor."""
        import ray

        if self._guard is None and self._held is not None:
            try:
                self._run(words, log_file, token, ray.get_runtime_context().get_accelerator_ids().get("GPU", []))
            finally:
                ray.actor.exit_actor()

    def _run(self, words: list[str], log_file: str, token: str, gpus: list[str]) -> None:
        assert self._held is not None
        # Ray sets OMP_NUM_THREADS for its own workers.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SHOAL_", "OMP_NUM"))}
        os.makedirs(os.path.dirname(log_file), exist_ok=True)
        pipe, write = os.pipe()
        with open(log_file, "ab") as out:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", GUARD, *map(str, (os.getpid(), pipe, self._held.fileno())), *words],
                env={**kept, "CUDA_VISIBLE_DEVICES": ",".join(gpus)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                pass_fds=(pipe, self._held.fileno()),
                start_new_session=True,
            )
        os.close(pipe)
        self._held.close()
        with suppress(BrokenPipeError), os.fdopen(write, "w") as end:
            end.write(f"{token}\n")
        assert self._guard.stdout is not None
        self._agent = int(self._guard.stdout.readline() or 0)
        if self._warned:
            self.warn()
        self._guard.wait()

    def warn(self) -> None:
        """Send the agent SIGTERM, as soon as it runs: it lets its jobs save, and ends."""
        self._warned = True
        if self._agent and self._guard is not None and self._guard.poll() is None:
            os.kill(self._agent, signal.SIGTERM)


class Watcher:
    """Reads the state of a Ray cluster from its control store; it changes nothing and is no driver."""

    def __init__(self, address: str) -> None:
        from ray._private.services import canonicalize_bootstrap_address_or_die
        from ray._raylet import GcsClientOptions, GlobalStateAccessor

        self.address = canonicalize_bootstrap_address_or_die(address)
        options = GcsClientOptions.create(self.address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        self._state = GlobalStateAccessor(options)
        if not self._state.connect():
            raise ConnectionError(f"no Ray cluster answers at {self.address}")

    @property
    def verbs(self) -> dict[str, Callable[..., Any]]:
        """The requests that are answered, by verb."""
        return {"state": self.state}

    def survey(self) -> list[Row]:
        """Return the nodes, also those that are gone."""
        draining = self._state.get_draining_nodes()
        return [
            {
                "id": node["NodeID"],
                "alive": node["Alive"],
                "host": node["NodeManagerHostname"],
                "name": node.get("NodeName", ""),
                "address": node["NodeManagerAddress"],
                "resources": node["Resources"],
                "labels": dict(node.get("Labels") or {}),
                "why": node.get("DeathReasonMessage", ""),
                "draining": node["NodeID"] in draining,
            }
            for node in self._state.get_node_table()
        ]

    def actors(self, namespace: str = "") -> list[Row]:
        """Return the actors of a namespace, or of all; of those that have ended the control store keeps the latest."""
        from ray.core.generated import gcs_pb2

        read = (gcs_pb2.ActorTableData.FromString(data) for data in self._state.get_actor_table(None, None))
        return [
            {
                "id": actor.actor_id.hex(),
                "name": actor.name,
                "namespace": actor.ray_namespace,
                "class": actor.class_name,
                "job": actor.job_id.hex(),
                "node": actor.address.node_id.hex(),
                "state": gcs_pb2.ActorTableData.ActorState.Name(actor.state),
                "resources": dict(actor.required_resources),
                "group": actor.placement_group_id.hex() if actor.HasField("placement_group_id") else "",
                "began": actor.start_time / 1000,
                "ended": actor.end_time / 1000,
                "why": _cause(actor.death_cause),
            }
            for actor in read
            if not namespace or actor.ray_namespace == namespace
        ]

    def free(self) -> dict[str, float]:
        """Return by node the GPUs that Ray has not given to anyone."""
        from ray.core.generated import gcs_pb2

        read = (gcs_pb2.AvailableResources.FromString(data) for data in self._state.get_all_available_resources())
        return {one.node_id.hex(): dict(one.resources_available).get("GPU", 0.0) for one in read}

    def state(self) -> Row:
        """Return the jobs, placement groups, actors and nodes of the cluster."""
        from ray.core.generated import gcs_pb2

        jobs = [
            gcs_pb2.JobTableData.FromString(data)
            for data in self._state.get_job_table(skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
        ]
        groups = [gcs_pb2.PlacementGroupTableData.FromString(data) for data in self._state.get_placement_group_table()]
        return {
            "jobs": [
                {
                    "id": job.job_id.hex(),
                    "namespace": job.config.ray_namespace,
                    "metadata": dict(job.config.metadata),
                    "began": job.start_time / 1000,
                    "ended": job.end_time / 1000,
                    "over": job.is_dead,
                }
                for job in jobs
            ],
            "groups": [
                {
                    "id": group.placement_group_id.hex(),
                    "name": group.name,
                    "job": group.creator_job_id.hex(),
                    "state": gcs_pb2.PlacementGroupTableData.PlacementGroupState.Name(group.state),
                    "bundles": [
                        {"resources": dict(one.unit_resources), "node": one.node_id.hex()} for one in group.bundles
                    ],
                    "asked": group.stats.creation_request_received_ns / 1e9,
                    "waited": group.stats.end_to_end_creation_latency_us / 1e6,
                }
                for group in groups
            ],
            "actors": self.actors(),
            "nodes": self.survey(),
        }


def _cause(cause: Any) -> str:
    """Return why an actor ended: Ray's word for it, and its sentence."""
    which = cause.WhichOneof("context")
    if not which:
        return ""
    context = getattr(cause, which)
    word = context.Reason.Name(context.reason) if which == "actor_died_error_context" else which
    return f"{word} {' '.join(getattr(context, 'error_message', '').split())}"[:500]


class RayDriver(Watcher):
    """Opens and closes actors in one namespace; those of others are never touched."""

    def __init__(self, address: str, namespace: str) -> None:
        super().__init__(address)
        import ray

        host = self.address.rpartition(":")[0]
        ray.init(
            address=self.address,
            namespace=namespace,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address=host if host.startswith("127.") else None,
        )
        self._ray, self._namespace = ray, namespace
        self._statuses: dict[str, str] = {}
        self._asked: dict[Any, str] = {}
        self._handles: dict[str, Any] = {}

    @property
    def verbs(self) -> dict[str, Callable[..., Any]]:
        """The requests that are answered, by verb."""
        does = (self.survey, self.allocations, self.create, self.start, self.warn, self.kill, self.ask)
        return {one.__name__: one for one in does}

    def allocations(self) -> Row:
        """Return this namespace's actors, with the status of those that are alive if they have answered, and `free`."""
        rows = self.actors(self._namespace)
        present = {row["id"] for row in rows if row["state"] != "DEAD"}
        alive = {row["id"]: row["name"] for row in rows if row["state"] == "ALIVE"}
        self._handles = {actor: handle for actor, handle in self._handles.items() if actor in present}
        for ref in self._ray.wait([*self._asked], num_returns=len(self._asked), timeout=0)[0] if self._asked else ():
            with suppress(self._ray.exceptions.RayError):
                self._statuses[self._asked[ref]] = self._ray.get(ref)
            del self._asked[ref]
        self._asked = {ref: actor for ref, actor in self._asked.items() if actor in alive}
        self._statuses = {actor: status for actor, status in self._statuses.items() if actor in alive}
        for actor, name in alive.items():
            if self._statuses.get(actor) != "started" and actor not in self._asked.values():
                with suppress(ValueError):
                    self._asked[self._handle(actor, name).status.remote()] = actor
        return {"actors": [{**row, "status": self._statuses.get(row["id"], "")} for row in rows], "free": self.free()}

    def create(self, name: str, node: str, gpus: int, cpus: int) -> str:
        """Create the actor of an allocation on a node, unless there is one of its name; return its identifier."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        maker = self._ray.remote(Pilot).options(
            name=name,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=0,
            max_concurrency=8,
            num_gpus=gpus,
            num_cpus=cpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        actor = maker.remote(f"{self._namespace}-{name}")
        ref: str = actor._actor_id.hex()
        self._asked[actor.status.remote()] = ref
        self._handles[ref] = actor
        return ref

    def start(self, ref: str, name: str, words: list[str], log_file: str, token: str) -> None:
        """Start the agent of an actor that is ready; its token is an argument of the call, which Ray does not show."""
        self._handle(ref, name).run.remote(words, log_file, token)
        self._statuses[ref] = "started"
        self._asked = {asked: actor for asked, actor in self._asked.items() if actor != ref}

    def warn(self, ref: str, name: str) -> None:
        """Have the agent of an actor let its jobs save and end."""
        with suppress(ValueError):
            self._handle(ref, name).warn.remote()

    def kill(self, ref: str, name: str) -> None:
        """End an actor; if it has an agent, that lets its jobs save."""
        with suppress(ValueError):
            self._ray.kill(self._handle(ref, name), no_restart=True)

    def ask(self, bundles: list[dict[str, float]]) -> None:
        """Ask Ray's autoscaler for a cluster on which all these bundles fit at once."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=bundles)

    def _handle(self, ref: str, name: str) -> Any:
        """Return the actor of this namespace with this identifier; ``ValueError`` if it is gone."""
        if ref not in self._handles:
            actor = self._ray.get_actor(name, namespace=self._namespace)
            if actor._actor_id.hex() != ref:
                raise ValueError(f"the actor {ref} is gone")
            self._handles[ref] = actor
        return self._handles[ref]


def _end_with(parent: int) -> None:
    """End this process soon after its parent, even during a call to Ray that does not return."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    """Connect, and answer requests until stdin ends."""
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Ray prints is not an answer
    address, namespace = (*sys.argv[1:], "")[:2]
    try:
        served = RayDriver(address, namespace) if namespace else Watcher(address)
    except Exception as error:
        print(json.dumps({"refused": " ".join(f"{error}".split())[:500]}), file=out)
        sys.exit(1)
    print(json.dumps({"answer": "connected"}), file=out)
    verbs = served.verbs
    for line in sys.stdin:
        request = json.loads(line)
        verb = request.pop("do")
        try:
            answer = {"answer": verbs[verb](**request)}
        except Exception as error:
            answer = {"refused": " ".join(f"{error}".split())[:500]}
        print(json.dumps(answer), file=out)


if __name__ == "__main__":
    main()
