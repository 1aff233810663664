"""The best batch by what was timed on a job's own seats: measured times win over fitted ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.batch_limits import BatchLimits
from shoal.core.goodput import StepFit
from shoal.core.topology import Locality
from shoal.perf.goodput import best, iteration_seconds
from shoal.perf.timed_batches import Timed, best_timed, neighbour, range_of

LIMITS = BatchLimits(128, 4096, 8, 512)
FIT = StepFit((0.01, 0.001), (0.005, 0.001), (0.05, 0.002), (0.05, 0.002), 1.5, 256, 8, 2)
APART = Locality.CROSS_NODE


def as_fitted(*local: int, gpus: int = 8) -> Timed:
    seconds = (float(iteration_seconds(FIT, n, 0, gpus, APART)) for n in local)
    return {n: (FIT.compute[0] + FIT.compute[1] * n, step) for n, step in zip(local, seconds, strict=True)}


@given(noise=st.floats(0.0, 1e6), gpus=st.integers(2, 16), local=st.integers(8, 256))
def test_where_the_fit_is_right_it_is_the_batch_the_fit_gives(noise: float, gpus: int, local: int) -> None:
    found = best(FIT, LIMITS, noise, np.array([gpus]), np.array([int(APART)]))
    added = int(found.accumulation[0])
    chosen = best_timed(FIT, LIMITS, noise, gpus, APART, added, as_fitted(local, gpus=gpus))
    batch = gpus * chosen * (added + 1)
    seconds = float(iteration_seconds(FIT, chosen, added, gpus, APART))
    assert batch / seconds * (noise + 128) / (noise + batch) == pytest.approx(float(found.goodput[0]))


@given(slow=st.integers(40, 90), noise=st.floats(100.0, 1e5))
def test_a_batch_that_was_timed_as_slow_is_left_for_one_that_was_not(slow: int, noise: float) -> None:
    timed = as_fitted(slow - 8, slow, slow + 8)
    passing, step = timed[slow]
    chosen = best_timed(FIT, LIMITS, noise, 8, APART, 0, {**timed, slow: (passing, 3.0 * step)})
    assert chosen not in range(slow - 5, slow + 6)


def test_where_the_limits_leave_no_batch_there_is_none() -> None:
    assert range_of(LIMITS, 256, 1000, 0) == (8, 4)
    assert best_timed(FIT, LIMITS, 1e3, 1000, APART, 0, as_fitted(8, gpus=1000)) == 0


@given(gpus=st.integers(1, 64), added=st.integers(0, 4), noise=st.floats(0.0, 1e6))
def test_it_is_always_within_the_limits(gpus: int, added: int, noise: float) -> None:
    chosen = best_timed(replace(FIT, most_local=200), LIMITS, noise, gpus, APART, added, as_fitted(50, gpus=gpus))
    assert chosen == 0 or (8 <= chosen <= 200 and 128 <= chosen * gpus * (added + 1) <= 4096)


NEXT: dict[str, tuple[int, tuple[int, ...], int | None]] = {
    "first a quarter more": (80, (80,), 100),
    "then a quarter less": (80, (80, 100), 64),
    "then none": (80, (64, 80, 100), None),
    "nor where something nearer was timed": (80, (70, 80, 90), None),
    "what is farther away does not count": (80, (40, 80, 120), 100),
    "no more than fit": (200, (200,), 160),
    "up to what fits": (190, (190,), 200),
    "no fewer than allowed": (8, (8, 10), None),
}


@pytest.mark.parametrize("said", NEXT)
def test_the_neighbour_to_try(said: str) -> None:
    local, timed, expected = NEXT[said]
    assert neighbour(local, dict.fromkeys(timed, (1.0, 1.0)), 0.25, 8, 200) == expected
