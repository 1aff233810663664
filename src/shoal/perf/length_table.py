"""Distributions of lengths on a logarithmic scale: quantiles given the work a job has done, and their calibration."""

from dataclasses import dataclass, field
from math import log

import numpy as np

from shoal.core.arrays import Floats, Indices

BINS = 256
WIDTH = 0.0678
"""Lengths are counted in bins of this width of the natural logarithm, from 1 s to a year."""

PARTS = (0.1, 0.5, 0.9)
"""The quantiles of a prediction."""

COLUMNS = len(PARTS) + 1
"""Columns of a table: the quantiles and the mean."""

_LOG_EDGES: Floats = WIDTH * np.arange(BINS + 1, dtype=np.float64)
EDGES: Floats = np.exp(_LOG_EDGES)
"""Lengths in seconds at which bins begin."""
_MIDDLES: Floats = np.exp(WIDTH * (np.arange(BINS, dtype=np.float64) + 0.5))

PRIOR_SECONDS = 600.0
_BEYOND: Floats = (1.0 + EDGES / PRIOR_SECONDS) ** -2.0
PRIOR: Floats = np.append(1.0, _BEYOND[1:-1]) - np.append(_BEYOND[1:-1], 0.0)
"""Probability by bin where no run says anything: expected to last 600 s, and as long again as it has lasted."""

DRAWN: Floats = (np.arange(100, dtype=np.float64) + 0.5) / 100
"""Probabilities at which a whole distribution is written down, to draw from it."""

STRATA = (0.0, 600.0, 3600.0, 14_400.0, 86_400.0)
"""Seconds done from which on predictions are calibrated separately."""
_FIRST_BINS = tuple(int(log(max(seconds, 1.0)) / WIDTH) for seconds in STRATA)
_STRATUM: Indices = np.searchsorted(np.array(_FIRST_BINS), np.arange(BINS + 1), side="right") - 1

_STEP, _LEAST_STEP = 0.1, 0.0005


def bin_of(length: float) -> int:
    """Return the bin of a length or an amount of work; it may lie outside 0 … ``BINS`` − 1."""
    return int(np.floor(log(max(length, 1e-12)) / WIDTH))


def exceeding(mass: Floats) -> Floats:
    """Return, by edge of a bin, the probability to exceed it; ``mass`` is the probability of each bin."""
    beyond = np.zeros(BINS + 1)
    np.cumsum(mass[::-1], out=beyond[-2::-1])
    return beyond


def conditional_table(mass: Floats, beyond: Floats, parts: Floats) -> Floats:
    """Return the total length in seconds by edge of a bin that it exceeds; columns: ``PARTS`` and the mean.

    ``parts`` has, by stratum, the quantiles to take for ``PARTS``. Within a bin the logarithm of the length is uniform.
    """
    table = np.empty((BINS + 1, COLUMNS))
    left = beyond[:, None] * (1.0 - parts[_STRATUM])
    table[:, :-1] = np.exp(np.interp(left, beyond[::-1], _LOG_EDGES[::-1]))
    table[:-1, -1] = np.cumsum((mass * _MIDDLES)[::-1])[::-1] / np.maximum(beyond[:-1], 1e-300)
    table[-1] = EDGES[-1]
    return np.maximum(table, EDGES[:, None])


def conditional_spread(beyond: Floats, parts: Floats, seconds: float) -> Floats:
    """Return the total length in seconds at the probabilities ``DRAWN``, given that it exceeds this many seconds.

    Between the calibrated quantiles ``parts``, by stratum, probabilities are interpolated.
    """
    place = min(log(max(seconds, 1.0)) / WIDTH, BINS - 1.0)
    here = np.interp(place, np.arange(BINS + 1), beyond)
    calibrated = np.interp(DRAWN, [0.0, *PARTS, 1.0], [0.0, *parts[_STRATUM[int(place)]], 1.0])
    total: Floats = np.exp(np.interp(here * (1.0 - calibrated), beyond[::-1], _LOG_EDGES[::-1]))
    return np.maximum(total, seconds)


@dataclass(slots=True)
class Calibration:
    """Which quantiles of the predicted distributions have held 10, 50 and 90 % of the lengths so far.

    A quantile that too many lengths exceeded is raised, one that too few did is lowered, by steps that become smaller:
    online conformal prediction with decaying steps, which reaches the wanted fractions whatever the distributions are.
    Lengths count for the stratum at submission and for each that they outlast. ``shown``, which predictions use, is
    renewed now and then.
    """

    tracked: Floats = field(default_factory=lambda: np.tile(np.array(PARTS), (len(STRATA), 1)))
    counts: Floats = field(default_factory=lambda: np.zeros(len(STRATA)))
    shown: Floats = field(default_factory=lambda: np.tile(np.array(PARTS), (len(STRATA), 1)))

    def score(self, seconds: float, beyond: Floats) -> None:
        """Count a length whose distribution was predicted at its submission as ``beyond``."""
        place = min(log(max(seconds, 1.0)) / WIDTH, BINS - 1e-6)
        low = int(place)
        after = beyond[low] + (beyond[low + 1] - beyond[low]) * (place - low)
        for stratum, first in enumerate(_FIRST_BINS):
            if place < first or beyond[first] <= 0:
                break
            self.counts[stratum] += 1
            step = max(_LEAST_STEP, _STEP / (10.0 + self.counts[stratum]) ** 0.5)
            quantile = 1.0 - after / beyond[first]
            self.tracked[stratum] += step * (np.array(PARTS) - (quantile <= self.tracked[stratum]))

    def show(self) -> None:
        """Update the predictions with the lengths tracked since the last call."""
        self.shown = np.sort(np.clip(self.tracked, 0.001, 0.999), axis=1)

    def copied(self) -> "Calibration":
        """Return an independent copy."""
        return Calibration(self.tracked.copy(), self.counts.copy(), self.shown)
