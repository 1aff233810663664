"""What listeners are told: the cluster in one look, made at most four times a second however many of them there are."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.notifier import Notifier

_GAP = 0.25
_HEARTBEAT = 15.0


@dataclass(slots=True)
class ClusterFeed:
    """The latest look at the cluster, shared by all who listen."""

    desk: ControlPlaneAPI
    bell: Notifier
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rings: int = -1
    _made: float = float("-inf")
    _row: bytes = b""

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events: how it is now, then each change; a comment where none comes. Ends with the bell."""
        while not self.bell.closed:
            seen, row = await self._latest()
            yield b"event: changed\ndata: " + row + b"\n\n"
            while not await self.bell.rung(seen, _HEARTBEAT) and not self.bell.closed:
                yield b": still here\n\n"

    async def _latest(self) -> tuple[int, bytes]:
        """A look made after this was asked for, or before but with no change since; and the ring it goes with."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._lock:
            if self._rings != self.bell.rings and self._made < asked:
                await asyncio.sleep(max(0.0, self._made + _GAP - asked))
                rings = self.bell.rings
                self._row = await asyncio.to_thread(lambda: msgspec.json.encode(self.desk.cluster()))
                self._rings, self._made = rings, loop.time()
            return self._rings, self._row
