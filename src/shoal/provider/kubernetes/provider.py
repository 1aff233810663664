"""The provider `kubernetes`: each allocation is one pod on one node, whose process is the agent.

The pod is created first and its secret, which it owns, second: Kubernetes deletes the secret with the pod, and Shoal
needs no right to read, list or delete secrets. A pod whose secret was never created is found and replaced.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from shoal.core.errors import InputError
from shoal.core.units import Seconds
from shoal.provider.kubernetes import objects
from shoal.provider.kubernetes.access import Access, find_access
from shoal.provider.kubernetes.api import Api, ApiRefusal
from shoal.provider.kubernetes.list_watch import ListWatch
from shoal.provider.kubernetes.options import KubernetesOptions, Place, read_kubernetes_options
from shoal.provider.kubernetes.reading import KubeNode, KubePod, seen_of, site_of
from shoal.provider.protocol import Abilities, Allocation, AllocationState, EngineAway, EngineRefusal, Seen, Site

T = TypeVar("T")

log = logging.getLogger("shoal.provider.kubernetes")

_KEPT_SECONDS = 300.0
"""Seconds for which a pod that has ended is kept, so that its log can be read."""

_WISH_SECONDS = 180.0
"""Seconds after which nodes that were not asked for again are not wanted any more."""

_CONFLICT, _NOT_FOUND = 409, 404


@dataclass(slots=True)
class KubernetesProvider:
    """Opens and closes pods; all state is Kubernetes'. ``cluster`` marks the pods of this Shoal cluster."""

    api: Api
    options: KubernetesOptions
    cluster: str
    abilities: Abilities
    clock: Callable[[], float] = time.monotonic
    _nodes: ListWatch[KubeNode] = field(init=False)
    _pods: list[ListWatch[KubePod]] = field(init=False)
    _kinds: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By kind, the label of the latest node that had it, and that node's GPUs."""
    _has_secret: set[str] = field(default_factory=set)
    """Uids of pods whose secret is known to exist."""
    _no_secret: set[str] = field(default_factory=set)
    """Uids of pods whose secret was never created."""
    _ended: dict[str, Seconds] = field(default_factory=dict)
    """By uid, when a pod was first seen to have ended."""
    _asked_at: Seconds = -math.inf

    def __post_init__(self) -> None:
        selector = {"labelSelector": self.options.selector}
        self._nodes = ListWatch(self.api, "/api/v1/nodes", KubeNode, selector)
        ours = {"labelSelector": f"{objects.CLUSTER}={self.cluster}"}
        self._pods = [ListWatch(self.api, _pods(space), KubePod, ours) for space in self.options.namespaces]

    def survey(self) -> Sequence[Site]:
        """Return the nodes with GPUs that the selector chooses.

        One small request checks that the API server answers: a watch that hangs would not show it.
        """
        self._call("GET", "/version", done=(403, _NOT_FOUND))
        tolerations = self.options.place.tolerations
        sites = []
        for node in _listed(self._nodes):
            if (site := site_of(node, tolerations)) is not None:
                sites.append(site)
                self._kinds[site.kind] = (node.metadata.labels or {}).get(objects.PRODUCT, ""), site.gpus
        return sites

    def seen(self) -> Sequence[Seen]:
        """Return all allocations of this cluster, and delete pods that ended long ago."""
        pods = self._with_role("agent")
        try:
            for pod in pods:
                self._check_secret(pod)
            self._forget(pods)
            self._drop_wishes()
        except EngineRefusal as error:  # e.g. the service account lacks a permission
            raise EngineAway(str(error)) from None
        return [self._seen(pod) for pod in pods]

    def _seen(self, pod: KubePod) -> Seen:
        one = seen_of(pod)
        if pod.metadata.uid in self._no_secret:
            return Seen(one.name, one.ref, AllocationState.ENDED, why="its secret was never created")
        return one

    def open(self, allocation: Allocation) -> None:
        """Create the allocation's pod and its secret; a pod of its name that has ended is deleted first."""
        place = self.options.place_of(allocation.owner)
        if place is None:
            raise EngineRefusal(f"tenant {allocation.owner} has no namespace: the file of tenants has no entry for it")
        if not (allocation.image or place.image):
            raise EngineRefusal("there is no image: give image=… to --on kubernetes, or --image to the job")
        authorities = _authorities(allocation.call.arguments)
        name = objects.pod_name(self.cluster, allocation.name)
        secret = f"{name[:52].rstrip('-')}-{secrets.token_hex(5)}"
        wanted = objects.agent_pod(
            allocation, self.options, place, cluster=self.cluster, secret=secret, trusts=bool(authorities)
        )
        made = self._create_pod(wanted, place)
        if made is None:
            return
        owner = {"name": name, "namespace": place.namespace, "uid": made.metadata.uid}
        token = objects.token_secret(owner, secret, allocation.call.token(), authorities)
        self._call("POST", _secrets(place.namespace), token)
        self._has_secret.add(made.metadata.uid)
        log.info("pod created", extra={"allocation": allocation.name, "pod": f"{place.namespace}/{name}"})

    def close(self, ref: str, grace: Seconds) -> None:
        """Delete a pod: Kubernetes sends its agent SIGTERM and kills it some seconds after its jobs had their grace."""
        namespace, name, uid = ref.split("/")
        body = {"gracePeriodSeconds": objects.whole_grace(grace), "preconditions": {"uid": uid}}
        # 404: it has ended; 409: another pod has its name.
        self._call("DELETE", f"{_pods(namespace)}/{name}", body, (_NOT_FOUND, _CONFLICT))

    def ask(self, kinds: Mapping[str, int]) -> None:
        """Keep pods that cannot be scheduled, one for each node that would be of use, for a cluster autoscaler.

        A pod that got its node is deleted, since the node's GPUs are for allocations, and so are all some minutes after
        the last call.
        """
        if not self.options.grow:
            return
        self._asked_at = self.clock()
        try:
            # Of a kind that no node was ever seen to have, neither label nor size is known.
            known = {kind: gpus for kind, gpus in kinds.items() if self._kinds.get(kind, ("", 0))[0]}
            self._keep_wishes({kind: math.ceil(gpus / self._kinds[kind][1]) for kind, gpus in known.items()})
        except (EngineRefusal, EngineAway) as error:
            log.warning("nodes not asked for", extra={"kinds": dict(kinds), "why": str(error)})

    def _drop_wishes(self) -> None:
        """Delete the pods that asked for a node and got it, or whose nodes are not wanted any more."""
        stale = self.clock() > self._asked_at + _WISH_SECONDS
        for pod in self._with_role("wish") if self.options.grow else ():
            if stale or pod.spec.node_name:
                self.close(pod.ref, 0.0)

    def _keep_wishes(self, wanted: Mapping[str, int]) -> None:
        """Keep as many waiting pods as nodes are wanted, by kind."""
        kept: dict[str, int] = {}
        for pod in self._with_role("wish"):
            kind = pod.annotations.get("shoal/kind", "")
            if kept.get(kind, 0) >= wanted.get(kind, 0):
                self.close(pod.ref, 0.0)
            else:
                kept[kind] = kept.get(kind, 0) + 1
        for kind, count in wanted.items():
            for _ in range(count - kept.get(kind, 0)):
                name = f"shoal-{self.cluster}-wish-{secrets.token_hex(5)}"
                body = objects.wish_pod(self.options, self.cluster, name, kind, *self._kinds[kind])
                self._call("POST", _pods(self.options.place.namespace), body)

    def stop(self) -> None:
        """End the watches and the connection; pods stay."""
        self._nodes.close()
        for watch in self._pods:
            watch.close()
        self.api.close()

    def _with_role(self, role: str) -> list[KubePod]:
        pods = [pod for watch in self._pods for pod in _listed(watch)]
        return [pod for pod in pods if (pod.metadata.labels or {}).get(objects.ROLE) == role]

    def _check_secret(self, pod: KubePod) -> None:
        """Find out once whether a pod that an earlier process created, and that has not run yet, has its secret.

        A dry run of its creation shows that: the API server answers 409 if the secret exists.
        """
        uid = pod.metadata.uid
        if uid in self._has_secret or uid in self._no_secret:
            return
        if pod.status.phase == "Pending" and pod.metadata.deletion_timestamp is None:
            owner = {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": uid}
            body = objects.token_secret(owner, pod.annotations.get(objects.SECRET, "x"), "", "")
            path = _secrets(pod.metadata.namespace) + "?dryRun=All"
            if self._call("POST", path, body, (_CONFLICT,)):
                self._no_secret.add(uid)
                return
        self._has_secret.add(uid)

    def _forget(self, pods: Sequence[KubePod]) -> None:
        """Delete pods that ended some minutes ago, and forget those that are gone."""
        now, uids = self.clock(), {pod.metadata.uid for pod in pods}
        self._has_secret &= uids
        self._no_secret &= uids
        self._ended = {uid: at for uid, at in self._ended.items() if uid in uids}
        for pod in pods:
            if pod.ended and now - self._ended.setdefault(pod.metadata.uid, now) > _KEPT_SECONDS:
                self.close(pod.ref, 0.0)

    def _create_pod(self, wanted: objects.Json, place: Place) -> KubePod | None:
        """Create a pod; None if one of its name is open. Replaces one that has ended or has no secret."""
        path, name = _pods(place.namespace), wanted["metadata"]["name"]
        for attempt in range(2):
            try:
                return self.api.call("POST", path, KubePod, body=wanted)
            except ApiRefusal as error:
                if error.status != _CONFLICT or error.reason != "AlreadyExists":
                    raise EngineRefusal(str(error)) from None
            try:
                there = self.api.call("GET", f"{path}/{name}", KubePod)
            except ApiRefusal as error:
                if error.status != _NOT_FOUND:
                    raise EngineRefusal(str(error)) from None
                continue
            if attempt or not (there.ended or there.metadata.uid in self._no_secret):
                break
            self.close(there.ref, 0.0)
        return None

    def _call(self, method: str, path: str, body: objects.Json | None = None, done: Sequence[int] = ()) -> bool:
        """Send a request; return whether it was carried out, False if refused with a status of ``done``."""
        try:
            self.api.call(method, path, msgspec.Raw, body=body)
        except ApiRefusal as error:
            if error.status not in done:
                raise EngineRefusal(str(error)) from None
            return False
        return True


def make_kubernetes(text: str, home: Path) -> KubernetesProvider:
    """Return the provider for ``kubernetes:key=value,…``; its identifier is in a file of the control plane's home."""
    given = read_kubernetes_options(text)
    access = find_access(given.kubeconfig, given.context)
    options = read_kubernetes_options(text, access.namespace)
    api = Api(access)
    if not options.place.image and (access.pod or options.mode == "pilot"):
        options = replace(options, place=replace(options.place, image=own_image(api, access)))
    file = home / "kubernetes" / "id"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(secrets.token_hex(4))
    return KubernetesProvider(api, options, file.read_text().strip(), abilities_of(options))


def own_image(api: Api, access: Access) -> str:
    """Return the image of the pod that this process runs in."""
    hint = "name an image that has Shoal, e.g. image=me/shoal:1"
    if not access.pod:
        raise InputError("provider kubernetes, option image", None, hint)
    try:
        own = api.call("GET", f"{_pods(access.namespace)}/{access.pod}", KubePod)
    except (ApiRefusal, EngineAway) as error:
        raise InputError("provider kubernetes, option image", None, f"{hint}; its own is not known: {error}") from None
    return own.spec.containers[0].image


def abilities_of(options: KubernetesOptions) -> Abilities:
    """Return the abilities of Kubernetes in a mode."""
    native = options.mode == "native"
    return Abilities(sharing=not native, users=native, images=native, scales=options.grow, native=native)


def _listed(watch: ListWatch[T]) -> list[T]:
    """Return a watch's objects; a refusal, such as a missing right, counts as no answer."""
    try:
        return watch.items()
    except ApiRefusal as error:
        raise EngineAway(str(error)) from None


def _authorities(arguments: Sequence[str]) -> str:
    """Return the certificates that an agent is to trust, from the file its arguments name; empty if they name none."""
    if "--cafile" not in arguments:
        return ""
    try:
        return Path(arguments[arguments.index("--cafile") + 1]).read_text()
    except OSError as error:
        raise EngineRefusal(f"the certificate of the control plane cannot be read: {error.strerror}") from None


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"
