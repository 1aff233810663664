"""Adaptation of a PyTorch run's batch size and learning rate to measured gradients and step times, in all ranks.

Rank 0 decides; its decision is sent with the sums that ranks exchange, so that all ranks change at the same step.
Gradients are measured only in steps that end with an exchange. Adaptation is opt-in: a run without it keeps its batch
size.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from shoal.core.batch_limits import BatchLimits
from shoal.core.job import BatchSetting
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

    With a ``schedule`` the script changes it. Otherwise the run searches for the batch size with the best goodput
    within ``limits`` (by default those of its submission), if there is no scheduler or the scheduler allows it.
    ``learning_rate`` is the rule that scales the learning rate: ``adascale``, ``sqrt``, ``linear``, ``legw`` or a
    function of a ``BatchScaling``. ``tune_every`` is in seconds.
    """

    learning_rate: str | Rule = "adascale"
    limits: BatchLimits | None = None
    schedule: BatchSchedule | None = None
    tune_every: float = TICK


_MEASURING_SHARE = 0.01
"""Fraction of training time for measuring gradients, by the time this rank counts.

On a GPU it costs up to twice as much.
"""

_LONGEST_STEP = 3.0
"""A step counts as at most this many times the mean step."""
_STEP_WEIGHT = 0.1
"""Weight of one step in the mean step time."""

_WARM_UP_STEPS = 3
"""Steps after a start or a change that are not timed: caches are cold and buffers are allocated."""


class BatchAdaptation:
    """Adaptation of one run in this rank."""

    def __init__(self, model: Any, optimizer: Any, options: Adaptation, environment: RankEnvironment) -> None:
        self._options = options
        self._rule = rule_of(options.learning_rate)
        self._optimizer = optimizer
        self._environment = environment
        self._gradients = Gradients(model, optimizer, environment.world)
        self._tuned_at = time.monotonic()
        self._schedule_state: ScheduleState = {}
        self._norms: list[float] = []
        self._measure = self._measuring = self._even = False
        self._trained_seconds = self._mean_seconds = 0.0
        self._mean_squares: tuple[tuple[float, int] | None, ...] = (None, None)
        """Squared norm of the averaged gradients and batch size, at the exchange before the last and at the last.

        The sum of the ranks' own squared norms arrives one exchange later."""
        self._warming = _WARM_UP_STEPS
        self._noise = 0.0
        self._efficiency = (0, 0.0, 1.0)
        """Batch size, noise scale, and the efficiency of a sample with these."""
        self._limits = options.limits or environment.limits
        self._tuner: RunTuner

    @property
    def choosing(self) -> bool:
        """Whether the run itself chooses the batch size, rather than the script or the scheduler."""
        allowed = not self._environment.managed or self._environment.batch == 0
        return self._options.schedule is None and self._limits is not None and allowed

    def start(self, batch: int, state: Mapping[str, Any] | None) -> BatchLimits:
        """Start with the script's batch size, or from a saved state; returns the limits of the batch size."""
        self._limits = self._limits or fixed(batch if state is None else state["initial"])
        self._tuner = RunTuner.of(
            self._limits, self._environment.kind, self._environment.world, self._environment.nodes
        )
        if state is not None:
            self._tuner.restore(state["tuner"])
            self._schedule_state, self._norms = dict(state["memory"]), list(state["norms"])
            self._noise = self._tuner.noise.samples
        return self._limits

    def first_setting(self) -> tuple[BatchSetting, int]:
        """The setting to start with on these GPUs, and the samples of a pass on each."""
        return self._tuner.chosen

    def state(self) -> dict[str, Any]:
        """State for the run's checkpoint, as plain values."""
        initial = self._tuner.initial
        return {
            "initial": initial,
            "tuner": self._tuner.state(),
            "memory": dict(self._schedule_state),
            "norms": self._norms,
        }

    # ── step by step ──────────────────────────────────────────────────────────────────────────────────────────────

    def begin_step(self, *, even: bool, exchanging: bool) -> None:
        """Begin a step.

        ``even``: all ranks have equal numbers of samples. ``exchanging``: the step ends with an exchange.
        """
        self._even = even
        self._measuring = even and exchanging and self._measure
        self._gradients.begin(look=self._measuring)

    def before_step(self) -> None:
        """Measure gradients if due; called just before the optimizer steps."""
        self._gradients.before_step()

    def end_step(self, now: BatchSetting, local: int, seconds: Sequence[float]) -> None:
        """End a step; ``seconds`` are those of its passes."""
        if self._measuring:
            self._norms.append(sqrt(self._gradients.mean_square))
        if self._environment.rank != 0:
            return
        # A script may do something else between two steps; that time does not count as training.
        took = min(sum(seconds), _LONGEST_STEP * self._mean_seconds) if self._mean_seconds else sum(seconds)
        self._mean_seconds += (took - self._mean_seconds) * (_STEP_WEIGHT if self._mean_seconds else 1.0)
        self._trained_seconds += took
        if self._even:
            self._time_step(local, seconds)
        if (found := self._gradients.compared(now.size)) is not None:
            self._tuner.add_noise(found, now.size)

    def exchange_values(self, now: BatchSetting) -> tuple[float, ...]:
        """Values that this rank adds to the sums of an exchange."""
        if self._environment.rank != 0:
            return self._gradients.local_square, 0.0, 0.0, 0.0, 0.0, 0.0
        seen = (self._gradients.mean_square, now.size) if self._measuring and self._environment.world > 1 else None
        self._mean_squares = self._mean_squares[-1], seen
        chosen, local = BatchSetting(0), 0
        if self.choosing and time.monotonic() - self._tuned_at >= self._options.tune_every:
            self._tuned_at = time.monotonic()
            chosen, local = self._tuner.tick(now.size)
        measure = self._gradients.spent <= _MEASURING_SHARE * self._trained_seconds
        setting = float(chosen.size), float(chosen.accumulation), float(local)
        return self._gradients.local_square, *setting, self._tuner.noise.samples, float(measure)

    def apply_exchange(self, sums: Sequence[float]) -> tuple[BatchSetting, int]:
        """Apply the sums of the previous exchange.

        Returns the setting and the samples of a pass to train with from now on; a size of 0 means no change.
        """
        local_squares, batch, accumulation, local, self._noise, measure = sums
        self._measure = measure > 0 or self._gradients.copied
        if self._mean_squares[0] is not None:
            mean_square, size = self._mean_squares[0]
            world = self._environment.world
            self._tuner.add_noise(from_norms(local_squares / world, mean_square, size // world, world), size)
        return BatchSetting(int(batch), int(accumulation)), int(local)

    def batch_changed(self) -> None:
        """Restart the warm-up after a change of batch size."""
        self._warming = _WARM_UP_STEPS

    def rate_factor(self, batch: int, epochs: float) -> float:
        """Factor for the learning rate."""
        initial = self._tuner.initial
        return 1.0 if batch == initial else self._rule(BatchScaling(initial, batch, self._noise, epochs))

    def efficiency(self, batch: int) -> float:
        """Effective samples per sample; 1 if the run does not choose its batch size."""
        if (batch, self._noise) != self._efficiency[:2]:
            value = float(efficiency(self._noise, self._tuner.initial, batch)) if self.choosing else 1.0
            self._efficiency = batch, self._noise, value
        return self._efficiency[2]

    def report(self, now: BatchSetting) -> dict[str, Any] | None:
        """The run's goodput report as plain values.

        None if the run does not choose its batch size or has no report yet.
        """
        return self._tuner.report(now) if self.choosing else None

    def epoch_ended(self, epochs: int, batch: int) -> int:
        """Batch size of the next epoch; call it in rank 0 only."""
        norm = sum(self._norms) / len(self._norms) if self._norms else 0.0
        self._norms = []
        if self._options.schedule is None:
            return batch
        rate = float(self._optimizer.param_groups[0]["lr"])
        seen = EpochSummary(epochs, batch, self._tuner.noise.samples, norm, rate)
        chosen, self._schedule_state = self._options.schedule.next(seen, self._schedule_state)
        return chosen

    def _time_step(self, local: int, seconds: Sequence[float]) -> None:
        if self._warming:
            self._warming -= 1
            return
        *passes, step = seconds
        alone = sum(passes) / len(passes) if passes else step - self._gradients.exposed
        self._tuner.add_step(local, max(alone, 1e-9), step)
