"""The least makespan of rigid gangs on identical GPUs: a lower bound, a schedule, and the gap between them.

    minimise max_i (start_i + seconds_i)  subject to Σ gpus of the tasks running at any time ≤ capacity.

Longest-first list scheduling gives a schedule; a depth-first search over tasks in order of their starts, limited to a
number of nodes, improves it. The gap to the lower bound proves optimality where it is 0.

References: Graham (1969) for longest-first lists; the search is the precedence tree of project scheduling.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

_EPS = 1e-9
"""Relative: schedules closer than this are equally long."""


@dataclass(frozen=True, slots=True)
class GangSchedule:
    """When each task starts, when the last one ends, and a time before which no schedule can end."""

    starts: tuple[float, ...]
    makespan: float
    bound: float

    @property
    def gap(self) -> float:
        """The makespan less the bound, as a fraction of the bound; 0 proves the schedule optimal."""
        return max(self.makespan / self.bound - 1.0, 0.0) if self.bound > 0 else 0.0


def lower_bound(seconds: Sequence[float], gpus: Sequence[int], capacity: int) -> float:
    """A time before which no schedule ends: the longest task, the total area, the tasks that cannot run together."""
    if not seconds:
        return 0.0
    area = sum(t * g for t, g in zip(seconds, gpus, strict=True)) / capacity
    alone = sum(t for t, g in zip(seconds, gpus, strict=True) if 2 * g > capacity)
    halves = sum(t for t, g in zip(seconds, gpus, strict=True) if 2 * g == capacity)
    return max(area, alone + halves / 2, *seconds)


def longest_first(
    seconds: Sequence[float], gpus: Sequence[int], capacity: int, running: Sequence[int] = ()
) -> GangSchedule:
    """The schedule that starts the longest task that fits whenever GPUs are free; ``running`` tasks start at time 0.

    Every task must fit: ``1 <= gpus <= capacity``, and the running ones together.
    """
    starts = [0.0] * len(seconds)
    ends = [(seconds[i], gpus[i]) for i in running]
    heapq.heapify(ends)
    free = capacity - sum(g for _, g in ends)
    queues: dict[int, list[int]] = {}
    for i in sorted(set(range(len(seconds))) - set(running), key=lambda i: (seconds[i], -i)):
        queues.setdefault(gpus[i], []).append(i)
    now, last = 0.0, max((e for e, _ in ends), default=0.0)
    while queues:
        fitting = [queue[-1] for width, queue in queues.items() if width <= free]
        if not fitting:
            now, width = heapq.heappop(ends)
            free += width
            continue
        i = max(fitting, key=lambda i: (seconds[i], gpus[i], -i))
        queues[gpus[i]].pop()
        if not queues[gpus[i]]:
            del queues[gpus[i]]
        starts[i] = now
        free -= gpus[i]
        last = max(last, now + seconds[i])
        heapq.heappush(ends, (now + seconds[i], gpus[i]))
    return GangSchedule(tuple(starts), last, lower_bound(seconds, gpus, capacity))


def shortest_makespan(
    seconds: Sequence[float],
    gpus: Sequence[int],
    capacity: int,
    running: Sequence[int] = (),
    *,
    nodes: int = 2000,
) -> GangSchedule:
    """The best schedule found in a search of at most ``nodes`` nodes; proven optimal when its gap is 0.

    The limit counts nodes and not seconds, so the answer is the same on every machine. With ``running`` the optimum is
    over schedules that begin with those, and only a finished search can raise the bound to it.
    """
    first = longest_first(seconds, gpus, capacity, running)
    if first.gap <= _EPS:
        return first
    search = _ScheduleSearch(seconds, gpus, capacity, nodes, first.makespan, list(first.starts))
    open_tasks = tuple(sorted(set(range(len(seconds))) - set(running), key=lambda i: (-seconds[i], -gpus[i], i)))
    under_way = tuple((seconds[i], gpus[i]) for i in sorted(running))
    search.extend(0.0, -1, under_way, open_tasks, dict.fromkeys(running, 0.0))
    bound = search.best if search.nodes > 0 else first.bound
    return GangSchedule(tuple(search.starts), search.best, bound)


@dataclass(slots=True)
class _ScheduleSearch:
    """Depth-first search over tasks in order of their starts, each at its earliest start not before the last one's."""

    seconds: Sequence[float]
    gpus: Sequence[int]
    capacity: int
    nodes: int
    best: float
    starts: list[float]

    def extend(
        self,
        last: float,
        rank: int,
        ends: tuple[tuple[float, int], ...],
        left: tuple[int, ...],
        starts: dict[int, float],
    ) -> None:
        """Try every task as the next one; ``rank`` is the place in ``left``'s order of the task placed last."""
        if self.nodes <= 0:
            return
        self.nodes -= 1
        done_at = max((end for end, _ in ends), default=0.0)
        if not left:
            if done_at < self.best * (1 - _EPS):
                self.best, self.starts = done_at, [starts[i] for i in range(len(self.seconds))]
            return
        ends = tuple(sorted(e for e in ends if e[0] > last))
        earliest = {i: self._earliest(self.gpus[i], last, ends) for i in left}
        area = sum(g * (end - last) for end, g in ends) + sum(self.seconds[i] * self.gpus[i] for i in left)
        bound = max(done_at, last + area / self.capacity, *(earliest[i] + self.seconds[i] for i in left))
        if bound >= self.best * (1 - _EPS):
            return
        soonest = min(earliest[i] + self.seconds[i] for i in left)
        tried: set[tuple[float, int]] = set()
        for place, i in enumerate(left):
            like, start = (self.seconds[i], self.gpus[i]), earliest[i]
            # Equal tasks are interchangeable; those that start together need only one order; and a task must not
            # start so late that another could have been finished before it.
            if like in tried or (start == last and place < rank) or soonest <= start:
                continue
            tried.add(like)
            rest = left[:place] + left[place + 1 :]
            under_way = (*ends, (start + self.seconds[i], self.gpus[i]))
            self.extend(start, place, under_way, rest, {**starts, i: start})

    def _earliest(self, width: int, last: float, ends: tuple[tuple[float, int], ...]) -> float:
        free = self.capacity - sum(g for _, g in ends)
        for end, g in ends:
            if free >= width:
                break
            free += g
            last = end
        return last
