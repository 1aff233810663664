"""The seconds that an app needs by number of GPUs, and the numbers of GPUs that it can use.

Apps that bid over the wire and the policy that bids for other apps use the same functions.

An app runs in phases, one after the other; the jobs of a phase run side by side. Within a phase GPUs are assumed to be
divided ideally: the phase takes its GPU-seconds divided by the GPUs it can use, and no less than its longest job alone.
This gives Themis's example exactly (§4.3.3: 4, 2, 1, 0.5, 0.34 for 1, 2, 4, 8 and 16 GPUs). Arrays are by number of
GPUs, from 0.

References: Themis (NSDI '20) §4.3, equations 1 and 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby

import numpy as np

from shoal.core.arrays import Floats, Int64s
from shoal.core.bids import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Work left of a job: seconds by number of GPUs, and the fewest and the most GPUs it can use.

    ``seconds`` is not used below ``least`` and above ``most``.
    """

    seconds: Floats
    least: int
    most: int

    @classmethod
    def linear(cls, gpu_seconds: float, least: int, most: int) -> "Work":
        """Return the work of a job whose speed is linear in its GPUs up to its most."""
        return cls(gpu_seconds / np.maximum(np.arange(most + 1.0), 1.0), least, most)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds left on the number of GPUs with the highest speed per GPU."""
        if self.least == self.most:
            return self.least * self.alone
        counts = np.arange(self.least, self.most + 1)
        return float((counts * self.seconds[counts]).min())

    @property
    def alone(self) -> float:
        """Seconds on the fewest GPUs it can use."""
        return self.seconds.item(self.least)


@dataclass(frozen=True, eq=False)
class Use:
    """By number of GPUs: how many of them an app can use, and the GPUs of its widest job."""

    gpus: Int64s
    widest: Int64s

    @cached_property
    def _whole(self) -> Int64s:
        whole: Int64s = np.flatnonzero(self.gpus == np.arange(len(self.gpus)))
        whole.flags.writeable = False
        return whole

    @cached_property
    def _all_sizes(self) -> tuple[int, ...]:
        return tuple(self.sizes().tolist())

    def sizes(self, above: int = 0) -> Int64s:
        """The numbers of GPUs above this one that can be used completely, ascending."""
        return self._whole[int(np.searchsorted(self._whole, above, side="right")) :]

    def beyond(self, held: int) -> tuple[int, ...]:
        """Numbers of GPUs that could be used completely beside those held, ascending."""
        return tuple((self.sizes(held) - held).tolist()) if held else self._all_sizes


def usable(reaches: Sequence[tuple[int, int]], limit: int) -> Use:
    """Return how jobs use up to ``limit`` GPUs: in order each takes its fewest if possible; they share the rest.

    ``reaches`` are the fewest and the most GPUs of each job. A job whose fewest are more than what is left is skipped.
    The answer is cached, since many apps are alike; its arrays are read-only.
    """
    return _usable(tuple(reaches), limit)


@lru_cache(maxsize=4096)
def _usable(reaches: tuple[tuple[int, int], ...], limit: int) -> Use:
    left = np.arange(limit + 1)
    spare, widest, running = (np.zeros(limit + 1, dtype=np.int64) for _ in range(3))
    for (least, most), alike in groupby(reaches):
        fit = np.minimum(left // least, sum(1 for _ in alike))
        left = left - fit * least
        spare += fit * (most - least)
        widest = np.maximum(widest, np.where(fit > 0, least, 0))
        running += fit
    shared = np.minimum(left, spare)
    gpus = np.arange(limit + 1) - left + shared
    even = -(-gpus // np.maximum(running, 1))
    widest_of_all = max((most for _, most in reaches), default=0)
    widths = np.where(shared > 0, np.minimum(np.maximum(widest, even), widest_of_all), widest)
    gpus.flags.writeable = widths.flags.writeable = False
    return Use(gpus, widths)


@lru_cache(maxsize=4096)
def useful_range(rates: bytes, least: int) -> tuple[int, int]:
    """The first number of GPUs with a rate, and the fastest; (0, 0) where there is none.

    Not where the rate first stops rising: it falls where a gang no longer fits one machine, and then rises on.
    Cached, since many jobs train the same model.
    """
    curve = np.frombuffer(rates)
    able = np.flatnonzero(curve[least:] > 0)
    if not len(able):
        return 0, 0
    least += int(able[0])
    return least, least + int(curve[least:].argmax())


def phase_seconds(works: Sequence[Work], use: Use) -> Floats:
    """Seconds that the jobs take side by side; infinite on numbers of GPUs that none of them can use."""
    counts = use.gpus
    total = sum(work.gpu_seconds for work in works)
    seconds = np.full(len(counts), np.inf)
    np.divide(total, counts, out=seconds, where=counts > 0)
    seconds = np.maximum(seconds, max((work.alone for work in works if work.least == work.most), default=0.0))
    for work in works:
        if work.least < work.most:
            seconds = np.maximum(seconds, work.seconds[np.minimum(np.maximum(counts, work.least), work.most)])
    return np.minimum.accumulate(seconds)


def finish_seconds(phases: Sequence[Sequence[Work]], limit: int) -> Floats:
    """Return the seconds of all phases in sequence, by number of GPUs up to ``limit``, on the fewest nodes."""
    total = np.zeros(limit + 1)
    for works in phases:
        total += phase_seconds(works, usable([(work.least, work.most) for work in works], limit))
    return total


def valuation_rows(left: Floats) -> Rows:
    """A valuation as rows (GPUs, seconds), one for each number of GPUs at which the seconds fall.

    Seconds fall no faster than in proportion to the GPUs; where they would, the proportional value is used.
    """
    counts = np.flatnonzero(np.isfinite(left) & (np.arange(len(left)) > 0))
    spent = np.maximum.accumulate(counts * left[counts])
    rows: list[tuple[int, float]] = []
    for count, gpu_seconds in zip(counts.tolist(), spent.tolist(), strict=True):
        seconds = gpu_seconds / count
        if not rows or seconds < rows[-1][1]:
            rows.append((count, seconds))
    return tuple(rows)


def row_seconds(rows: Rows, limit: int) -> Floats:
    """Return seconds by number of GPUs up to ``limit``, by the last row with no more GPUs; fewer GPUs in proportion."""
    first, seconds = rows[0]
    left = np.full(limit + 1, np.inf)
    below = np.arange(1, min(first, limit + 1))
    left[below] = seconds * first / below
    for count, seconds in rows:
        left[count:] = seconds
    return left


def ideal_seconds(gpu_seconds: float, demand: int, cluster: int, contention: float) -> float:
    """Seconds of an app on 1/N of the cluster: on all of it without slowdown, times the contention N."""
    return gpu_seconds / min(cluster, demand) * contention
