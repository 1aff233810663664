"""Ray as an engine under test, and its faults."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.provider.ray_cluster import PYTHON, RayCluster

from shoal.provider.ray.connection import BridgeConnection, bridge_environment
from shoal.provider.ray.provider import RayProvider, make_ray

_STRANGER = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what Ray prints of nodes that it lost is not an answer
import ray
address, asked = sys.argv[1:]
ray.init(address, namespace="stranger", _node_ip_address=address.split(":")[0], log_to_driver=False)

@ray.remote(max_restarts=0)
class Stranger:
    def gpus(self):
        return ray.get_runtime_context().get_accelerator_ids()["GPU"]

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

def wishes():
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.experimental.internal_kv import _internal_kv_get
    if not is_autoscaler_v2():
        return json.loads(_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"[]")
    from ray.autoscaler.v2.sdk import get_cluster_status
    asked = get_cluster_status(address).resource_demands.cluster_constraint_demand
    return [one.bundle for demand in asked for one in demand.bundles_by_count for _ in range(one.count)]

kept = []
print("connected", file=answers)
for line in sys.stdin:
    verb, *words = json.loads(line)
    if verb == "group":
        kept.append(ray.util.placement_group([{"GPU": 1}] * words[0], strategy="SPREAD"))
        ray.get(kept[-1].ready(), timeout=60)
        answer = kept[-1].id.hex()
    elif verb == "wishes":
        answer = wishes()
    elif verb == "kill":
        name, namespace = words
        ray.kill(ray.get_actor(name, namespace=namespace))
        answer = None
    else:
        node, gpus = words
        id = next(one["NodeID"] for one in ray.nodes() if one["NodeName"] == node and one["Alive"])
        there = NodeAffinitySchedulingStrategy(id, soft=False)
        kept.append(Stranger.options(num_gpus=gpus, scheduling_strategy=there).remote())
        answer = ray.get(kept[-1].gpus.remote(), timeout=60)
    print(json.dumps(answer), file=answers)
"""


class StrangerDriver:
    """Another person's driver on the same Ray cluster."""

    def __init__(self, cluster: RayCluster) -> None:
        self._process = subprocess.Popen(
            [str(PYTHON), "-c", _STRANGER, cluster.address, ""],
            env=bridge_environment(cluster.address, {"RAY_TMPDIR": str(cluster.run)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr.fileno(),
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "connected\n"

    def _call(self, *words: object) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def kill_actor(self, name: str, namespace: str) -> None:
        """``ray.kill`` an actor, by its name."""
        self._call("kill", name, namespace)

    def hold(self, node: str, gpus: int) -> list[str]:
        """Start an actor with GPUs of a node; return which."""
        held = self._call("hold", node, gpus)
        assert isinstance(held, list)
        return held

    def group(self, bundles: int) -> str:
        """Make a placement group of bundles with one GPU each; return its identifier."""
        return str(self._call("group", bundles))

    def wishes(self) -> list[dict[str, float]]:
        """Return the bundles of resources that Ray's autoscaler was asked for."""
        found = self._call("wishes")
        assert isinstance(found, list)
        return found

    def leave(self) -> None:
        """End the driver, and with it its actors."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def namespace_of(provider: RayProvider) -> str:
    """Return the namespace of a provider's actors on a real Ray."""
    assert isinstance(provider.connection, BridgeConnection)
    return provider.connection.words[-1]


@dataclass(slots=True)
class RayEngine:
    """A Ray with two nodes, and its faults."""

    cluster: RayCluster
    provider: RayProvider
    stranger: StrangerDriver

    def close_as_stranger(self, ref: str) -> None:
        """Kill an actor without a warning, which is all that Ray offers."""
        name = next(one.name for one in self.provider.seen() if one.ref == ref)
        self.stranger.kill_actor(name, namespace_of(self.provider))

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop Ray's control store."""
        with self.cluster.away():
            yield


def provider_on(cluster: RayCluster, home: Path, options: str = "") -> RayProvider:
    """Return a provider for the cluster whose control plane has this home."""
    return make_ray(f"address={cluster.address},ray_python={PYTHON}{options}", home)
