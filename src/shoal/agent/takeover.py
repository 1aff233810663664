"""Suspended runs that an earlier agent of the node left, which the next one takes over.

When an agent ends, or is killed, the keepers of its suspended runs wait for another one until their leases end. All
other runs are stopped.
"""

import socket
from dataclasses import dataclass, field
from pathlib import Path

from shoal.agent.handover import KEEPER, connect, peer, server_socket
from shoal.agent.keeper_handle import KeeperHandle, KeeperServerHandle
from shoal.agent.node_run import Key
from shoal.agent.workspace import KeeperRecord, Workspace, log_name
from shoal.wire.messages import RunOrder

_LEASE_SECONDS = 60.0
"""Seconds that a keeper may stay without a renewed lease; it ends earlier by itself if its own lease does."""


@dataclass(frozen=True, slots=True)
class TakenRun:
    """A run that was taken over: its order, its devices and its keeper."""

    order: RunOrder
    devices: tuple[int, ...]
    keeper: KeeperHandle

    @property
    def key(self) -> Key:
        """The job and the incarnation."""
        return self.order.job, self.order.incarnation

    @property
    def logs(self) -> list[str]:
        """The names of its ranks' logs."""
        first, count = self.order.first_rank, self.order.local_ranks
        return [log_name(self.order.incarnation, rank) for rank in range(first, first + count)]


@dataclass(slots=True)
class TakenRuns:
    """The runs that an agent has taken over, and the processes and folders of earlier agents to spare for them."""

    runs: list[TakenRun] = field(default_factory=list)
    handles: list[KeeperServerHandle] = field(default_factory=list)
    servers: set[int] = field(default_factory=set)
    """Process numbers of their keeper servers."""
    keepers: set[int] = field(default_factory=set)
    cgroups: set[str] = field(default_factory=set)
    folders: set[Path] = field(default_factory=set)


NOTHING_TAKEN = TakenRuns()


def take_over(workspace: Workspace, machine: str, now: float) -> TakenRuns:
    """Connect to the keepers that wait for an agent of this node, on this boot of the machine."""
    taken, servers = TakenRuns(), dict[str, KeeperServerHandle | None]()
    for path, record in workspace.records():
        if record is None or record.order is None or record.machine != machine:
            continue
        connection = connect(str(path), KEEPER, socket.SOCK_STREAM)
        if connection is None:
            continue
        if record.boot not in servers:
            servers[record.boot] = _server(workspace, record)
        server = servers[record.boot]
        if server is None:
            connection.close()  # the keeper waits again, until its lease ends
            continue
        taken.keepers.add(peer(connection))
        keeper = KeeperHandle(
            server, now + _LEASE_SECONDS, record.order.grace, record.cgroup, (record.number, connection)
        )
        taken.runs.append(TakenRun(record.order, record.devices, keeper))
        taken.servers.add(record.pid)
        taken.folders.add(path)
        taken.cgroups |= {record.cgroup} if record.cgroup else set()
    taken.handles += [server for server in servers.values() if server is not None]
    return taken


def _server(workspace: Workspace, record: KeeperRecord) -> KeeperServerHandle | None:
    connection = connect(str(workspace.folder), server_socket(record.boot), socket.SOCK_SEQPACKET)
    return None if connection is None else KeeperServerHandle.taken_over(record, connection)
