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
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from math import inf
from typing import TypeAlias

NO_GAIN = -inf


@dataclass(frozen=True, slots=True)
class Gains:
    """Throughput and both sides of (3) by number of units held; ``NO_GAIN`` where one unit more does not help."""

    throughput: tuple[float, ...]
    later: tuple[float, ...]
    sooner: tuple[float, ...]

    @classmethod
    def of(cls, throughput: Sequence[float]) -> "Gains":
        """The gains along a throughput curve that begins at 0 units."""
        steps = list(pairwise(throughput))
        later = tuple((more - p) / more if more > p else NO_GAIN for p, more in steps)
        sooner = tuple((more - p) / p if more > p > 0 else NO_GAIN if more <= p else inf for p, more in steps)
        return cls(tuple(throughput), (*later, NO_GAIN), (*sooner, NO_GAIN))

    def useful(self, units: int) -> int:
        """The number of units, from ``units`` up, until which each one more raises the throughput."""
        while self.later[units] > 0:
            units += 1
        return units


def with_lengths(gains: Sequence[Gains], work: Sequence[float], units: Sequence[int], free: int) -> list[int]:
    """Units by job after giving ``free`` more, each to the job of top priority (Algorithm 1, stage two).

    Every job holds at least one unit at the start and has ``work`` left. The comparison (3) is not transitive, so the
    result depends on the order of comparison: jobs are scanned from the longest to the shortest by their length with
    the units held so far, the first of equals counting as longer. The top job is then the longest of those that (3)
    puts before every shorter one. O((jobs + free) · jobs) in the worst case, near-linear in practice.
    """
    counts = list(units)

    def entry(i: int) -> _Entry:
        k = counts[i]
        return (work[i] / gains[i].throughput[k], -i), gains[i].later[k], gains[i].sooner[k]

    line = _Line(sorted(entry(i) for i, k in enumerate(counts) if gains[i].later[k] > 0))
    while free > 0 and line.places:
        top = line.top()
        i = -line.places[top][1]
        counts[i] += 1
        free -= 1
        line.replace(top, entry(i) if gains[i].later[counts[i]] > 0 else None)
    return counts


_Entry: TypeAlias = tuple[tuple[float, int], float, float]
"""Sort key (length, minus job number, so that the later of equals is shorter) and the gains of a job."""


class _Line:
    """Jobs from the shortest to the longest, and for each whether (3) puts it before every shorter one.

    Giving a unit moves one job towards the front; only the entries that this changes are recomputed.
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
        """The place of the longest job that (3) puts before every shorter one."""
        return self._ahead.rfind(1)

    def replace(self, at: int, entry: _Entry | None) -> None:
        """Move the job at ``at`` to its new place, never further back, or remove it."""
        for column in (self.places, self._later, self._sooner, self._hurdles, self._ahead):
            del column[at]
        if entry is None:
            self._recompute(at, at)
            return
        place, later, sooner = entry
        new = bisect_left(self.places, place)
        self.places.insert(new, place)
        self._later.insert(new, later)
        self._sooner.insert(new, sooner)
        self._hurdles.insert(new, NO_GAIN)
        self._ahead.insert(new, 0)
        self._recompute(new, at + 1)

    def _recompute(self, begin: int, end: int) -> None:
        """Recompute hurdles from ``begin`` to ``end``, and beyond as long as they change."""
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
    with the highest ``later``, and a heap of those suffices. Where neither job goes before the other the paper draws at
    random; here the higher gain is served first, and of equals the first in order.
    """
    counts = list(units)
    heap = [(-gain, i) for i, k in enumerate(counts) if (gain := gains[i].later[k]) > 0]
    heapify(heap)
    while free > 0 and heap:
        i = heap[0][1]
        counts[i] += 1
        free -= 1
        gain = gains[i].later[counts[i]]
        if gain > 0:
            heapreplace(heap, (-gain, i))
        else:
            heappop(heap)
    return counts
