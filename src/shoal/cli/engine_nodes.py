"""The cluster that `shoal serve --on ENGINE` begins with: the nodes that the engine has."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.output import warn
from shoal.core.errors import InputError

if TYPE_CHECKING:
    from shoal.core.topology import Topology
    from shoal.provider.protocol import Provider

_LOOK_SECONDS = 2.0
"""Seconds between two queries of an engine that has no nodes yet."""


def engine_cluster(
    on: str | None, cluster: str | None, provider: "Provider", home: Path, stopped: Callable[[float], bool]
) -> "str | Topology | None":
    """Return the cluster of `serve`: as declared, or the nodes that the engine has now. None if stopped meanwhile.

    ``stopped`` waits for some seconds and returns whether the command was stopped.
    """
    if cluster is not None and on is not None:
        raise InputError("cluster", cluster, f"the nodes are those of {on}: leave it out")
    if cluster is not None:
        return cluster
    if on is None:
        raise InputError("cluster", None, "declare the nodes with --cluster, or name an engine with --on")
    return _surveyed(on, provider, home, stopped)


def _surveyed(on: str, provider: "Provider", home: Path, stopped: Callable[[float], bool]) -> "Topology | None":
    """Return the nodes that the engine reports; those of the home's journal while the engine does not answer.

    Without a journal, wait until the engine answers. None if stopped meanwhile.
    """
    from shoal.core.topology import topology_of
    from shoal.live.engine_allocations import sites_as_nodes
    from shoal.live.home import known_cluster
    from shoal.provider.protocol import EngineAway

    said = ""
    while True:
        try:
            nodes = sites_as_nodes([site for site in provider.survey() if site.state != "asleep"])
        except EngineAway as error:
            known, why = known_cluster(home), f"does not answer: {error}"
            if known is not None:
                warn(f"{on} {why}; beginning with the nodes that the journal names")
                return known
        else:
            if nodes:
                return topology_of(nodes, {})
            why = "has no node with GPUs that is awake now"
        if not said:
            said = f"{on} {why}; waiting for it"
            warn(said)
        if stopped(_LOOK_SECONDS):
            return None
