"""Adaptation of a PyTorch run: gradients and times go in, a batch size and a learning rate come out, in all ranks.

Rank 0 decides; what it decides travels with the sums that ranks exchange, so that all change at the same step. A step's
gradients are looked at only where an exchange comes with it. Opt-in: a run without it trains at the batch size it was
given.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from shoal.core.job import BatchLimits, BatchSetting
from shoal.perf.batch_tuner import TICK
from shoal.perf.goodput import efficiency, fixed
from shoal.perf.noise import from_norms
from shoal.trainer.environment import RankEnvironment
from shoal.trainer.learning_rate import BatchScaling, Rule, rule_of
from shoal.trainer.schedules import BatchSchedule, EpochSummary, ScheduleState
from shoal.trainer.torch.gradients import Gradients
from shoal.trainer.tuner import RunTuner


@dataclass(frozen=True, slots=True)
class Adaptation:
    """How a run's batch size may change.

    With a ``schedule`` the script itself changes it. Without one the run looks for the batch that trains fastest
    within ``limits``, those it was submitted with where none are given, if its scheduler lets it or there is none.
    ``learning_rate`` is how the rate follows: ``adascale``, ``sqrt``, ``linear``, ``legw`` or a function of a
    ``BatchScaling``. ``tune_every`` is in seconds.
    """

    learning_rate: str | Rule = "adascale"
    limits: BatchLimits | None = None
    schedule: BatchSchedule | None = None
    tune_every: float = TICK


_LOOKS = 0.01
"""The part of training that looking at gradients may take by its own count; on a GPU it costs up to twice as much."""

_PAUSE = 3.0
"""How many times longer than usual a step counts for at most."""
_FOLLOW = 0.1
"""What a step's time counts in what is usual."""

_WARM_UP_STEPS = 3
"""Steps after a start or a change whose times do not count: caches are cold, buffers are made."""


class BatchAdaptation:
    """One run's adaptation, in this rank."""

    def __init__(self, model: Any, optimizer: Any, how: Adaptation, place: RankEnvironment) -> None:
        self._how = how
        self._rule = rule_of(how.learning_rate)
        self._optimizer = optimizer
        self._environment = place
        self._gradients = Gradients(model, optimizer, place.world)
        self._tuned_at = time.monotonic()
        self._memory: ScheduleState = {}
        self._norms: list[float] = []
        self._look = self._looking = self._even = False
        self._trained = self._usual = 0.0
        self._looked: tuple[tuple[float, int] | None, ...] = (None, None)
        """At the exchange before the last and at the last, how large the averaged gradients were, and of how many
        samples; how large each rank's own were is known an exchange later."""
        self._cold = _WARM_UP_STEPS
        self._noise = 0.0
        self._valued = (0, 0.0, 1.0)
        """A batch size, a noise scale, and what a sample counts with these."""
        self._limits = how.limits or place.limits
        self._tuner: RunTuner

    @property
    def choosing(self) -> bool:
        """Whether this chooses the batch, and not the script or the scheduler."""
        allowed = not self._environment.managed or self._environment.batch == 0
        return self._how.schedule is None and self._limits is not None and allowed

    def start(self, batch: int, state: Mapping[str, Any] | None) -> BatchLimits:
        """Begin with the script's batch size, or go on as saved; between what the batch may be."""
        self._limits = self._limits or fixed(batch if state is None else state["initial"])
        self._tuner = RunTuner.of(
            self._limits, self._environment.kind, self._environment.world, self._environment.nodes
        )
        if state is not None:
            self._tuner.restore(state["tuner"])
            self._memory, self._norms = dict(state["memory"]), list(state["norms"])
            self._noise = self._tuner.noise.samples
        return self._limits

    def first(self) -> tuple[BatchSetting, int]:
        """The setting to start with on these GPUs, and the samples of a pass on each."""
        return self._tuner.chosen

    def state(self) -> dict[str, Any]:
        """What is to be saved with the run."""
        initial = self._tuner.initial
        return {"initial": initial, "tuner": self._tuner.state(), "memory": dict(self._memory), "norms": self._norms}

    # ── step by step ──────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, *, even: bool, exchanging: bool) -> None:
        """A step begins, of as many samples on every rank or not, which ends with an exchange or not."""
        self._even = even
        self._looking = even and exchanging and self._look
        self._gradients.begin(look=self._looking)

    def before_step(self) -> None:
        """The optimizer is about to step."""
        self._gradients.before_step()

    def end(self, now: BatchSetting, local: int, seconds: Sequence[float]) -> None:
        """A step has ended, whose passes took so long."""
        if self._looking:
            self._norms.append(sqrt(self._gradients.mean_square))
        if self._environment.rank != 0:
            return
        # A script may do something else between two steps, which is no training to look at gradients in.
        took = min(sum(seconds), _PAUSE * self._usual) if self._usual else sum(seconds)
        self._usual += (took - self._usual) * (_FOLLOW if self._usual else 1.0)
        self._trained += took
        if self._even:
            self._time(local, seconds)
        if (found := self._gradients.compared(now.size)) is not None:
            self._tuner.add_noise(found, now.size)

    def figures(self, now: BatchSetting) -> tuple[float, ...]:
        """What this rank adds to the ranks' figures at an exchange."""
        if self._environment.rank != 0:
            return self._gradients.local_square, 0.0, 0.0, 0.0, 0.0, 0.0
        seen = (self._gradients.mean_square, now.size) if self._looking and self._environment.world > 1 else None
        self._looked = self._looked[-1], seen
        wish, wished_local = BatchSetting(0), 0
        if self.choosing and time.monotonic() - self._tuned_at >= self._how.tune_every:
            self._tuned_at = time.monotonic()
            wish, wished_local = self._tuner.tick(now.size)
        look = self._gradients.spent <= _LOOKS * self._trained
        wished = float(wish.size), float(wish.accumulation), float(wished_local)
        return self._gradients.local_square, *wished, self._tuner.noise.samples, float(look)

    def hear(self, sums: Sequence[float]) -> tuple[BatchSetting, int]:
        """The ranks' figures of the exchange before: the batch and the samples a pass to train with from now on; 0 for
        no change."""
        local_squares, batch, accumulation, local, self._noise, look = sums
        self._look = look > 0 or self._gradients.copied
        if self._looked[0] is not None:
            mean_square, size = self._looked[0]
            world = self._environment.world
            self._tuner.add_noise(from_norms(local_squares / world, mean_square, size // world, world), size)
        return BatchSetting(int(batch), int(accumulation)), int(local)

    def changed(self) -> None:
        """The batch was changed."""
        self._cold = _WARM_UP_STEPS

    def rate_factor(self, batch: int, epochs: float) -> float:
        """What the learning rate is to be multiplied with."""
        initial = self._tuner.initial
        return 1.0 if batch == initial else self._rule(BatchScaling(initial, batch, self._noise, epochs))

    def efficiency(self, batch: int) -> float:
        """What a sample counts; all the same where the script says what it trains with."""
        if (batch, self._noise) != self._valued[:2]:
            worth = float(efficiency(self._noise, self._tuner.initial, batch)) if self.choosing else 1.0
            self._valued = batch, self._noise, worth
        return self._valued[2]

    def report(self, now: BatchSetting) -> dict[str, Any] | None:
        """The run's goodput report as plain values; None where the run does not choose its batch or has none yet."""
        return self._tuner.report(now) if self.choosing else None

    def epoch_ended(self, epochs: int, batch: int) -> int:
        """The batch size of the next epoch; to be called in rank 0 only."""
        norm = sum(self._norms) / len(self._norms) if self._norms else 0.0
        self._norms = []
        if self._how.schedule is None:
            return batch
        rate = float(self._optimizer.param_groups[0]["lr"])
        seen = EpochSummary(epochs, batch, self._tuner.noise.samples, norm, rate)
        chosen, self._memory = self._how.schedule.next(seen, self._memory)
        return chosen

    def _time(self, local: int, seconds: Sequence[float]) -> None:
        if self._cold:
            self._cold -= 1
            return
        *passes, step = seconds
        alone = sum(passes) / len(passes) if passes else step - self._gradients.exposed
        self._tuner.add_step(local, max(alone, 1e-9), step)
