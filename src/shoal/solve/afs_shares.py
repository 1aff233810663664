"""Apathetic Future Share: units given one by one, by marginal gain and by which job ends first.

A job is its throughput p by number of units. AFS gives the next unit to job b rather than to a, which ends earlier, if

    (p'_b − p_b) / p'_b  >  (p'_a − p_a) / p_a                                                            (3)

where p' is the throughput with one unit more. The left side is the gain relative to the new throughput
(``Gains.later``), the right side the gain relative to the present one (``Gains.sooner``). A unit that does not raise a
job's throughput is never given to it. The rule is a greedy heuristic and has no bound.

Reference: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI 2021, §3.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import inf
from typing import TypeAlias

import numpy as np

from shoal.core.arrays import Floats, Indices
from shoal.solve.marginal_gain import best_units

NO_GAIN = -inf


@dataclass(frozen=True, slots=True)
class Gains:
    """Throughput and both sides of (3) by number of units held; ``NO_GAIN`` where one unit more does not help."""

    throughput: tuple[float, ...]
    later: tuple[float, ...]
    sooner: tuple[float, ...]
    peaks: tuple[int, ...]
    """The number of units until which each one more raises the throughput."""

    @classmethod
    def of(cls, throughput: Sequence[float]) -> "Gains":
        """The gains along a throughput curve that begins at 0 units."""
        steps = list(pairwise(throughput))
        later = tuple((more - p) / more if more > p else NO_GAIN for p, more in steps)
        sooner = tuple((more - p) / p if more > p > 0 else NO_GAIN if more <= p else inf for p, more in steps)
        peaks = [len(steps)]
        for k in range(len(steps) - 1, -1, -1):
            peaks.append(peaks[-1] if later[k] > 0 else k)
        return cls(tuple(throughput), (*later, NO_GAIN), (*sooner, NO_GAIN), tuple(reversed(peaks)))

    def useful(self, units: int) -> int:
        """Return the largest number of units up to which each one beyond ``units`` raises the throughput."""
        return self.peaks[units]


def with_lengths(gains: Sequence[Gains], work: Sequence[float], units: Sequence[int], free: int) -> list[int]:
    """Units by job after giving ``free`` more, each to the job of top priority (Algorithm 1, stage two).

    Every job holds at least one unit at the start and has ``work`` left. The comparison (3) is not transitive, so the
    result depends on the order of comparison: jobs are scanned from the longest to the shortest by their length with
    the units held so far, the first of equals counting as longer. The top job is then the longest of those that (3)
    puts before every shorter one. Among jobs with the same curve (one ``Gains`` object) and the same number of units
    only the shortest can be the top job, since ``sooner`` is never below ``later``. So a step takes time in proportion
    to the number of such groups.
    """
    counts = list(units)
    queues: dict[tuple[int, int], list[_Place]] = {}
    for i, (known, k, left) in enumerate(zip(gains, counts, work, strict=True)):
        if known.later[k] > 0:
            queues.setdefault((id(known), k), []).append((left / known.throughput[k], -i))
    for queue in queues.values():
        queue.sort()  # so it is a heap
    line = _Line(
        sorted(
            (queue[0], gains[-queue[0][1]].later[k], gains[-queue[0][1]].sooner[k]) for (_, k), queue in queues.items()
        )
    )
    while free > 0 and line.places:
        top = line.top()
        place = line.places[top]
        i, free = -place[1], free - 1
        known, k = gains[i], counts[i] + 1
        counts[i] = k
        queue = queues[id(known), k - 1]
        heappop(queue)
        if queue:
            line.replace(top, (queue[0], known.later[k - 1], known.sooner[k - 1]))
        else:
            line.replace(top, None)
        if known.later[k] > 0:
            queue = queues.setdefault((id(known), k), [])
            place = (work[i] / known.throughput[k], -i)
            if not queue or place < queue[0]:
                line.replace(line.place_of(queue[0]) if queue else None, (place, known.later[k], known.sooner[k]))
            heappush(queue, place)
    return counts


_Place: TypeAlias = tuple[float, int]
"""Length and minus job number, so that the later of equals is shorter."""

_Entry: TypeAlias = tuple[_Place, float, float]
"""Place and gains of the shortest job of a group."""


class _Line:
    """The shortest job of each group, shortest first, and for each whether (3) puts it before every shorter one.

    A unit given changes the places of few jobs; only the entries that this affects are recomputed.
    """

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self.places = [place for place, _, _ in entries]
        self._later = [later for _, later, _ in entries]
        self._sooner = [sooner for _, _, sooner in entries]
        self._hurdles = [NO_GAIN] * len(entries)
        """By job: the highest ``sooner`` of the jobs before it."""
        self._ahead = bytearray(len(entries))
        self._recompute(0, len(entries))

    def top(self) -> int:
        """Return the index of the longest job that condition (3) puts before every shorter one."""
        return self._ahead.rfind(1)

    def place_of(self, place: _Place) -> int:
        """Return the index of a job in the order of lengths."""
        return bisect_left(self.places, place)

    def replace(self, at: int | None, entry: _Entry | None) -> None:
        """Remove the entry at ``at``, if that is not None, and insert another one at its place."""
        if at is not None:
            for column in (self.places, self._later, self._sooner, self._hurdles, self._ahead):
                del column[at]
        if entry is None:
            self._recompute(at or 0, at or 0)
            return
        new = bisect_left(self.places, entry[0])
        self.places.insert(new, entry[0])
        self._later.insert(new, entry[1])
        self._sooner.insert(new, entry[2])
        self._hurdles.insert(new, NO_GAIN)
        self._ahead.insert(new, 0)
        self._recompute(*((new, new + 1) if at is None else (min(at, new), max(at, new) + 1)))

    def _recompute(self, begin: int, end: int) -> None:
        """Recompute ``_hurdles`` and ``_ahead`` from ``begin`` to ``end``, and beyond while the hurdles change."""
        later, sooner, hurdles, ahead = self._later, self._sooner, self._hurdles, self._ahead
        hurdle = max(hurdles[begin - 1], sooner[begin - 1]) if begin else NO_GAIN
        for at in range(begin, len(later)):
            if at >= end and hurdles[at] == hurdle:
                return
            hurdles[at] = hurdle
            ahead[at] = later[at] > hurdle
            if sooner[at] > hurdle:  # noqa: PLR1730  max() would be most of what this loop costs
                hurdle = sooner[at]


def without_lengths(gains: Sequence[Gains], units: Sequence[int], free: int) -> list[int]:
    """Units by job after giving ``free`` more, when job lengths are unknown (AFS-P).

    (3) is tried with either job as the later one. Since ``sooner`` is never below ``later``, no job goes before the one
    with the highest ``later``. Where neither job goes before the other the paper draws at random; here the higher gain
    is served first, and of equals the first in order.
    """
    different = {id(known): known for known in gains}
    joined = np.concatenate([known.later for known in different.values()]) if different else np.zeros(0)
    ends = dict(zip(different, accumulate(len(known.later) for known in different.values()), strict=True))
    end = np.array([ends[id(known)] for known in gains], dtype=np.intp)
    held = np.array(units, dtype=np.int64)
    most = np.array([known.peaks[k] for known, k in zip(gains, units, strict=True)], dtype=np.int64) - held
    at = end - np.array([len(known.later) for known in gains], dtype=np.intp) + held

    def bids(some: Indices, count: int) -> Floats:
        offered: Floats = joined[np.minimum(at[some, None] + np.arange(count), end[some, None] - 1)]
        return offered

    counts: list[int] = (held + best_units(bids, most, free).counts).tolist()
    return counts
