"""The keeper servers of an agent: its own, and those of earlier agents whose suspended runs it has taken over."""

import logging
import selectors
from collections.abc import Callable, Collection
from functools import partial

from shoal.agent.keeper_handle import KeeperHandle, KeeperServerHandle

_LOG = logging.getLogger("shoal.agent")

Died = Callable[[KeeperServerHandle, int, int], None]
"""Called with a server, the number of one of its keepers that died and left nothing, and the keeper's status."""


class KeeperServers:
    """The servers, whose messages the agent's selector awaits."""

    def __init__(self, boot: str, folder: str, selector: selectors.BaseSelector, on_died: Died) -> None:
        self.own = KeeperServerHandle(boot, folder)
        self._selector, self._on_died = selector, on_died
        self._taken: list[KeeperServerHandle] = []

    def start(self) -> None:
        """Start the agent's own server if there is none."""
        if self.own.pid is None:
            self.own.start()
            self._register(self.own)

    def take(self, server: KeeperServerHandle) -> None:
        """Add the server of an earlier agent."""
        self._taken.append(server)
        self._register(server)

    def drop_unused(self, keepers: Collection[KeeperHandle]) -> None:
        """End the servers of earlier agents that have none of these keepers left."""
        for server in [server for server in self._taken if not any(keeper.forked_by(server) for keeper in keepers)]:
            self._taken.remove(server)
            if server.pid is not None:  # else it has died
                self._selector.unregister(server.fileno())
                server.close()

    def renew(self, lease: float) -> None:
        """Prolong the lease of all keepers to this monotonic time, as the servers enforce it."""
        for server in (self.own, *self._taken):
            server.renew(lease)

    def close(self, *, leave: bool) -> None:
        """Close the connections; wait for the agent's own server, unless it is left with keepers."""
        self.own.close(leave=leave)
        for server in self._taken:
            server.close()

    def _register(self, server: KeeperServerHandle) -> None:
        self._selector.register(server.fileno(), selectors.EVENT_READ, partial(self._read, server))

    def _read(self, server: KeeperServerHandle) -> None:
        """Process a server's reports of keepers that died; if the server itself died, all its keepers have."""
        ended = server.read()
        if ended is None:
            _LOG.error("keeper server died", extra={"pid": server.pid})
            self._selector.unregister(server.fileno())
            server.close()
            return
        for number, status in ended:
            self._on_died(server, number, status)
