"""Waking coroutines from other threads: a thousand waiting agents cost one look each, no thread and no task switch."""

import asyncio
import threading
from collections.abc import Callable

_QUIET = 0.01
"""Seconds between two looks at all that wait: news comes in bursts, and a burst is answered once."""


class Notifier:
    """Anyone rings, from any thread; whoever waits on the event loop is woken when what it waits for holds."""

    def __init__(self) -> None:
        self.rings = 0
        self.closed = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False
        self._looked = float("-inf")
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def ring(self) -> None:
        """Say that something changed; rings that come close together are heard as one."""
        with self._lock:
            self.rings += 1
            if self._due or self._loop is None or self._loop.is_closed():
                return
            self._due = True
            loop = self._loop
        loop.call_soon_threadsafe(self._heard, loop)

    def close(self) -> None:
        """Wake everybody and let nobody wait any more."""
        self.closed = True
        self.ring()

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until it holds, looking each time the bell rings; False when the time is over or the bell closed.

        ``holds`` is called on the event loop and must be quick; what it raises is raised here.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._loop is not loop:
                self._loop, self._due, self._looked = loop, False, float("-inf")
        if self.closed or holds():  # only now: a ring before the loop was known would have been lost
            return not self.closed
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting[woken] = holds
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            return False
        finally:
            del self._waiting[woken]
        return not self.closed

    async def rung(self, seen: int, seconds: float) -> bool:
        """Wait until it has rung more than ``seen`` times; False when the time is over or the bell closed."""
        return await self.until(lambda: self.rings > seen, seconds)

    def _heard(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_at(self._looked + _QUIET, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._due = False  # before looking: what rings from here on is looked at again
        self._looked = loop.time()
        for woken, holds in list(self._waiting.items()):
            if woken.done():
                continue
            try:
                if self.closed or holds():
                    woken.set_result(None)
            except Exception as error:  # the one who waits hears of it, not the others
                woken.set_exception(error)
