"""The training rate of a gang, measured from its progress, and when to report it to the ring.

The ring extrapolates a job's progress from the last reported progress at the last reported rate. It needs a new report
when the measured rate differs, and when progress has drifted from the extrapolation, as after a long loading time.
"""

from dataclasses import dataclass

from shoal.core.units import Seconds

MIN_INTERVAL: Seconds = 5.0
"""The shortest time over which a rate is measured."""
_MIN_ADVANCES = 3
"""The fewest reports with new progress in that time: a job advances by whole steps."""
_TOLERANCE = 0.1
"""The fraction by which the rate, or the progress since the last report, may differ without a new report."""


@dataclass(slots=True)
class RateTracker:
    """The last report on one gang: ``rate`` from progress ``done`` at time ``at``; at first the expected rate."""

    rate: float
    at: Seconds = 0.0
    done: float = 0.0
    _furthest: float | None = None
    _window: tuple[Seconds, float] | None = None
    """Time and progress at the start of the present measurement."""
    _advances: int = 0

    def reported(self, at: Seconds, rate: float, done: float) -> None:
        """Store the rate and progress that the ring has just been sent."""
        self.rate, self.at, self.done = rate, at, done

    def observe(self, now: Seconds, done: float) -> float | None:
        """Process the job's progress; return the rate to report with it, or None if no report is needed."""
        if done <= (self.done if self._furthest is None else self._furthest):
            return None
        self._furthest = done
        if self._window is None:
            self._window = now, done
            return self.rate if self._drifted(now, done) else None
        self._advances += 1
        began, before = self._window
        if now - began < MIN_INTERVAL or self._advances < _MIN_ADVANCES:
            return None
        rate = (done - before) / (now - began)
        self._window, self._advances = (now, done), 0
        return rate if abs(rate - self.rate) > _TOLERANCE * self.rate or self._drifted(now, done) else None

    def _drifted(self, now: Seconds, done: float) -> bool:
        passed = now - self.at
        return abs(done - self.done - self.rate * passed) > self.rate * max(MIN_INTERVAL, _TOLERANCE * passed)
