"""The rates of apps of one job by number of GPUs, in flat tables, one for each distinct curve.

An app of one job needs the least of its seconds on up to n GPUs, work / peak(n), and no less than its GPU-seconds
divided by n: see `perf.app_valuation.phase_seconds`, which is computed here for many apps at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.core.arrays import Floats, Int64s

_NO_INTS: Int64s = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RateClasses:
    """By class of jobs: the fewest and the most GPUs they can use, and where their rates ``begin``.

    From there on, by number of GPUs from 0 to the most: ``peak``, the highest rate on no more GPUs, and ``fastest``,
    the number of GPUs, no more than that, on which a job is fastest (0 below the fewest).
    """

    known: Mapping[tuple[bytes, int, int], int] = field(default_factory=dict)
    least: Int64s = field(default_factory=lambda: _NO_INTS)
    most: Int64s = field(default_factory=lambda: _NO_INTS)
    begin: Int64s = field(default_factory=lambda: _NO_INTS)
    peak: Floats = field(default_factory=lambda: np.zeros(0))
    fastest: Int64s = field(default_factory=lambda: _NO_INTS)

    def __len__(self) -> int:
        return len(self.least)

    def extended(self, found: Mapping[tuple[bytes, int, int], int]) -> "RateClasses":
        """Return the table with the new classes of ``found``, which maps (rates, fewest, most) to a class's number."""
        new = list(found)[len(self) :]
        if not new:
            return self
        curves = [np.frombuffer(rates)[: most + 1] for rates, _, most in new]
        least, most = (np.array([key[part] for key in new], dtype=np.int64) for part in (1, 2))
        begin = len(self.peak) + np.cumsum(most + 1) - (most + 1)
        peaks = [np.maximum.accumulate(curve) for curve in curves]
        fastest = [_fastest(curve, int(a)) for curve, a in zip(curves, least.tolist(), strict=True)]
        return RateClasses(
            found,
            np.append(self.least, least),
            np.append(self.most, most),
            np.append(self.begin, begin),
            np.concatenate([self.peak, *peaks]),
            np.concatenate([self.fastest, *fastest]),
        )

    def only(self, used: Int64s) -> "RateClasses":
        """The table with these classes only, in this order."""
        keys = list(self.known)
        return RateClasses().extended({keys[c]: n for n, c in enumerate(used.tolist())})

    def seconds(self, of: Int64s, gpus: Int64s, work: Floats, gpu_seconds: Floats) -> Floats:
        """Seconds that jobs of these classes take on these numbers of GPUs, at least the fewest and at most the most.

        ``work`` is left of each, in its own unit, and takes at least ``gpu_seconds``.
        """
        with np.errstate(divide="ignore"):
            alone: Floats = np.maximum(gpu_seconds / gpus, work / self.peak[self.begin[of] + gpus])
        return alone

    def gpu_seconds(self, of: Int64s, work: Floats) -> Floats:
        """GPU-seconds of jobs of these classes on the number of GPUs with the highest rate per GPU."""
        if not len(of):
            return np.zeros(0)
        owner, gpus = spread(self.least[of], self.most[of])
        with np.errstate(divide="ignore"):
            spent = gpus * (work[owner] / self.peak[self.begin[of[owner]] + gpus])
        counts = self.most[of] - self.least[of] + 1
        least: Floats = np.minimum.reduceat(spent, np.cumsum(counts) - counts)
        return least

    def used(self, of: Int64s, gpus: Int64s) -> Int64s:
        """How many of these GPUs a job of each class takes: as many as make it faster, 0 below its fewest."""
        most = self.most[of]
        within = np.minimum(gpus, most)
        quick = np.where(within == most, most, self.fastest[self.begin[of] + np.maximum(within, 0)])
        taken: Int64s = np.where(within >= self.least[of], quick, 0)
        return taken


def spread(least: Int64s, most: Int64s) -> tuple[Int64s, Int64s]:
    """For each pair all numbers from ``least`` to ``most``, and which pair each belongs to."""
    counts = np.maximum(most - least + 1, 0)
    owner = np.repeat(np.arange(len(least)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - least, counts)


def _fastest(curve: Floats, least: int) -> Int64s:
    """By number of GPUs the first number, from ``least`` on and no more, on which the rate is highest."""
    peak = np.maximum.accumulate(curve[least:])
    first = np.append(True, peak[1:] > peak[:-1])
    at = np.maximum.accumulate(np.where(first, np.arange(len(peak)), 0))
    return np.append(np.zeros(least, dtype=np.int64), least + at)
