"""When a job's saves are worth an event: the first of each run at once, later ones at most once a minute."""

from dataclasses import dataclass
from math import inf

from shoal.core.units import Seconds
from shoal.live.gang import Gang

INTERVAL: Seconds = 60.0
"""Fewest seconds between two events about saves of one run."""


@dataclass(slots=True)
class SaveTracker:
    """The progress that a job saved, and the part of it sent to the ring, for one ``incarnation`` at a time."""

    incarnation: int = 0
    saved: float = 0.0
    saved_at: Seconds = 0.0
    """When ``saved`` was first reported."""
    sent: float = -1.0
    sent_at: Seconds = -inf

    def observe(self, now: Seconds, gang: Gang) -> Seconds | None:
        """Return the age of a gang's last save if it is to be sent to the ring, else None.

        A job that saves when it is warned causes at most one event in a run, whether or not it has saved yet.
        """
        if gang.incarnation != self.incarnation:
            self.incarnation, self.saved, self.sent, self.sent_at = gang.incarnation, gang.base, -1.0, -inf
        if gang.session is not None and gang.session.saves:
            due = self.sent_at == -inf
        else:
            if gang.saved is not None and gang.saved > self.saved:
                self.saved, self.saved_at = gang.saved, now
            due = self.saved > max(self.sent, gang.base) and now - self.sent_at >= INTERVAL
        if not due:
            return None
        self.sent, self.sent_at = self.saved, now
        return max(0.0, now - self.saved_at)
