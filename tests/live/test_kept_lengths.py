"""Predicted lengths for views: at a bounded cost for a busy loop, and up to date as soon as it is not."""

from dataclasses import dataclass

import numpy as np

from shoal.core.arrays import Indices
from shoal.core.lengths import JobLength, PredictedWork, nothing_predicted
from shoal.live.kept_lengths import KeptLengths


@dataclass(slots=True)
class Spent:
    """Seconds on a clock and CPU seconds."""

    now: float = 0.0
    cpu: float = 0.0


@dataclass(slots=True)
class Lengths:
    """Predictions that cost CPU seconds to prepare."""

    spent: Spent
    cost: float
    prepared: bool = False

    @property
    def rows(self) -> Indices:
        return np.arange(1)

    @property
    def left(self) -> PredictedWork:
        return nothing_predicted(1)

    def keep(self) -> None:
        self.spent.cpu += self.cost
        self.prepared = True

    def given(self, job: int, done: float) -> JobLength | None:
        return None


def offered(cost: float, decisions: int) -> tuple[KeptLengths, Spent, Lengths]:
    """Offer the predictions of decisions 10 ms apart; return the last ones too."""
    spent = Spent()
    kept = KeptLengths(clock=lambda: spent.now, cpu=lambda: spent.cpu)
    for _ in range(decisions):
        last = Lengths(spent, cost)
        kept.offer(last)
        spent.now += 0.01
    return kept, spent, last


def test_a_busy_loop_spends_a_twentieth_of_its_time_on_predictions() -> None:
    kept, spent, last = offered(cost=0.02, decisions=1000)
    assert 0.04 * spent.now < spent.cpu < 0.06 * spent.now
    assert kept.view is not None
    assert not last.prepared


def test_an_idle_loop_prepares_the_last_predictions_once() -> None:
    kept, spent, last = offered(cost=0.02, decisions=2)
    kept.catch_up(busy=False)
    assert kept.view is last
    assert last.prepared
    before = spent.cpu
    kept.catch_up(busy=False)
    assert spent.cpu == before


def test_predictions_that_cost_little_are_those_of_the_last_decision() -> None:
    kept, _, last = offered(cost=0.0005, decisions=3)
    assert kept.view is last


def test_predictions_are_dropped_as_soon_as_there_is_nothing_to_predict() -> None:
    kept, _, last = offered(cost=0.0, decisions=1)
    views = [kept.view]
    kept.offer(None)
    views.append(kept.view)
    kept.catch_up(busy=False)
    assert [*views, kept.view] == [last, None, None]
