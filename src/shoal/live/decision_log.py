"""When each decision was made, and which jobs the latest ones moved."""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from shoal.core.units import JobId, Seconds, TenantId

_MOST_TIMES = 500_000
_MOST_MOVED = 2_000
"""Decisions whose times, and whose moves, are kept; the latest, and of times up to an eighth more for a while."""
_MOST_MOVES = 20_000
"""Moves that are kept in all, beside those of the last decision: one decision can move thousands of jobs."""

Move: TypeAlias = tuple[str, JobId, TenantId]
"""The verb of a command, its job, and the job's tenant."""


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """A decision that moved jobs: its number, its time in seconds since the journal began, and the moves."""

    number: int
    at: Seconds
    moves: tuple[Move, ...]


@dataclass(slots=True)
class DecisionLog:
    """The latest decisions. After ``note`` of each decision in a journal, ``number_to`` sets their numbers."""

    _times: "array[float]" = field(default_factory=lambda: array("d"))
    _moved: deque[LoggedDecision] = field(default_factory=deque)
    _moves: int = 0
    """The number of moves in ``_moved``."""
    _first: int = 0
    """Number of the first decision in ``_times``."""
    took: Seconds = 0.0
    """Seconds from the events to the durable record of the decision that is noted next."""
    watch: Callable[[int, Seconds, tuple[Move, ...]], None] | None = None
    """Called with the number, the seconds and the moves of each decision, under the control plane's lock."""

    def note(self, at: Seconds, moves: Iterable[Move]) -> None:
        """Add a decision."""
        found = tuple(moves)
        if self.watch is not None:
            self.watch(self.count, self.took, found)
        if found:
            self._moved.append(LoggedDecision(self.count, at, found))
            self._moves += len(found)
            while len(self._moved) > _MOST_MOVED or (self._moves > _MOST_MOVES and len(self._moved) > 1):
                self._moves -= len(self._moved.popleft().moves)
        self._times.append(at)
        if (more := len(self._times) - _MOST_TIMES) >= _MOST_TIMES // 8:
            del self._times[:more]
            self._first += more

    @property
    def count(self) -> int:
        """The number of the next decision."""
        return self._first + len(self._times)

    def number_to(self, count: int) -> None:
        """Number the decisions noted so far so that the next one is ``count``."""
        shift = count - self.count
        self._first += shift
        self._moved = deque(LoggedDecision(each.number + shift, each.at, each.moves) for each in self._moved)

    def at(self, number: int) -> Seconds | None:
        """Return the time of a decision; None if it is not known."""
        return self._times[number - self._first] if self._first <= number < self.count else None

    def number_at(self, at: Seconds) -> int | None:
        """Return the number of the last decision made at exactly this time; None if none was."""
        found = bisect_left(self._times, at)
        if found == len(self._times) or self._times[found] != at:
            return None
        while found + 1 < len(self._times) and self._times[found + 1] == at:
            found += 1
        return self._first + found

    def moved(self, before: int | None = None) -> Iterator[LoggedDecision]:
        """Return the decisions that moved jobs, the latest first, from the one before number ``before`` on."""
        return (each for each in reversed(self._moved) if before is None or each.number < before)
