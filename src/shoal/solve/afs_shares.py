"""Apathetic Future Share: units to jobs one by one, by what each would gain and by who would be done first.

A job is its throughput p by number of units. AFS compares two jobs, a the one done earlier and b the later one, by

    (p'_b − p_b) / p'_b  >  (p'_a − p_a) / p_a                                                            (3)

where p' is the throughput with one unit more; if it holds the next unit is better given to b. The left side is a job's
gain counted on what it would have (``Gains.later``), the right side its gain counted on what it has
(``Gains.sooner``). A unit that does not raise a job's throughput is never given to it.

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
    """Of one curve, by units held k: the throughput, and both sides of (3); ``NO_GAIN`` where one more does not help.

    ``later`` and ``sooner`` end one short of ``throughput``: with all its units a job can gain nothing.
    """

    throughput: tuple[float, ...]
    later: tuple[float, ...]
    sooner: tuple[float, ...]

    @classmethod
    def of(cls, throughput: Sequence[float]) -> "Gains":
        """The gains along a curve that begins at 0 units."""
        steps = list(pairwise(throughput))
        later = tuple((more - p) / more if more > p else NO_GAIN for p, more in steps)
        sooner = tuple((more - p) / p if more > p > 0 else NO_GAIN if more <= p else inf for p, more in steps)
        return cls(tuple(throughput), (*later, NO_GAIN), (*sooner, NO_GAIN))

    def useful(self, units: int) -> int:
        """Units up to which, from so many on, each one more helps."""
        while self.later[units] > 0:
            units += 1
        return units


def with_lengths(gains: Sequence[Gains], work: Sequence[float], units: Sequence[int], free: int) -> list[int]:
    """Units by job after giving ``free`` more, each to the job of top priority (Algorithm 1, stage two).

    Every job has at least one unit to begin with, and ``work`` left. The comparison (3) is not transitive, so which
    job comes out on top depends on the order in which jobs are compared; here they are scanned from the longest to the
    shortest, lengths being those with the units held so far, and of equals the first in order counts as the longer.
    Scanned so, the top job is the longest of those that (3) puts before every shorter one.
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
"""A job in line: its place (length, and minus its number, so that the later of equals is the shorter) and its gains."""


class _Line:
    """Jobs from the shortest to the longest, and for each whether (3) puts it before every shorter one.

    A unit given moves one job down the line, and little else changes: only what does is worked out again.
    """

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self.places = [place for place, _, _ in entries]
        self._later = [later for _, later, _ in entries]
        self._sooner = [sooner for _, _, sooner in entries]
        self._hurdles = [NO_GAIN] * len(entries)
        """By job: the highest gain as the sooner one of any job before it."""
        self._ahead = bytearray(len(entries))
        self._work_out(0, len(entries))

    def top(self) -> int:
        """Where the longest job stands that goes before every shorter one."""
        return self._ahead.rfind(1)

    def replace(self, at: int, entry: _Entry | None) -> None:
        """Put a job in its new place, which is no longer than its old one, or take it out."""
        for column in (self.places, self._later, self._sooner, self._hurdles, self._ahead):
            del column[at]
        if entry is None:
            self._work_out(at, at)
            return
        place, later, sooner = entry
        new = bisect_left(self.places, place)
        self.places.insert(new, place)
        self._later.insert(new, later)
        self._sooner.insert(new, sooner)
        self._hurdles.insert(new, NO_GAIN)
        self._ahead.insert(new, 0)
        self._work_out(new, at + 1)

    def _work_out(self, begin: int, end: int) -> None:
        """Hurdles from one place to another, and beyond as long as they differ from what they were."""
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
    """Units by job after giving ``free`` more, when nobody knows who will be done first (AFS-P).

    Then (3) is tried with either job as the later one. Job b goes before a if its gain as the later one exceeds a's as
    the sooner one, and a job's gain as the sooner is never the lower of its two; so nobody goes before the job with the
    highest gain as the later one, and a heap of those is all it takes. Where neither goes before the other the paper
    draws; here the higher gain goes first, and of equals the first in order.
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
