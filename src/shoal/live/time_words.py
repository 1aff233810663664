"""Times and durations of a live cluster in words: "14:32 (in 12 min)" for a time, "12 min" for a duration."""

import time
from dataclasses import dataclass
from math import isfinite

from shoal.core.units import DAY, Seconds, span


@dataclass(frozen=True, slots=True)
class ClockWords:
    """Times in the sentences of `core.reasons.Reason.sentence` as clock times; ``epoch`` is the Unix time of second 0.

    With ``now`` a time says how far away it is; without, as in a history, it does not.
    """

    epoch: float
    now: Seconds | None = None

    def at(self, seconds: Seconds) -> str:
        """Return a time of the journal as a clock time."""
        if not isfinite(seconds):
            return "a time that is not known yet"
        away = 0.0 if self.now is None else seconds - self.now
        day = "%H:%M:%S" if abs(away) < 60 else "%H:%M" if abs(away) < DAY / 2 else "%Y-%m-%d %H:%M"
        clock = time.strftime(day, time.localtime(self.epoch + seconds))
        if self.now is None:
            return clock
        return f"{clock} (in {span(away)})" if away >= 0 else f"{clock} ({span(-away)} ago)"

    def span(self, seconds: Seconds) -> str:
        """Return a duration in a readable unit."""
        return span(seconds) if isfinite(seconds) else "an unknown time"

    def number(self, value: float, spec: str) -> str:
        """Return a number as its template wants it; "unknown" for one that is not finite."""
        return format(value, spec) if isfinite(value) else "unknown"
