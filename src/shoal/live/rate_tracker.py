"""How fast a gang trains by what it says, and when that is news to the ring.

The ring extrapolates: it takes a job to go on from where it was last told it is, at the rate it was told. It is told
anew when the job goes faster or slower than that, and when it is not where it is thought to be, as after loading for
longer than anybody knew.
"""

from dataclasses import dataclass

from shoal.core.units import Seconds

EVERY: Seconds = 5.0
"""A speed is that of so many seconds at least."""
_ADVANCES = 3
"""And of so many reports in which the job had come further, since it moves by whole steps."""
_CHANGE = 0.1
"""By what part a speed, or the progress since it was last told, differs to be told anew."""


@dataclass(slots=True)
class RateTracker:
    """One gang's: the ``rate`` last told, from ``done`` at ``at`` on; before anything was told, what is expected."""

    rate: float
    at: Seconds = 0.0
    done: float = 0.0
    _further: float | None = None
    _since: tuple[Seconds, float] | None = None
    _advances: int = 0

    def told(self, at: Seconds, rate: float, done: float) -> None:
        """The ring knows this from now on."""
        self.rate, self.at, self.done = rate, at, done

    def hear(self, now: Seconds, done: float) -> float | None:
        """The job says how far it is: the rate to tell the ring with that, or None where nothing is news."""
        if done <= (self.done if self._further is None else self._further):
            return None
        self._further = done
        if self._since is None:
            self._since = now, done
            return self.rate if self._astray(now, done) else None
        self._advances += 1
        began, before = self._since
        if now - began < EVERY or self._advances < _ADVANCES:
            return None
        rate = (done - before) / (now - began)
        self._since, self._advances = (now, done), 0
        return rate if abs(rate - self.rate) > _CHANGE * self.rate or self._astray(now, done) else None

    def _astray(self, now: Seconds, done: float) -> bool:
        """Whether the job is not where the ring takes it to be."""
        passed = now - self.at
        return abs(done - self.done - self.rate * passed) > self.rate * max(EVERY, _CHANGE * passed)
