"""The port at which the ranks of a run meet. Rank 0 listens on it seconds after it was chosen: its script loads first.

The kernel takes ports of outgoing connections from a range; a port outside of it stays free meanwhile, however many
connections the node's processes open.
"""

import os
import socket
from pathlib import Path

from shoal.agent.node_run import Key

_FIRST, _LAST = 20_000, 29_999
_TRIES = 200
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


class RankPorts:
    """The ports of runs whose ranks have not started: one after the other, so that none is chosen again soon."""

    def __init__(self, outgoing: Path = _OUTGOING) -> None:
        self._ports = _candidates(outgoing)
        self._last = int.from_bytes(os.urandom(4), "big")  # agents on one machine begin anywhere
        self._bound: dict[Key, socket.socket] = {}

    def reserve(self, run: Key) -> int:
        """Return a free port for a run; it stays bound until ``release``."""
        self._bound[run] = bound = self._free()
        port: int = bound.getsockname()[1]
        return port

    def release(self, run: Key) -> None:
        """Let the ranks of a run listen on its port, if it has one."""
        if run in self._bound:
            self._bound.pop(run).close()

    def _free(self) -> socket.socket:
        for _ in range(min(_TRIES, len(self._ports))):
            self._last += 1
            bound = socket.socket()
            try:
                bound.bind(("", self._ports[self._last % len(self._ports)]))
            except OSError:
                bound.close()
            else:
                return bound
        bound = socket.socket()
        bound.bind(("", 0))
        return bound


def _candidates(outgoing: Path) -> list[int]:
    """Return the ports to choose from; none where the kernel does not say which outgoing connections may get."""
    try:
        low, high = map(int, outgoing.read_text().split())
    except (OSError, ValueError):
        return []
    return [port for port in range(_FIRST, _LAST + 1) if not low <= port <= high]
