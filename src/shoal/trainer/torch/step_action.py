"""What is to be done after a step, the same in every rank: go on, save, or save and leave.

A rank that was warned says so at the next exchange, all know at the one after, and leave then. Exchanges come with each
step, or, where steps are short, with every so many; which they are, all ranks know.
"""

import time
from collections.abc import Sequence
from enum import IntEnum

from shoal.trainer.session import Session
from shoal.trainer.torch.agreement import Agreement


class Due(IntEnum):
    """What is due after a step; of two, the greater is more than the other."""

    NOTHING = 0
    SAVE = 1
    LEAVE = 2


_EXCHANGE_SECONDS = 0.5
"""How long ranks train, a step in any case, before they tell each other again who was warned: it costs a part of a
millisecond, which may be much of a step, and a job that is warned has seconds to leave."""

_MOST_STEPS = 50
"""Steps between two exchanges: were steps to become much longer all at once, this many of them must still be few."""


class Watch:
    """One rank's, over its session."""

    def __init__(self, session: Session, *, save_every: float) -> None:
        self._session = session
        self._save_every = save_every
        self._saved_at = time.monotonic()
        self._steps, self._stride, self._exchanged_at = 0, 1, time.monotonic()
        """Steps since the last exchange, how many there are to be until the next, and when the last was."""
        self.agreement = Agreement()
        self.exchanging = True
        """Whether an exchange comes with the step that is under way; only then are its figures asked for."""
        self.sums: list[float] = []
        """What the ranks' figures of the exchange before the last came to; empty until that is known."""

    def step(self, figures: Sequence[float] = ()) -> Due:
        """A step is done: what is due, as all ranks know it."""
        exchanging = self.exchanging
        self._steps += 1
        if not exchanging:
            self.exchanging = self._steps + 1 >= self._stride
            return Due.NOTHING
        heard = self.agreement.exchange((self._session.warned, self._wants_save(), self._wanted_stride(), *figures))
        leave, save, stride, *self.sums = heard or (0.0, 0.0, 1.0)
        self._steps, self._stride = 0, max(int(stride), 1)
        self.exchanging = self._stride == 1
        return Due.LEAVE if leave else Due.SAVE if save else Due.NOTHING

    def saved(self) -> None:
        """A checkpoint was begun."""
        self._saved_at = time.monotonic()
        self._session.secured()

    def _wanted_stride(self) -> int:
        """In how many steps rank 0 would next exchange; all ranks do what they hear it wanted, at the same step."""
        place = self._session.place
        if place.rank != 0 or place.world == 1:
            return 0
        before, self._exchanged_at = self._exchanged_at, time.monotonic()
        seconds = (self._exchanged_at - before) / self._steps
        return int(min(_EXCHANGE_SECONDS / max(seconds, 1e-6), _MOST_STEPS))

    def _wants_save(self) -> bool:
        if self._session.place.rank != 0:
            return False
        return self._session.lapsing or time.monotonic() - self._saved_at > self._save_every
