"""Fields of the Kubernetes objects that Shoal writes, by a table of our own: names, types and which are required.

A dict is an object with these fields (``!`` marks a required one, ``*`` stands for any name), a list holds one type, a
tuple lists the values a string may have. The table is narrower than Kubernetes' schema: what Shoal does not use is left
out, so that a misspelt or new field is found.
"""

from typing import Any

TEXTS = {"*": str}
OWNER = {"apiVersion!": str, "kind!": str, "name!": str, "uid!": str}
METADATA = {"name!": str, "namespace": str, "labels": TEXTS, "annotations": TEXTS, "ownerReferences": [OWNER]}
REQUIREMENT = {"key!": str, "operator!": ("In", "NotIn", "Exists", "DoesNotExist"), "values": [str]}
TERMS = {"nodeSelectorTerms!": [{"matchFields": [REQUIREMENT], "matchExpressions": [REQUIREMENT]}]}
TOLERATION = {
    "key": str, "operator": ("Exists", "Equal"), "value": str,
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
}  # fmt: skip
PROBE = {"httpGet": {"path": str, "port!": (int, str), "scheme": ("HTTP", "HTTPS")}, "periodSeconds": int}
SECURITY = {
    "runAsUser": int, "runAsGroup": int, "runAsNonRoot": bool, "allowPrivilegeEscalation": bool,
    "readOnlyRootFilesystem": bool, "capabilities": {"drop": [str]}, "seccompProfile": {"type!": ("RuntimeDefault",)},
}  # fmt: skip
ENV = {"name!": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath!": ("status.podIP", "metadata.name")}}}
CONTAINER = {
    "name!": str, "image!": str, "command": [str], "args": [str], "env": [ENV],
    "ports": [{"name": str, "containerPort!": int}], "resources": {"limits": TEXTS, "requests": TEXTS},
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}], "securityContext": SECURITY,
    "readinessProbe": PROBE, "imagePullPolicy": ("IfNotPresent", "Always", "Never"),
}  # fmt: skip
VOLUME = {
    "name!": str, "secret": {"secretName!": str, "defaultMode": int}, "emptyDir": {"medium": ("Memory",)},
    "persistentVolumeClaim": {"claimName!": str}, "configMap": {"name!": str},
}  # fmt: skip
POD_SPEC = {
    "containers!": [CONTAINER], "volumes": [VOLUME], "restartPolicy": ("Never", "Always"), "enableServiceLinks": bool,
    "automountServiceAccountToken": bool, "serviceAccountName": str, "priorityClassName": str,
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}},
    "tolerations": [TOLERATION], "terminationGracePeriodSeconds": int, "activeDeadlineSeconds": int,
    "securityContext": {"runAsUser": int, "runAsGroup": int, "fsGroup": int, "runAsNonRoot": bool,
                        "seccompProfile": {"type!": ("RuntimeDefault",)}},
}  # fmt: skip
RULE = {"apiGroups!": [str], "resources!": [str], "verbs!": [str]}
SUBJECT = {"kind!": ("ServiceAccount",), "name!": str, "namespace": str}
ROLE_REF = {"apiGroup!": ("rbac.authorization.k8s.io",), "kind!": ("Role", "ClusterRole"), "name!": str}
BINDING = {"subjects": [SUBJECT], "roleRef!": ROLE_REF}
RBAC = "rbac.authorization.k8s.io/v1"

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Pod": ("v1", {"spec!": POD_SPEC}),
    "Secret": ("v1", {"stringData": TEXTS, "immutable": bool, "type": str}),
    "Namespace": ("v1", {}),
    "ConfigMap": ("v1", {"data": TEXTS}),
    "ServiceAccount": ("v1", {"automountServiceAccountToken": bool}),
    "Service": ("v1", {"spec!": {"selector": TEXTS, "ports": [{"name": str, "port!": int, "targetPort": (int, str)}]}}),
    "PersistentVolumeClaim": (
        "v1",
        {"spec!": {"accessModes": [str], "storageClassName": str, "resources": {"requests": TEXTS}}},
    ),
    "Role": (RBAC, {"rules": [RULE]}),
    "ClusterRole": (RBAC, {"rules": [RULE]}),
    "RoleBinding": (RBAC, BINDING),
    "ClusterRoleBinding": (RBAC, BINDING),
    "Deployment": (
        "apps/v1",
        {
            "spec!": {
                "replicas": int,
                "strategy": {"type": ("Recreate", "RollingUpdate")},
                "selector!": {"matchLabels": TEXTS},
                "template!": {"metadata": {"labels": TEXTS}, "spec!": POD_SPEC},
            }
        },
    ),
}
"""By kind: its API version and its fields beside apiVersion, kind and metadata."""

RESOURCES = {"pods": "Pod", "secrets": "Secret"}


def problems(resource: str, body: dict[str, Any]) -> list[str]:
    """Return what is wrong with an object of a kind or resource of the table; empty for others."""
    kind = RESOURCES.get(resource, resource)
    if kind not in KINDS:
        return []
    version, fields = KINDS[kind]
    whole = {"apiVersion!": (version,), "kind!": (kind,), "metadata!": METADATA, **fields}
    return _problems("", whole, body)


def _problems(path: str, wanted: Any, value: Any) -> list[str]:
    if isinstance(wanted, dict):
        return _object_problems(path, wanted, value)
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{path}: must be a list"]
        return [found for index, one in enumerate(value) for found in _problems(f"{path}[{index}]", wanted[0], one)]
    if isinstance(wanted, tuple):
        types = tuple(one for one in wanted if isinstance(one, type))
        good = (types and isinstance(value, types)) or value in wanted
        return [] if good else [f"{path}: Unsupported value: {value!r}"]
    good = isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
    return [] if good else [f"{path}: must be {wanted.__name__}, is {value!r}"]


def _object_problems(path: str, wanted: dict[str, Any], value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: must be an object"]
    fields = {name.removesuffix("!"): one for name, one in wanted.items()}
    unknown = [name for name in value if name not in fields and "*" not in fields]
    found = [f"{path}.{name}".lstrip(".") + ": unknown field" for name in unknown]
    for name, one in wanted.items():
        plain = name.removesuffix("!")
        at = f"{path}.{plain}".lstrip(".")
        if plain == "*":
            found += [part for key, each in value.items() for part in _problems(f"{path}.{key}", one, each)]
        elif plain in value:
            found += _problems(at, one, value[plain])
        elif name.endswith("!"):
            found.append(f"{at}: Required value")
    return found
