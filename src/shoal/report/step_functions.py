"""Step functions of time and their exact averages."""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Floats


@dataclass(frozen=True, slots=True)
class Steps:
    """A step function as its change points and its integral up to each; 0 outside them."""

    times: Floats
    integral: Floats

    @classmethod
    def of(cls, since: Floats, until: Floats, weight: Floats) -> "Steps":
        """The sum of ``weight`` over the intervals ``[since, until)`` that cover a time."""
        times = np.concatenate([since, until])
        order = np.argsort(times, kind="stable")
        level = np.cumsum(np.concatenate([weight, -weight])[order])
        return cls.through(times[order], level[:-1])

    @classmethod
    def through(cls, times: Floats, level: Floats) -> "Steps":
        """The function with these levels between consecutive change points."""
        if not len(times):
            return cls(np.zeros(1), np.zeros(1))
        return cls(times, np.concatenate([[0.0], np.cumsum(level * np.diff(times))]))

    def between(self, since: Floats, until: Floats) -> Floats:
        """The integral over each interval."""
        area: Floats = np.interp(until, self.times, self.integral) - np.interp(since, self.times, self.integral)
        return area

    def mean(self, since: Floats, until: Floats) -> Floats:
        """The exact time average over each interval; NaN over an empty one."""
        with np.errstate(divide="ignore", invalid="ignore"):
            mean: Floats = self.between(since, until) / (until - since)
        return mean
