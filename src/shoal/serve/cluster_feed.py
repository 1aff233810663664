"""Server-sent events with the cluster's summary, computed at most four times a second for all listeners together."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.notifier import Notifier

_GAP_SECONDS = 0.25
_HEARTBEAT_SECONDS = 15.0


@dataclass(slots=True)
class ClusterFeed:
    """The latest encoded ``ClusterRow``, shared by all listeners."""

    control_plane: ControlPlaneAPI
    notifier: Notifier
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _version: int = -1
    _computed_at: float = float("-inf")
    _row: bytes = b""

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the summary now and at each change, a comment every 15 s without one; ends when the notifier closes."""
        while not self.notifier.closed:
            seen, row = await self._latest()
            yield b"event: changed\ndata: " + row + b"\n\n"
            while not await self.notifier.changed_since(seen, _HEARTBEAT_SECONDS) and not self.notifier.closed:
                yield b": still here\n\n"

    async def _latest(self) -> tuple[int, bytes]:
        """Return a summary no older than this call, or unchanged since, and the notifier's version it belongs to."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._lock:
            if self._version != self.notifier.version and self._computed_at < asked:
                await asyncio.sleep(max(0.0, self._computed_at + _GAP_SECONDS - asked))
                version = self.notifier.version
                self._row = await asyncio.to_thread(lambda: msgspec.json.encode(self.control_plane.cluster()))
                self._version, self._computed_at = version, loop.time()
            return self._version, self._row
