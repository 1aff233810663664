"""The objects that Shoal creates in Kubernetes, as JSON values; pure functions."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.units import Seconds
from shoal.provider.kubernetes.options import KubernetesOptions, Place
from shoal.provider.protocol import Allocation

GPU = "nvidia.com/gpu"
"""The resource that NVIDIA's device plugin offers."""

PRODUCT = "nvidia.com/gpu.product"
"""The label in which NVIDIA's feature discovery names a node's GPUs."""

CLUSTER, ROLE, ALLOCATION, SECRET = "shoal/cluster", "shoal/role", "shoal/allocation", "shoal/secret"
"""Labels with the identifier of a Shoal cluster and of what a pod is for; annotations with an allocation's name and
the name of its secret."""

TOKEN_FOLDER = "/run/shoal"
_SHM = "/dev/shm"
_OWN_HOME = "/var/lib/shoal"
"""Where an agent without a folder on a volume keeps its files: an empty folder that ends with the pod."""
_ENDING_SECONDS = 5

Json = dict[str, Any]


def pod_name(cluster: str, allocation: str) -> str:
    """Return the name of an allocation's pod: always the same, valid in Kubernetes, and unique by a hash."""
    readable = re.sub(r"[^a-z0-9]+", "-", allocation.lower()).strip("-")[:32].rstrip("-")
    return f"shoal-{cluster}-{readable}-{hashlib.sha256(allocation.encode()).hexdigest()[:8]}"


def agent_pod(
    allocation: Allocation, options: KubernetesOptions, place: Place, *, cluster: str, secret: str, trusts: bool
) -> Json:
    """Return the pod of an allocation: required affinity to its node, and the agent as its one process.

    The token, and with ``trusts`` the certificates to trust, are in the files of ``secret``. Unlike ``nodeName``,
    required affinity has the scheduler account for the GPUs. Without an owner the agent is root in its container, and
    only root reads its token. With an owner any user of the image reads the token, which opens no orders but those of
    its own run.
    """
    name = pod_name(cluster, allocation.name)
    marks = {CLUSTER: cluster, ROLE: "agent", "app.kubernetes.io/managed-by": "shoal"}
    noted = {ALLOCATION: allocation.name, SECRET: secret}
    noted |= {"shoal/tenant": allocation.owner} if allocation.owner else {}
    noted |= {"shoal/account": allocation.account} if allocation.account else {}
    spec = _pod_spec(place, _on_node(allocation.node))
    spec["containers"] = [_agent_container(allocation, options, place, trusts)]
    spec["terminationGracePeriodSeconds"] = whole_grace(allocation.grace)
    spec["volumes"] = [
        {"name": "token", "secret": {"secretName": secret, "defaultMode": 0o444 if allocation.owner else 0o400}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        *([] if options.home else [{"name": "home", "emptyDir": {}}]),
        *(
            {"name": f"volume-{index}", "persistentVolumeClaim": {"claimName": claim}}
            for index, claim in enumerate(place.volumes.values())
        ),
    ]
    if allocation.limit is not None:
        spec["activeDeadlineSeconds"] = math.ceil(allocation.limit)
    return _pod({"name": name, "namespace": place.namespace, "labels": marks, "annotations": noted}, spec)


def whole_grace(grace: Seconds) -> int:
    """Return the grace of a pod in whole seconds: that of its run, and time for the agent to end after it."""
    return math.ceil(grace) + _ENDING_SECONDS if grace > 0 else 0


def _pod(metadata: Json, spec: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _pod_spec(place: Place, affinity: Json) -> Json:
    """Return the part of the specification that all pods of a place share.

    The service account's own token is mounted only where an account was chosen for the tenant.
    """
    spec: Json = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(place.service_account),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}},
        "tolerations": [_toleration(one.key, one.value, one.effect) for one in place.tolerations],
    }
    if place.service_account:
        spec["serviceAccountName"] = place.service_account
    if place.priority_class:
        spec["priorityClassName"] = place.priority_class
    return spec


def _toleration(key: str, value: str, effect: str) -> Json:
    found = {"key": key, "operator": "Equal" if value else "Exists"}
    return {**found, **({"value": value} if value else {}), **({"effect": effect} if effect else {})}


def _on_node(node: str) -> Json:
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}


def _agent_container(allocation: Allocation, options: KubernetesOptions, place: Place, trusts: bool) -> Json:
    mounts = [
        {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
        {"name": "shm", "mountPath": _SHM},
        *([] if options.home else [{"name": "home", "mountPath": _OWN_HOME}]),
        *({"name": f"volume-{index}", "mountPath": path} for index, path in enumerate(place.volumes)),
    ]
    changes = {"--server": options.server, "--cafile": f"{TOKEN_FOLDER}/ca.crt" * trusts}
    changes["--home"] = options.home or _OWN_HOME
    # Kubernetes replaces $(NAME) in arguments, and $$( by $(.
    words = [word.replace("$(", "$$(") for word in _changed(allocation.call.arguments, changes)]
    user = {} if allocation.owner else {"securityContext": {"runAsUser": 0}}
    return {
        **user,
        "name": "agent",
        "image": allocation.image or place.image,
        "command": [options.python, "-P", "-m", "shoal.agent"],
        "args": [*words, "--token-file", f"{TOKEN_FOLDER}/token", "--address", "$(SHOAL_POD_ADDRESS)"],
        "env": [{"name": "SHOAL_POD_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": _resources(allocation, options),
        "volumeMounts": mounts,
    }


def _changed(words: Sequence[str], changes: Mapping[str, str]) -> list[str]:
    """Return the arguments with the options in ``changes`` set to those values, where they are not empty."""
    return [changes.get(before, "") or word for before, word in zip(("", *words), words, strict=False)]


def _resources(allocation: Allocation, options: KubernetesOptions) -> Json:
    cpus = allocation.cpus or options.cpus_per_gpu * allocation.gpus
    asked = {"cpu": str(cpus)} if cpus else {}
    if allocation.memory:
        asked["memory"] = str(allocation.memory)
    elif options.mem_per_gpu:
        number, unit = re.fullmatch(r"(\d+)(\w*)", options.mem_per_gpu).groups()  # type: ignore[union-attr]
        asked["memory"] = f"{int(number) * allocation.gpus}{unit}"
    limits = {GPU: str(allocation.gpus), **({"memory": asked["memory"]} if "memory" in asked else {})}
    return {"limits": limits, **({"requests": asked} if asked else {})}


def token_secret(pod: Mapping[str, str], secret: str, token: str, authorities: str) -> Json:
    """Return the secret with an agent's token; the pod with this ``name``, ``namespace`` and ``uid`` owns it.

    Kubernetes deletes it with that pod.
    """
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    data = {"token": f"{token}\n", **({"ca.crt": authorities} if authorities else {})}
    metadata = {"name": secret, "namespace": pod["namespace"], "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "stringData": data}


def wish_pod(options: KubernetesOptions, cluster: str, name: str, kind: str, product: str, gpus: int) -> Json:
    """Return a pod that asks for a node with GPUs of a kind, so that a cluster autoscaler adds one.

    It sleeps until Shoal deletes it, which it does as soon as the pod has a node.
    """
    terms: list[Json] = [{"key": PRODUCT, "operator": "In", "values": [product]}]
    for part in filter(None, options.selector.split(",")):
        key, equals, value = part.partition("=")
        negated, key = key.endswith("!"), key.removesuffix("!")
        operator = ("NotIn" if negated else "In") if equals else "Exists"
        terms.append({"key": key, "operator": operator, **({"values": [value]} if equals else {})})
    affinity = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    spec = _pod_spec(options.place, affinity)
    spec["terminationGracePeriodSeconds"] = 0
    spec["containers"] = [
        {
            "name": "wish",
            "image": options.place.image,
            "command": ["sleep", "3600"],
            "resources": {"limits": {GPU: str(gpus)}},
        }
    ]
    marks = {CLUSTER: cluster, ROLE: "wish", "app.kubernetes.io/managed-by": "shoal"}
    noted = {"shoal/kind": kind}
    return _pod({"name": name, "namespace": options.place.namespace, "labels": marks, "annotations": noted}, spec)
