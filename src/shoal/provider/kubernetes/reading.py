"""Nodes and pods of Kubernetes as sites and allocations; pure functions."""

import re
from collections.abc import Collection

import msgspec

from shoal.core.gpu_names import kind_of
from shoal.provider.kubernetes.api import Condition, Fields, Metadata
from shoal.provider.kubernetes.objects import ALLOCATION, GPU, PRODUCT
from shoal.provider.kubernetes.options import Toleration
from shoal.provider.protocol import AllocationState, Seen, Site, SiteState

ZONE = "topology.kubernetes.io/zone"


class Taint(Fields, frozen=True, rename="camel"):
    """A mark of a node that keeps pods away which do not tolerate it."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Fields, frozen=True, rename="camel"):
    """A node's settings, made by an operator."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(Fields, frozen=True, rename="camel"):
    """Status of a node, as the kubelet reports it."""

    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class KubeNode(Fields, frozen=True, rename="camel"):
    """A node of Kubernetes."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Waiting(Fields, frozen=True, rename="camel"):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Terminated(Fields, frozen=True, rename="camel"):
    """How a container ended."""

    exit_code: int
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(Fields, frozen=True, rename="camel"):
    """State of a container: one of its fields is set."""

    waiting: Waiting | None = None
    running: dict[str, str] | None = None
    terminated: Terminated | None = None


class ContainerStatus(Fields, frozen=True, rename="camel"):
    """Status of a container."""

    state: ContainerState = ContainerState()


class PodStatus(Fields, frozen=True, rename="camel"):
    """Status of a pod, as Kubernetes reports it."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    start_time: str | None = None


class Resources(Fields, frozen=True, rename="camel"):
    """Resources that a container may use."""

    limits: dict[str, msgspec.Raw] | None = None


class Container(Fields, frozen=True, rename="camel"):
    """A container of a pod."""

    image: str = ""
    resources: Resources = Resources()

    @property
    def gpus(self) -> int:
        """GPUs of the container."""
        raw = (self.resources.limits or {}).get(GPU)
        return int(bytes(raw).strip(b'"')) if raw is not None else 0


class PodSpec(Fields, frozen=True, rename="camel"):
    """A pod's node, and the resources it asked for."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()


class KubePod(Fields, frozen=True, rename="camel"):
    """A pod."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def annotations(self) -> dict[str, str]:
        """The pod's annotations."""
        return self.metadata.annotations or {}

    @property
    def ref(self) -> str:
        """Namespace, name and uid, by which the provider closes it."""
        return f"{self.metadata.namespace}/{self.metadata.name}/{self.metadata.uid}"

    @property
    def ended(self) -> bool:
        """Whether all its containers have ended, or Kubernetes gave it up."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def gpus(self) -> int:
        """GPUs of all its containers."""
        return sum(container.gpus for container in self.spec.containers)

    def condition(self, name: str) -> Condition | None:
        """Return a condition of its status."""
        return next((one for one in self.status.conditions or () if one.type == name), None)

    @property
    def terminated(self) -> Terminated | None:
        """How its first container ended, if the kubelet has said so."""
        statuses = self.status.container_statuses or ()
        return statuses[0].state.terminated if statuses else None


def site_of(node: KubeNode, tolerations: Collection[Toleration]) -> Site | None:
    """Return a node with GPUs as a site; None for one without.

    Down: the kubelet does not report it as ready. Draining: cordoned, or tainted with what pods do not tolerate.
    """
    labels = node.metadata.labels or {}
    gpus = (node.status.allocatable or {}).get(GPU, "0")
    if not gpus.isdigit() or gpus == "0":
        return None
    state, why = _node_state(node, tolerations)
    return Site(
        node.metadata.name, kind_of_product(labels.get(PRODUCT, "")), int(gpus), labels.get(ZONE, "r0"), state, why
    )


def _node_state(node: KubeNode, tolerations: Collection[Toleration]) -> tuple[SiteState, str]:
    ready = next((one for one in node.status.conditions or () if one.type == "Ready"), None)
    if ready is None or ready.status != "True":
        return "down", (ready.message or ready.reason) if ready is not None else "its kubelet has not reported"
    if node.spec.unschedulable:
        return "draining", "cordoned"
    for taint in node.spec.taints or ():
        if taint.effect != "PreferNoSchedule" and not any(_tolerates(one, taint) for one in tolerations):
            return "draining", f"pods do not tolerate its taint {taint.key}:{taint.effect}"
    return "up", ""


def _tolerates(one: Toleration, taint: Taint) -> bool:
    return one.key == taint.key and one.effect in ("", taint.effect) and one.value in ("", taint.value)


def kind_of_product(product: str) -> str:
    """Return the kind in the label of NVIDIA's feature discovery.

    ``NVIDIA-A100-SXM4-40GB`` is ``a100``; a MIG profile and time-slicing make a kind of their own, as in
    ``a100-1g.5gb`` and ``a100-shared``.
    """
    name, shared = product.removesuffix("-SHARED"), "-shared" * product.endswith("-SHARED")
    model, _, profile = name.partition("-MIG-")
    return kind_of(model) + (f"-{profile.lower()}" if profile else "") + shared


def seen_of(pod: KubePod) -> Seen:
    """Return an agent's pod as an allocation.

    One that is being deleted is up while its containers may run: no second agent must be started beside it.
    """
    name, ref, status = pod.annotations.get(ALLOCATION, ""), pod.ref, pod.status
    if pod.ended:
        end = pod.terminated
        why = status.message or status.reason or (end.message or end.reason if end is not None else "")
        code = end.exit_code if end is not None else None
        # Without the kubelet's word on the container the pod was only given up: its process may run on.
        return Seen(name, ref, AllocationState.ENDED, code, end is not None, why or status.phase)
    if status.phase == "Unknown" or status.reason == "NodeLost":
        return Seen(name, ref, AllocationState.LOST, why=status.message or "Kubernetes lost sight of its node")
    if status.phase == "Running" or pod.metadata.deletion_timestamp is not None:
        return Seen(name, ref, AllocationState.UP)
    return Seen(name, ref, AllocationState.WAITING, why=waiting_reason(pod))


def waiting_reason(pod: KubePod) -> str:
    """Return why a pod does not run yet: the scheduler's sentence, or the kubelet's."""
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        # The scheduler repeats its counts for preemption, which no one can act on.
        return re.sub(r"\.? *preemption: .*", "", scheduled.message or scheduled.reason).removesuffix(".")
    for container in pod.status.container_statuses or ():
        if (waiting := container.state.waiting) is not None and waiting.reason:
            return f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
    return "" if scheduled is None else "its containers are being made"
