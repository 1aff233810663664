"""How long the loop of a live control plane rests after a cycle.

With many live jobs a cycle costs milliseconds, however few events it decides on. A rest in proportion to that cost
gathers events in one batch, bounds the loop's share of a core, and delays a decision by at most ``_LONGEST``.
"""

import threading
import time
from dataclasses import dataclass, field

from shoal.core.units import Seconds

_FREE: Seconds = 0.002
"""CPU seconds of a cycle after which there is no rest: on a small cluster each event is decided on at once."""

_FACTOR = 4.0
"""Seconds of rest for each CPU second beyond that, so that the loop takes at most a fifth of a core."""

_LONGEST: Seconds = 0.05


def pause_after(cpu: Seconds) -> Seconds:
    """Return the seconds to rest after a cycle that took ``cpu`` CPU seconds."""
    return min(max(0.0, _FACTOR * (cpu - _FREE)), _LONGEST)


@dataclass(slots=True)
class CyclePause:
    """Pause of the loop's thread after a cycle, which a request may interrupt."""

    _asked: threading.Event = field(default_factory=threading.Event)

    def interrupt(self) -> None:
        """Note that a request waits for the loop, or that the loop is to end."""
        self._asked.set()

    def taken(self) -> None:
        """Note that the loop has taken the requests that waited."""
        self._asked.clear()

    def sleep(self, seconds: Seconds) -> Seconds:
        """Sleep for some seconds; return how many are left, more than 0 if a request waits."""
        began = time.monotonic()
        return max(0.0, began + seconds - time.monotonic()) if self._asked.wait(seconds) else 0.0
