"""Watches the pods with GPUs of a Kubernetes cluster, and Kueue's workloads, without changing anything.

Every request is a GET. Pods of one controller that were created together are one job; pods of a Kueue workload are part
of the workload's job, which waits from the workload's creation on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from shoal.core.spec_text import split_options
from shoal.provider.kubernetes.access import find_access
from shoal.provider.kubernetes.api import Api, ApiRefusal, Condition, Fields, Metadata
from shoal.provider.kubernetes.objects import PRODUCT
from shoal.provider.kubernetes.reading import KubeNode, KubePod, PodSpec, kind_of_product
from shoal.provider.protocol import EngineAway
from shoal.provider.queue_watch import QueueWatch

_TOGETHER_SECONDS = 60.0
"""Seconds within which a controller's pods are created that are one job."""

_QUEUE = "kueue.x-k8s.io"
_VERSIONS = ("v1beta2", "v1beta1")
_OPEN = ("PENDING", "RUNNING")
_SECONDS = 20.0


class Template(Fields, frozen=True, rename="camel"):
    """A pod that is to be created."""

    spec: PodSpec = PodSpec()


class PodSet(Fields, frozen=True, rename="camel"):
    """Equal pods of a workload."""

    count: int = 1
    template: Template = Template()


class WorkloadSpec(Fields, frozen=True, rename="camel"):
    """The pods that a workload asks for."""

    pod_sets: list[PodSet] | None = None


class WorkloadStatus(Fields, frozen=True, rename="camel"):
    """Status of a workload, as Kueue reports it."""

    conditions: list[Condition] | None = None


class KueueWorkload(Fields, frozen=True, rename="camel"):
    """A job in one of Kueue's queues."""

    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def gpus(self) -> int:
        """GPUs of all its pods."""
        sets = self.spec.pod_sets or ()
        return sum(one.count * sum(each.gpus for each in one.template.spec.containers) for one in sets)

    def since(self, name: str) -> tuple[str, str]:
        """Return since when a condition holds, and its reason; both empty if it does not hold."""
        for one in self.status.conditions or ():
            if one.type == name and one.status == "True":
                return one.last_transition_time or "", one.reason
        return "", ""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job as the watch writes it; times are Kubernetes', empty if not known."""

    name: str
    namespace: str
    state: str
    submitted: str
    started: str
    ended: str
    gpus: int
    kinds: Sequence[str]
    nodes: Sequence[str]

    @property
    def line(self) -> str:
        """The line of ``COLUMNS``."""
        kind = f":{self.kinds[0]}" if len(set(self.kinds)) == 1 else ""
        times = [text.removesuffix("Z") or "Unknown" for text in (self.submitted, self.submitted, self.started)]
        ended = self.ended.removesuffix("Z") or "Unknown"
        words = [self.name, self.namespace, self.namespace, "", self.state, *times, ended, ""]
        return "|".join([*words, str(len(self.nodes) or 1), f"gres/gpu{kind}={self.gpus}", "+".join(self.nodes)])


@dataclass(slots=True)
class KubernetesQueue:
    """Lists the jobs with GPUs of a namespace, or of all, for a `QueueWatch`."""

    api: Api
    namespace: str = ""
    clock: Callable[[], float] = time.time
    _version: str | None = None
    """Version of Kueue's API; empty if the cluster has no Kueue, None before it is known."""
    _kinds: dict[str, str] = field(default_factory=dict)

    def rows(self, before: Mapping[str, str]) -> Mapping[str, str]:
        """Return the lines of all jobs; one that is gone ended when it was missed."""
        try:
            jobs = self._jobs()
        except ApiRefusal as error:
            raise EngineAway(str(error)) from None
        finally:
            self.api.close()  # the next look is a minute away
        found = {job.name: job.line for job in jobs}
        now = datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S")
        for name, line in before.items():
            words = line.split("|")
            if name not in found and words[4] in _OPEN:
                words[4] = "COMPLETED" if words[4] == "RUNNING" else "CANCELLED"
                words[8] = now
                found[name] = "|".join(words)
        return found

    def _jobs(self) -> list[ObservedJob]:
        nodes, _ = self.api.list("/api/v1/nodes", KubeNode, {})
        self._kinds |= {node.metadata.name: _kind(node) for node in nodes}
        space = f"/namespaces/{self.namespace}" if self.namespace else ""
        pods, _ = self.api.list(f"/api/v1{space}/pods", KubePod, {})
        pods = [pod for pod in pods if pod.gpus]
        workloads = [one for one in self._workloads(space) if one.gpus]
        jobs, queued = [], set[str]()
        for workload in workloads:
            own = [pod for pod in pods if _belongs(pod, workload)]
            queued |= {pod.metadata.uid for pod in own}
            jobs.append(self._of_workload(workload, own))
        alone = [pod for pod in pods if pod.metadata.uid not in queued]
        return jobs + [self._of_pods(group) for group in _groups(alone)]

    def _workloads(self, space: str) -> list[KueueWorkload]:
        for version in _VERSIONS if self._version is None else filter(None, (self._version,)):
            try:
                found, _ = self.api.list(f"/apis/{_QUEUE}/{version}{space}/workloads", KueueWorkload, {})
            except ApiRefusal as error:
                if error.status != 404:
                    raise
                continue
            self._version = version
            return found
        self._version = ""
        return []

    def _of_workload(self, workload: KueueWorkload, pods: Sequence[KubePod]) -> ObservedJob:
        (started, _), (ended, reason) = workload.since("Admitted"), workload.since("Finished")
        state = ("FAILED" if "Fail" in reason else "COMPLETED") if ended else "RUNNING" if started else "PENDING"
        data = workload.metadata
        return self._job(data, state, data.creation_timestamp or "", started, ended, workload.gpus, pods)

    def _of_pods(self, pods: Sequence[KubePod]) -> ObservedJob:
        """Return pods that were created together as one job, which starts and ends with the last of them."""
        phases = {pod.status.phase for pod in pods}
        ended = all(pod.ended for pod in pods)
        starts = [pod.status.start_time or "" for pod in pods]
        ends = [pod.terminated.finished_at or "" if pod.terminated is not None else "" for pod in pods]
        if ended:
            state = "FAILED" if "Failed" in phases else "COMPLETED"
        else:
            state = "PENDING" if "Pending" in phases else "RUNNING"
        submitted = min(pod.metadata.creation_timestamp or "" for pod in pods)
        started = max(starts) if all(starts) else ""
        gpus = sum(pod.gpus for pod in pods)
        return self._job(pods[0].metadata, state, submitted, started, max(ends) if ended else "", gpus, pods)

    def _job(
        self, data: Metadata, state: str, submitted: str, started: str, ended: str, gpus: int, pods: Sequence[KubePod]
    ) -> ObservedJob:
        nodes = sorted({pod.spec.node_name for pod in pods if pod.spec.node_name})
        kinds = [kind for node in nodes if (kind := self._kinds.get(node, ""))]
        # A full stop would make it a step of another job, to the reader of sacct.
        name = f"{data.name.replace('.', '-')}-{data.uid[:8]}"
        return ObservedJob(name, data.namespace, state, submitted, started, ended, gpus, kinds, nodes)


def make_watch(options: str, file: Path) -> QueueWatch:
    """Return the watch for ``kubernetes:key=value,…``; without a namespace it reads all."""
    given = split_options("on kubernetes", options, ("namespace", "kubeconfig", "context"))
    api = Api(find_access(given.get("kubeconfig", ""), given.get("context", "")), _SECONDS)
    return QueueWatch(file, KubernetesQueue(api, given.get("namespace", "")).rows)


def _kind(node: KubeNode) -> str:
    label = (node.metadata.labels or {}).get(PRODUCT, "")
    return kind_of_product(label) if label else ""


def _belongs(pod: KubePod, workload: KueueWorkload) -> bool:
    """Return whether a pod is one of a workload's: Kueue names it, or both have the same owner."""
    if pod.metadata.namespace != workload.metadata.namespace:
        return False
    if pod.annotations.get(f"{_QUEUE}/workload") == workload.metadata.name:
        return True
    owners = {one.uid for one in workload.metadata.owner_references or ()}
    own = {pod.metadata.uid, *(one.uid for one in pod.metadata.owner_references or ())}
    return bool(owners & own)


def _groups(pods: Sequence[KubePod]) -> list[list[KubePod]]:
    """Return pods by job: those of one controller that were created within a minute of the first."""
    found: list[list[KubePod]] = []
    latest: dict[str, list[KubePod]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)):
        owner = next((one.uid for one in pod.metadata.owner_references or () if one.controller), pod.metadata.uid)
        group = latest.get(owner)
        if group is None or _seconds(pod) - _seconds(group[0]) > _TOGETHER_SECONDS:
            group = latest[owner] = []
            found.append(group)
        group.append(pod)
    return found


def _seconds(pod: KubePod) -> float:
    return datetime.fromisoformat(pod.metadata.creation_timestamp or "1970-01-01T00:00:00Z").timestamp()
