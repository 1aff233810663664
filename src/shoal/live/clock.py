"""Real time as the ring counts it: seconds since the journal began, never running backwards.

While a control plane runs, time follows the monotonic clock alone: setting the machine's clock changes nothing. At a
restart it continues from the journal's last record, and the machine's clock shows how long ago that was: at most
``MOST_STEP`` seconds are added, and none if the clock was set back. So a clock that is years ahead at a start moves the
journal, and what is charged for it, by an hour and not by years. The Unix time of the journal's beginning (its *epoch*)
is then computed anew from the machine's clock, so that the present is shown as the machine shows it; times before a
restart of which a part was cut are shown later by that part. An idle control plane writes a record every
``IDLE_RECORD`` seconds, so that its idle time is not taken for time away.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

from shoal.core.units import Seconds


class Clock(Protocol):
    """The source of time of a live backend."""

    def now(self) -> Seconds:
        """Return the seconds since the journal began."""
        ...


MOST_STEP: Seconds = 3600.0
"""Seconds that a restart adds at most."""

IDLE_RECORD: Seconds = 600.0
"""Seconds after which a control plane without events writes an empty record."""


@dataclass(frozen=True, slots=True)
class WallClock:
    """The machine's clock, read once; after that only the monotonic clock, which cannot be set back.

    ``last`` is the latest time in the journal. ``epoch`` is given as the Unix time at which the journal began by its
    last header, and becomes that time by the machine's clock.
    """

    epoch: float
    last: Seconds = 0.0
    _origin: float = field(init=False)

    def __post_init__(self) -> None:
        wall = time.time()
        start = self.last + min(max(wall - self.epoch - self.last, 0.0), MOST_STEP)
        object.__setattr__(self, "_origin", start - time.monotonic())
        object.__setattr__(self, "epoch", wall - start)

    def now(self) -> Seconds:
        """Return the seconds since the journal began."""
        return self._origin + time.monotonic()
