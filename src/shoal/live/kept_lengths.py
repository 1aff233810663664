"""The predicted lengths that views show: those of the last decision or, on a busy cluster, of one shortly before it.

Predictions must be prepared before other threads may read them, which takes milliseconds where jobs have hundreds of
different names. So a loop that has more events to decide on spends a limited part of its time on that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic, thread_time

from shoal.core.lengths import LengthView
from shoal.core.units import Seconds

_FREE: Seconds = 0.001
"""CPU seconds of a preparation after which the next may follow at once."""

_REST = 20.0
"""Seconds from a longer one to the next, for each CPU second, while the loop is busy."""


@dataclass(slots=True)
class KeptLengths:
    """Predictions that any thread may read. ``offer`` and ``catch_up`` are called by the loop's thread."""

    view: LengthView | None = None
    """The predictions last prepared; jobs submitted since are not in them."""
    clock: Callable[[], Seconds] = monotonic
    cpu: Callable[[], Seconds] = thread_time
    _waiting: LengthView | None = None
    _not_before: Seconds = -inf

    def offer(self, lengths: LengthView | None) -> None:
        """Take a decision's predictions, and prepare them if the last preparation was long enough ago.

        With None, where there is nothing to predict, views show no predictions any more.
        """
        if lengths is None:
            self.view = self._waiting = None
            return
        lengths.left  # noqa: B018  # whoever reads the decision's snapshot may read this much of them
        self._waiting = lengths
        self.catch_up(busy=True)

    def catch_up(self, *, busy: bool) -> None:
        """Prepare the predictions offered last, unless they are prepared; a ``busy`` loop does so only now and then."""
        if self._waiting is None or (busy and self.clock() < self._not_before):
            return
        lengths, self._waiting = self._waiting, None
        began = self.cpu()
        lengths.keep()
        took = self.cpu() - began
        self.view = lengths
        self._not_before = self.clock() + (_REST * took if took > _FREE else 0.0)
