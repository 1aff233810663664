"""Wake coroutines from other threads: a thousand waiting agents cost one check each per change, and no thread."""

import asyncio
import threading
from collections.abc import Callable

_GAP_SECONDS = 0.01
"""Time between two checks of all waiting coroutines: changes come in bursts, and one check serves a burst."""


class Notifier:
    """Lets coroutines wait for a condition that any thread may change and then ``notify``."""

    def __init__(self) -> None:
        self.version = 0
        self.closed = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False
        self._checked_at = float("-inf")
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self.on_check: Callable[[], None] = lambda: None
        """Called on the event loop at each check."""

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the checks on this event loop, which must be the running one."""
        with self._lock:
            if self._loop is not loop:
                self._loop, self._due, self._checked_at = loop, False, float("-inf")

    def notify(self) -> None:
        """Report a change; changes within 10 ms cause one check."""
        with self._lock:
            self.version += 1
            if self._due or self._loop is None or self._loop.is_closed():
                return
            self._due = True
            loop = self._loop
        loop.call_soon_threadsafe(self._schedule, loop)

    def close(self) -> None:
        """Wake all waiting coroutines; later waits return at once."""
        self.closed = True
        self.notify()

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``holds()``, checked at each notification; False on time-out or when the notifier closes.

        ``holds`` is called on the event loop and must be quick; an exception it raises is raised here.
        """
        loop = asyncio.get_running_loop()
        self.bind(loop)
        if self.closed or holds():  # after the loop is set: an earlier notification would have been lost
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

    async def changed_since(self, version: int, seconds: float) -> bool:
        """Wait until ``self.version`` exceeds ``version``; False on time-out or when the notifier closes."""
        return await self.until(lambda: self.version > version, seconds)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_at(self._checked_at + _GAP_SECONDS, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._due = False  # before the check: a notification from here on causes another one
        self._checked_at = loop.time()
        self.on_check()
        for woken, holds in list(self._waiting.items()):
            if woken.done():
                continue
            try:
                if self.closed or holds():
                    woken.set_result(None)
            except Exception as error:  # only for the coroutine whose condition failed
                woken.set_exception(error)
