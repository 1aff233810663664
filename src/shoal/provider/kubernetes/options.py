"""Options of ``kubernetes:key=value,…`` and of its file of tenants."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from shoal.core.errors import InputError, nearest
from shoal.core.spec_text import read_options

MODES = ("native", "pilot")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SELECTOR = re.compile(r"[A-Za-z0-9./_-]+(!?=[A-Za-z0-9._-]*)?")
_OWNER = "provider kubernetes"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A taint that pods tolerate; an empty ``value`` or ``effect`` stands for any."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how a tenant's pods run; every name is one of the namespace. ``volumes``: claims by mount path.

    Pods with GPUs always tolerate the taint by which others are kept off nodes with GPUs.
    """

    namespace: str = ""
    image: str = ""
    service_account: str = ""
    priority_class: str = ""
    tolerations: tuple[Toleration, ...] = (Toleration("nvidia.com/gpu"),)
    volumes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """How Shoal uses a Kubernetes cluster; ``place`` holds in pilot mode and for what a tenant's entry leaves out."""

    mode: str = "native"
    place: Place = Place()
    selector: str = ""
    """Label selector of the nodes to use; empty for all with GPUs."""
    tenants: Mapping[str, Place] | None = None
    """Where each tenant's pods run in native mode; None if all share ``place``."""
    server: str = ""
    """URL at which pods reach the control plane, if it is not the one it listens at."""
    home: str = ""
    """Folder of agents on a volume, so that jobs find their files on other nodes; empty for one of each pod's own."""
    python: str = "python3"
    cpus_per_gpu: int = 0
    mem_per_gpu: str = ""
    grow: bool = False
    """Whether pods that cannot be scheduled make a cluster autoscaler add nodes."""
    kubeconfig: str = ""
    context: str = ""

    def place_of(self, tenant: str | None) -> Place | None:
        """Return where a tenant's pods run, None for a tenant without an entry; for no tenant, the provider's place."""
        if tenant is None or self.tenants is None:
            return self.place
        return self.tenants.get(tenant)

    @property
    def namespaces(self) -> list[str]:
        """All namespaces in which Shoal may create pods."""
        places = (self.place,) if self.tenants is None else (self.place, *self.tenants.values())
        return sorted({place.namespace for place in places})


_TEXTS = ("mode", "selector", "server", "home", "python", "mem_per_gpu", "kubeconfig", "context")
_PLACE = tuple(one.name for one in fields(Place))


def read_kubernetes_options(text: str, namespace: str = "default") -> KubernetesOptions:
    """Return the options in ``key=value,…``; ``namespace`` is the one to use where none is given.

    Parts of ``selector``, ``tolerations`` and ``volumes`` are separated by ``+``. ``InputError`` names what is wrong.
    """
    types: dict[str, type] = {**dict.fromkeys((*_TEXTS, *_PLACE, "tenants"), str), "cpus_per_gpu": int, "grow": bool}
    given = read_options(_OWNER, text, types)
    if given.get("mode", "native") not in MODES:
        raise InputError(f"{_OWNER}, option mode", given["mode"], f"choose one of {', '.join(MODES)}")
    for part in filter(None, given.get("selector", "").split("+")):
        if not _SELECTOR.fullmatch(part):
            raise InputError(f"{_OWNER}, option selector", part, "write label=value, several with + between them")
    if not re.fullmatch(r"(\d+[A-Za-z]*)?", given.get("mem_per_gpu", "")):
        raise InputError(f"{_OWNER}, option mem_per_gpu", given["mem_per_gpu"], "write a quantity such as 64Gi")
    written = {key: given.pop(key) for key in _PLACE if key in given}
    written["tolerations"] = written.get("tolerations", "").split("+") if written.get("tolerations") else []
    written["volumes"] = dict(_volume(part) for part in filter(None, written.get("volumes", "").split("+")))
    place = _read_place(f"{_OWNER}, option", {"namespace": namespace, **written}, Place())
    file = given.pop("tenants", "")
    selector = ",".join(filter(None, given.pop("selector", "").split("+")))
    tenants = _read_tenants(Path(file), place) if file else None
    return KubernetesOptions(place=place, selector=selector, tenants=tenants, **given)


def _volume(part: str) -> tuple[str, str]:
    claim, colon, path = part.partition(":")
    if not colon:
        raise InputError(f"{_OWNER}, option volumes", part, "write claim:/path, several with + between them")
    return path, claim


def _read_tenants(file: Path, default: Place) -> dict[str, Place]:
    """Return the places of a YAML file ``tenant: {namespace: …}``; what an entry leaves out is as in ``default``."""
    try:
        read = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not YAML"
        raise InputError(f"{_OWNER}, option tenants", str(file), f"cannot be read: {reason}") from None
    if not isinstance(read, dict):
        raise InputError(f"{_OWNER}, option tenants", str(file), "must have lines such as `ann: {namespace: team-a}`")
    found = {}
    for tenant, entry in read.items():
        where = f"{file}, tenant {tenant},"
        if not isinstance(entry, dict) or "namespace" not in entry:
            raise InputError(where + " entry", entry, "must name its namespace, e.g. {namespace: team-a}")
        found[str(tenant)] = _read_place(where, entry, default)
    return found


def _read_place(where: str, entry: Mapping[str, Any], default: Place) -> Place:
    changes: dict[str, Any] = {}
    for key, value in entry.items():
        field_name = f"{where} {key}"
        if key not in _PLACE:
            raise InputError(where + " key", key, nearest(str(key), _PLACE))
        if key == "tolerations":
            read = tuple(_toleration(field_name, part) for part in _listed(field_name, value))
            changes[key] = (*Place().tolerations, *read)
        elif key == "volumes":
            changes[key] = _volumes(field_name, value)
        elif not isinstance(value, str) or (key != "image" and not _LABEL.fullmatch(value)):
            raise InputError(field_name, value, "must be a name of lower-case letters, digits and -, as in Kubernetes")
        else:
            changes[key] = value
    return replace(default, **changes)


def _listed(field_name: str, value: object) -> Collection[object]:
    if not isinstance(value, list):
        raise InputError(field_name, value, "must be a list")
    return value


def _volumes(field_name: str, value: object) -> dict[str, str]:
    """Return the claims by mount path."""
    if not isinstance(value, dict):
        raise InputError(field_name, value, "must map paths to names of volume claims, e.g. {/data: data}")
    for path, claim in value.items():
        if not str(path).startswith("/") or not _LABEL.fullmatch(str(claim)):
            raise InputError(field_name, f"{claim}:{path}", "must be the name of a volume claim and an absolute path")
    return {str(path): str(claim) for path, claim in value.items()}


def _toleration(field_name: str, part: object) -> Toleration:
    """Return the toleration in ``key[=value][:effect]``."""
    read = re.fullmatch(r"([^=:]+)(?:=([^:]*))?(?::(\w+))?", str(part))
    if read is None or (read[3] and read[3] not in _EFFECTS):
        hint = f"write key, key=value or key:EFFECT; an effect is one of {', '.join(_EFFECTS)}"
        raise InputError(field_name, part, hint)
    return Toleration(read[1], read[2] or "", read[3] or "")
