"""Events of nodes that join a running cluster and leave it for good, which ``core.events`` lists among all events."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.topology import Node
from shoal.core.units import Seconds


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node was added to the cluster, or one that was removed came back; it is down until ``NodeReturned``.

    Its index ``node`` is the number of nodes before it; a node that comes back has its former index.
    """

    at: Seconds
    node: int
    name: str
    kind: str
    gpus: int
    rack: str = "r0"
    urgent: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node that is down has left the cluster for good: its GPUs no longer count as installed. It keeps its index."""

    at: Seconds
    node: int
    urgent: ClassVar[bool] = True


def nodes_after(nodes: Sequence[Node], events: Iterable[object]) -> Sequence[Node]:
    """Return the nodes of a cluster after these events, by index: nodes that joined follow the others."""
    for event in events:
        if isinstance(event, NodeJoined) and event.node == len(nodes):
            nodes = (*nodes, Node(event.name, event.kind, event.gpus, event.rack))
    return nodes
