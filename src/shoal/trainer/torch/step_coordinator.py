"""Decision after each step, equal in every rank: continue, save, or save and leave.

A rank that was asked to stop announces it at the next exchange; all ranks see the announcement one exchange later and
leave then. With short steps an exchange covers several steps; all ranks agree on how many.
"""

import time
from collections.abc import Sequence
from enum import IntEnum

from shoal.trainer.session import Session
from shoal.trainer.torch.rank_exchange import RankExchange


class StepAction(IntEnum):
    """Action after a step, ordered by severity: LEAVE implies SAVE."""

    NOTHING = 0
    SAVE = 1
    LEAVE = 2


_EXCHANGE_SECONDS = 0.5
"""Seconds of training between two exchanges, one step at least.

An exchange costs a fraction of a millisecond, which may be much of a short step, and a job that is asked to stop has
seconds to leave.
"""

_MOST_STEPS = 50
"""Most steps between two exchanges, for the case that steps suddenly become much longer."""


class StepCoordinator:
    """Coordinator of one rank."""

    def __init__(self, session: Session, *, save_every: float) -> None:
        self._session = session
        self._save_every = save_every
        self._saved_at = time.monotonic()
        self._steps, self._stride, self._exchanged_at = 0, 1, time.monotonic()
        """Steps since the last exchange, steps planned until the next, and the time of the last."""
        self.exchange = RankExchange()
        self.exchanging = True
        """Whether the step under way ends with an exchange; only then are its numbers used."""
        self.sums: list[float] = []
        """Sums of the exchange before the last; empty until they are known."""

    def step(self, figures: Sequence[float] = ()) -> StepAction:
        """Report a finished step with this rank's numbers; returns the action all ranks take now."""
        exchanging = self.exchanging
        self._steps += 1
        if not exchanging:
            self.exchanging = self._steps + 1 >= self._stride
            return StepAction.NOTHING
        sums = self.exchange.exchange((self._session.warned, self._wants_save(), self._wanted_stride(), *figures))
        leave, save, stride, *self.sums = sums or (0.0, 0.0, 1.0)
        self._steps, self._stride = 0, max(int(stride), 1)
        self.exchanging = self._stride == 1
        return StepAction.LEAVE if leave else StepAction.SAVE if save else StepAction.NOTHING

    def saved(self) -> None:
        """Record that a checkpoint was started."""
        self._saved_at = time.monotonic()
        self._session.secured()

    def _wanted_stride(self) -> int:
        """Steps until the next exchange as rank 0 proposes, 0 in other ranks; all ranks use the sum."""
        environment = self._session.environment
        if environment.rank != 0 or environment.world == 1:
            return 0
        before, self._exchanged_at = self._exchanged_at, time.monotonic()
        seconds = (self._exchanged_at - before) / self._steps
        return int(min(_EXCHANGE_SECONDS / max(seconds, 1e-6), _MOST_STEPS))

    def _wants_save(self) -> bool:
        if self._session.environment.rank != 0:
            return False
        return self._session.lapsing or time.monotonic() - self._saved_at > self._save_every
