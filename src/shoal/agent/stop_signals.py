"""The signals that end an agent, counted: the first lets its jobs save, a second kills them.

SIGHUP restarts an agent: it ends, and leaves its suspended runs to the node's next agent.
"""

import os
import signal
import time
from dataclasses import dataclass
from math import inf

from shoal.agent.run_process import die_with_parent

_TOGETHER_SECONDS = 5.0
"""Seconds within which further SIGTERMs count as one: engines send it to a job and again to its processes."""


@dataclass(slots=True)
class StopSignals:
    """SIGTERM, SIGINT and SIGHUP to this process; SIGINT always counts, as a person may send it twice."""

    count: int = 0
    restarts: bool = False
    """Whether the only signal was SIGHUP."""
    _last: float = -inf

    def listen(self, waker: int, parent: int | None) -> None:
        """Count signals from now on, also the end of the process ``parent``; each writes a byte to ``waker``."""
        # Python runs the handler between two bytecodes; the byte on this socket wakes the selector for it.
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._receive)
        if parent is not None:
            die_with_parent(signal.SIGTERM)
            if os.getppid() != parent:  # it died before the call above
                self.count += 1

    def _receive(self, number: int, _: object) -> None:
        now = time.monotonic()
        self.restarts = number == signal.SIGHUP and not self.count
        if number == signal.SIGINT or now >= self._last + _TOGETHER_SECONDS:
            self.count += 1
        self._last = now
