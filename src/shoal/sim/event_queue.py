"""The simulated future: scheduled happenings in order of time, then priority, then the order they were scheduled in."""

import heapq
from dataclasses import dataclass, field
from enum import IntEnum

from shoal.core.units import Seconds


class Happening(IntEnum):
    """What is scheduled. The value is its priority among happenings of the same time: the least comes first."""

    STARTED = 0
    COMPLETED = 1
    BATCH_CHANGED = 2
    MARKED = 3
    CRASHED = 4
    CRASH_SCRIPTED = 5
    STRAGGLER_ENDED = 6
    STRAGGLED = 7
    STRAGGLER_SCRIPTED = 8
    NODE_RETURNED = 9
    NODE_LOST = 10
    NODE_LOSS_SCRIPTED = 11
    RELEASED = 12
    TICKED = 13
    SAVED = 14
    TIME_LIMIT = 15
    NODE_JOINED = 16


@dataclass(slots=True)
class EventQueue:
    """A heap of (time, priority, sequence number, a, b); the happening says what its arguments ``a`` and ``b`` are."""

    heap: list[tuple[Seconds, int, int, int, int]] = field(default_factory=list)
    _sequence: int = 0

    def push(self, at: Seconds, what: Happening, a: int, b: int = 0) -> None:
        """Schedule a happening."""
        self._sequence += 1
        heapq.heappush(self.heap, (at, what, self._sequence, a, b))
