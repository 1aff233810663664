"""A limit on the CPU seconds of a call: a second thread interrupts it by raising ``TooSlow`` in its thread.

Python code and loops over numpy calls are interrupted at their next step; one call into C that never returns is not.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from shoal.engine.guard import TooSlow

_T = TypeVar("_T")

_INTERVAL = 0.25
"""Seconds between two checks of the CPU time of a call."""

_DELIVERY = 1000
"""Milliseconds to wait for an interruption that was raised just as the call ended."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """A call: its thread, the CPU time at which it is interrupted, and a token that its end or interruption takes."""

    thread: int
    clock: int
    until: float
    token: list[None]

    def take(self) -> bool:
        """Take the token; return whether it was there. Two threads cannot both take it."""
        try:
            self.token.pop()
        except IndexError:
            return False
        return True


@dataclass(slots=True)
class CpuLimit:
    """Interrupts calls by the CPU time of their thread; one call at a time."""

    _watched: _Watched | None = None
    _watcher: threading.Thread | None = None
    _closed: threading.Event = field(default_factory=threading.Event)

    def run(self, call: Callable[[], _T], seconds: float) -> tuple[_T, float]:
        """Return the call's result and the CPU seconds it took; raise ``TooSlow`` after this many."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="decision-limit", daemon=True)
            self._watcher.start()
        thread = threading.get_ident()
        begin = time.thread_time()
        watched = _Watched(thread, time.pthread_getcpuclockid(thread), begin + seconds, [None])
        self._watched = watched
        delivered = False
        try:
            return call(), time.thread_time() - begin
        except TooSlow:
            delivered = True
            raise
        finally:
            self._watched = None
            if not delivered and not watched.take():
                for _ in range(_DELIVERY):  # the interruption is on its way: it arrives here and nowhere later
                    time.sleep(0.001)
                raise TooSlow

    def close(self) -> None:
        """End the second thread."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            watched = self._watched
            if watched is not None and time.clock_gettime(watched.clock) >= watched.until and watched.take():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watched.thread), ctypes.py_object(TooSlow))
