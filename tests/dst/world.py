"""Virtual time: one queue of events, one seed, one trace. No thread and no real sleep.

A *process* of the simulation runs real code until that code would block; the blocking call then raises ``Blocked`` and
the process is entered again when something happened. Code that cannot be entered again (a sleep in the middle of a
function) runs the queue from inside the call instead, as other threads and machines do during a real sleep.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

MOST_EVENTS = 500_000
"""Events of a trial, a hundred times as many as usual, after which it counts as spinning."""


class Blocked(BaseException):
    """The real code would wait now, for at most ``seconds`` (None: until it is woken)."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Killed(BaseException):
    """The process that runs the present code was killed in the middle of it."""


class Violated(BaseException):
    """An invariant does not hold. Not an ``Exception``: the code under test must not catch it."""


class Machine(Protocol):
    """A machine with clocks of its own."""

    def monotonic(self) -> float:
        """Return the seconds on a clock that cannot be set."""
        ...

    def wall(self) -> float:
        """Return the Unix time that the machine shows, which can be wrong."""
        ...


@dataclass(slots=True)
class Clocks:
    """The clocks of a machine: ``rate`` is close to 1, ``jump`` the error of the wall clock in seconds."""

    world: "World"
    rate: float = 1.0
    origin: float = 1000.0
    jump: float = 0.0

    def monotonic(self) -> float:
        """Return the seconds on a clock that cannot be set."""
        return self.origin + self.rate * self.world.now

    def wall(self) -> float:
        """Return the Unix time that the machine shows: long ago, since files changed after that are not old."""
        return 1.0e9 + self.rate * self.world.now + self.jump


@dataclass(slots=True)
class World:
    """The queue of events, the present time in seconds, and what happened."""

    seed: int
    now: float = 0.0
    machine: Any = None
    """The machine, or process on one, whose code runs at present."""
    trace: list[tuple[Any, ...]] = field(default_factory=list)
    violation: str | None = None
    rng: random.Random = field(init=False)
    events: int = 0
    pids: Iterator[int] = field(default_factory=lambda: count(100))
    _queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` in this many seconds."""
        heapq.heappush(self._queue, (self.now + max(0.0, seconds), next(self._order), action, arguments))

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """Let time pass until ``until``, or until ``stop()`` holds after an event."""
        while self._queue and self._queue[0][0] <= until:
            at, _, action, arguments = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            self.events += 1
            if self.events > MOST_EVENTS:
                self.violate("the cluster does not come to rest")
            action(*arguments)
            if stop is not None and stop():
                return
        self.now = max(self.now, until)

    def note(self, *what: Any) -> None:
        """Add a line to the trace."""
        self.trace.append((round(self.now, 4), *what))

    def violate(self, text: str) -> None:
        """End the trial: an invariant does not hold."""
        self.violation = self.violation or text
        self.note("VIOLATION", text)
        raise Violated(text)

    def check(self, holds: bool, text: str) -> None:
        """End the trial unless this holds."""
        if not holds:
            self.violate(text)

    @contextmanager
    def acting(self, machine: Any) -> Iterator[None]:
        """Run the code of one machine or process: clocks and process numbers are its own."""
        before, self.machine = self.machine, machine
        try:
            yield
        finally:
            self.machine = before

    def digest(self) -> str:
        """Return a hash of the whole trace and of every random choice."""
        return hashlib.sha256(repr((self.trace, self.rng.getstate())).encode()).hexdigest()[:16]
