"""What is to be done after a step, the same in every rank: go on, save, or save and leave.

A rank that was warned says so at the end of its step; all know at the end of the next, and leave then.
"""

import time
from collections.abc import Sequence
from enum import Enum

from shoal.trainer.agreement import Agreement
from shoal.trainer.session import Session


class Due(Enum):
    """What is due after a step."""

    NOTHING = 0
    SAVE = 1
    LEAVE = 2


class Watch:
    """One rank's, over its session; ``figures`` are what else the ranks add up at each step."""

    def __init__(self, session: Session, *, save_every: float, figures: int = 0) -> None:
        self._session = session
        self._save_every = save_every
        self._saved_at = time.monotonic()
        self.agreement = Agreement(2 + figures)
        self.sums: list[float] = []
        """What the ranks' figures of the step before the last came to; empty until that is known."""

    def step(self, figures: Sequence[float] = ()) -> Due:
        """A step is done: what is due, as all ranks know it."""
        heard = self.agreement.exchange((self._session.warned, self._wants_save(), *figures))
        if heard is None:
            return Due.NOTHING
        leave, save, *self.sums = heard
        return Due.LEAVE if leave else Due.SAVE if save else Due.NOTHING

    def saved(self) -> None:
        """A checkpoint was begun."""
        self._saved_at = time.monotonic()
        self._session.secured()

    def _wants_save(self) -> bool:
        if self._session.place.rank != 0:
            return False
        return self._session.lapsing or time.monotonic() - self._saved_at > self._save_every
