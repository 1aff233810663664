"""A queue of scheduled happenings, in order of time, then priority, then the order they were scheduled in."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from shoal.core.events import Event
from shoal.core.units import Seconds


class Happening(IntEnum):
    """A kind of scheduled event. The value is its priority among happenings of the same time: the least comes first."""

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


Handler: TypeAlias = Callable[[int, int, list[Event]], bool]
"""Takes a happening's two arguments and the batch to append to; returns whether it calls for a decision.

The handler of a happening is a method with its name: ``_started`` of the backend for ``STARTED``, or, for a node's
fault, ``node_lost`` of `NodeFaults`.
"""


@dataclass(slots=True)
class EventQueue:
    """A heap of (time, priority, sequence number, a, b); the happening says what its arguments ``a`` and ``b`` are."""

    heap: list[tuple[Seconds, int, int, int, int]] = field(default_factory=list)
    _sequence: int = 0

    def push(self, at: Seconds, what: Happening, a: int, b: int = 0) -> None:
        """Schedule a happening."""
        self._sequence += 1
        heapq.heappush(self.heap, (at, what, self._sequence, a, b))
