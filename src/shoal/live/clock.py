"""Real time as the ring counts it: seconds since the journal began, never running backwards."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from shoal.core.units import Seconds


class Clock(Protocol):
    """The source of time of a live backend."""

    def now(self) -> Seconds:
        """Return the seconds since the journal began."""
        ...


@dataclass(frozen=True, slots=True)
class WallClock:
    """The machine's clock, read once; after that only the monotonic clock, which cannot be set back.

    ``epoch`` is the Unix time at which the journal began, ``at_least`` the latest time already in it.
    """

    epoch: float
    at_least: Seconds = 0.0
    _origin: float = field(init=False)

    def __post_init__(self) -> None:
        start = max(time.time() - self.epoch, self.at_least)
        object.__setattr__(self, "_origin", start - time.monotonic())

    def now(self) -> Seconds:
        """Return the seconds since the journal began."""
        return self._origin + time.monotonic()
