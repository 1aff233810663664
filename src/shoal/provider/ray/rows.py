"""Options of ``ray:key=value,…``, and nodes and actors of Ray as sites and allocations; pure functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from shoal.core.errors import InputError
from shoal.core.spec_text import read_options
from shoal.core.units import Seconds
from shoal.provider.protocol import AllocationState, Seen, Site

_TYPE = "accelerator_type:"
_TYPE_LABEL = "ray.io/accelerator-type"

RECENT: Seconds = 300.0
"""Seconds for which an actor that has ended is reported."""

_OWN_EXIT = ("exit_actor", "INTENDED_USER_EXIT")
"""Parts of Ray's sentence for an actor that ended itself; which one depends on who reported the end first."""

_UNSPECIFIED_END = {"RAY_KILL": "its actor was killed", "NODE_DIED": "Ray lost its node"}


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Options of ``ray:key=value,…``.

    ``address`` is the cluster's, as for ``ray.init``. ``ray_python`` is the interpreter here that has Ray, by default
    the one beside the program ``ray``; ``python`` the nodes' interpreter that has Shoal, by default this one's path. Of
    each node at most ``gpus`` are used (0: all), and only of nodes with the label ``label`` (``key=value``), if given.
    Ray counts ``cpus_per_gpu`` CPUs as used for each GPU.
    """

    address: str = "auto"
    ray_python: str = ""
    python: str = ""
    gpus: int = 0
    label: str = ""
    cpus_per_gpu: int = 0

    def __post_init__(self) -> None:
        for name in ("gpus", "cpus_per_gpu"):
            if getattr(self, name) < 0:
                raise InputError(f"provider ray, option {name}", getattr(self, name), "must not be negative")
        if self.label and "=" not in self.label:
            raise InputError("provider ray, option label", self.label, "write label=KEY=VALUE")


def read_ray_options(text: str) -> RayOptions:
    """Return the options in ``key=value,…``; ``InputError`` names the option that is wrong."""
    types = {option.name: int if option.name in ("gpus", "cpus_per_gpu") else str for option in fields(RayOptions)}
    return RayOptions(**read_options("provider ray", text, types))


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node with GPUs: its site, Ray's present identifier of it, and the address at which others reach it."""

    site: Site
    id: str
    address: str
    accelerator: str = ""
    """Ray's own word for the kind; empty if it has none."""


def host_name(row: Mapping[str, Any]) -> str:
    """Return the name by which a node is known: that of ``ray start --node-name`` if it was given, else the host's."""
    given: str = row["name"]
    return given if given and given != row["address"] else str(row["host"])


def accelerator(resources: Iterable[str], labels: Mapping[str, str]) -> str:
    """Return Ray's word for a node's kind of GPU; empty if it has none."""
    named = (name.removeprefix(_TYPE) for name in sorted(resources) if name.startswith(_TYPE))
    return labels.get(_TYPE_LABEL) or next(named, "")


def read_nodes(
    rows: Iterable[Mapping[str, Any]], options: RayOptions, known: Mapping[str, RayNode]
) -> dict[str, RayNode]:
    """Return by host name the nodes with GPUs: those that Ray has, and those of ``known`` that it has lost.

    A host that returns has another identifier. Of several raylets on one host the first is used.
    """
    found: dict[str, RayNode] = {}
    lost: dict[str, str] = {}
    key, _, value = options.label.partition("=")
    for row in sorted(rows, key=lambda row: (host_name(row), row["id"])):
        name, gpus = host_name(row), int(row["resources"].get("GPU", 0))
        if not row["alive"]:
            lost[name] = row["why"]
        elif gpus and name not in found and (not key or row["labels"].get(key) == value):
            word = accelerator(row["resources"], row["labels"])
            state, why = ("draining", "Ray drains it") if row["draining"] else ("up", "")
            most = min(gpus, options.gpus or gpus)
            site = Site(name, word.lower() or "gpu", most, state=state, why=why)  # type: ignore[arg-type]
            found[name] = RayNode(site, row["id"], row["address"], word)
    for name, node in known.items():
        if name not in found:
            why = lost.get(name) or "Ray has lost it"
            found[name] = RayNode(Site(name, node.site.kind, node.site.gpus, state="down", why=why), "", node.address)
    return found


def read_actor(row: Mapping[str, Any], free: Mapping[str, float], now: Seconds) -> Seen | None:
    """Return an actor as an allocation; None for one that ended long ago. ``now`` is in seconds since 1970."""
    name, ref, state = row["name"], row["id"], row["state"]
    if state == "DEAD":
        if now > row["ended"] + RECENT:
            return None
        word, _, sentence = row["why"].partition(" ")
        # The agent of an actor that was killed lets its jobs save.
        over = word not in _UNSPECIFIED_END and any(part in sentence for part in _OWN_EXIT)
        why = "its agent has ended" if over else _UNSPECIFIED_END.get(word, sentence or word)
        return Seen(name, ref, AllocationState.ENDED if over else AllocationState.LOST, why=why)
    if state == "ALIVE" and row["status"] in ("", "started"):
        return Seen(name, ref, AllocationState.UP)
    if state == "ALIVE":
        why = "an earlier agent of the node has not ended" if row["status"] == "busy" else "starts"
    else:
        wanted, left = int(row["resources"].get("GPU", 0)), int(free.get(row["node"], 0))
        why = f"{left} of the {wanted} GPUs are free" if left < wanted else "Ray starts a worker"
    return Seen(name, ref, AllocationState.WAITING, why=why)


def bundles(kinds: Mapping[str, int], nodes: Iterable[RayNode]) -> list[dict[str, float]]:
    """Return the bundles of resources that fit a cluster with these nodes and this many more GPUs of each kind.

    Ray's autoscaler takes a request for the size of the whole cluster.
    """
    made: list[dict[str, float]] = []
    words: dict[str, str] = {}
    for node in nodes:
        words[node.site.kind] = node.accelerator
        if node.id and any(kinds.values()):
            made.append({"GPU": float(node.site.gpus), **_typed(node.accelerator)})
    for kind, count in sorted(kinds.items()):
        word = words.get(kind, "" if kind == "gpu" else kind.upper())
        made += [{"GPU": 1.0, **_typed(word)}] * count
    return made


def _typed(word: str) -> dict[str, float]:
    return {_TYPE + word: 0.001} if word else {}
