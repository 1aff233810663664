"""The noise scale: exact on a quadratic with known gradient covariance, whatever the replicas and the optimizer."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.perf.noise import NOISIEST, NoiseEstimate, NoiseScale, from_norms

DRAWS = 10_000
CHANCE = np.random.default_rng(20211014)
CURVATURE = np.exp(CHANCE.uniform(-2, 2, 48))
SPREAD = 5.0 * np.exp(CHANCE.uniform(-1, 1, 48))
POINT = CHANCE.standard_normal(48)
"""½ Σ h·w², of which a sample's gradient at w is h·w plus noise of this spread, coordinate by coordinate."""

GRADIENT = CURVATURE * POINT
ADAM = 1.0 / np.sqrt(GRADIENT**2 + SPREAD**2 / 32)
OPTIMIZERS = {"sgd": np.ones(48), "adam": ADAM}


def from_gradients(gradients: Floats, local_batch: int, preconditioner: Floats | float = 1.0) -> NoiseEstimate:
    """Estimate from gradients, a row each, of replicas, of added passes or of two steps in a row."""
    seen = gradients * preconditioner
    mean = seen.mean(axis=0)
    return from_norms(float((seen**2).sum()) / len(seen), float(mean @ mean), local_batch, len(seen))


def exact(preconditioner: Floats) -> float:
    """The trace of the preconditioned covariance over the preconditioned gradient's squared norm."""
    return float(((preconditioner * SPREAD) ** 2).sum() / ((preconditioner * GRADIENT) ** 2).sum())


def drawn(count: int, batch: int, chance: np.random.Generator) -> Floats:
    """So many gradients, each the mean over a batch."""
    return GRADIENT + SPREAD / math.sqrt(batch) * chance.standard_normal((count, 48))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("replicas", "passes"), [(1, 1), (1, 4), (2, 1), (2, 2), (8, 1)])
def test_ten_thousand_draws_give_the_exact_noise_scale_within_five_percent(
    optimizer: str, replicas: int, passes: int
) -> None:
    preconditioner, chance = OPTIMIZERS[optimizer], np.random.default_rng(17)
    found, batch, count = NoiseScale(), 4, replicas * passes
    before = drawn(1, batch, chance)[0]
    for step in range(DRAWS):
        gradients = drawn(count, batch, chance)
        if count == 1:
            seen, before = from_gradients(np.stack((before, gradients[0])), batch, preconditioner), gradients[0]
        else:
            seen = from_gradients(gradients, batch, preconditioner)
        found = found.observed(seen, decay=step / (step + 1))  # every draw weighs the same
    assert found.samples == pytest.approx(exact(preconditioner), rel=0.05)


def test_adams_preconditioner_makes_another_noise_scale() -> None:
    assert abs(exact(OPTIMIZERS["adam"]) / exact(OPTIMIZERS["sgd"]) - 1) > 0.2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_differenced_estimate_follows_a_training_that_descends_slowly(optimizer: str) -> None:
    # 10,000 steps in which the gradient shrinks by a fifth; the exact figures are averaged the same way.
    preconditioner, chance = OPTIMIZERS[optimizer], np.random.default_rng(3)
    found, truth = NoiseScale(), NoiseScale()
    scale, before = 1.0, drawn(1, 8, chance)[0]
    for _ in range(DRAWS):
        scale *= 0.8 ** (1 / DRAWS)
        now = drawn(1, 8, chance)[0] + (scale - 1.0) * GRADIENT
        found = found.observed(from_gradients(np.stack((before, now)), 8, preconditioner))
        square = float(((preconditioner * GRADIENT * scale) ** 2).sum())
        truth = truth.observed(NoiseEstimate(square, float(((preconditioner * SPREAD) ** 2).sum())))
        before = now
    assert found.samples == pytest.approx(truth.samples, rel=0.05)


@given(st.integers(2, 9), st.integers(1, 64), st.integers(0, 2**32 - 1))
def test_two_norms_give_the_variance_of_the_gradients(count: int, batch: int, seed: int) -> None:
    gradients = np.random.default_rng(seed).standard_normal((count, 5)) + 1.0
    sample_variance = gradients.var(axis=0, ddof=1).sum()
    assert from_gradients(gradients, batch).variance == pytest.approx(batch * sample_variance)


def test_equal_gradients_have_no_noise() -> None:
    seen = from_gradients(np.ones((4, 3)), 8)
    assert seen == NoiseEstimate(3.0, 0.0)
    assert NoiseScale().observed(seen).samples == 0.0


@pytest.mark.parametrize(
    ("estimate", "samples"),
    [
        (NoiseEstimate(0.0, 0.0), 0.0),
        (NoiseEstimate(-1.0, 2.0), NOISIEST),
        (NoiseEstimate(2.0, -1.0), 0.0),
        (NoiseEstimate(4.0, 8.0), 2.0),
    ],
)
def test_a_noise_scale_is_a_number_of_samples_whatever_chance_gave(estimate: NoiseEstimate, samples: float) -> None:
    assert NoiseScale().observed(estimate).samples == samples


def test_a_first_observation_counts_in_full_and_later_ones_by_their_decay() -> None:
    first = NoiseScale().observed(NoiseEstimate(2.0, 6.0), decay=0.9)
    assert first.mean.square == pytest.approx(2.0)
    second = first.observed(NoiseEstimate(4.0, 2.0), decay=0.9)
    assert second.mean.square == pytest.approx((0.9 * 2.0 + 4.0) / 1.9)
    assert second.mean.variance == pytest.approx((0.9 * 6.0 + 2.0) / 1.9)
    assert second.samples == pytest.approx((0.9 * 6.0 + 2.0) / (0.9 * 2.0 + 4.0))
    assert NoiseScale().mean == NoiseEstimate(0.0, 0.0)


def test_numerator_and_denominator_are_averaged_apart() -> None:
    # The mean of the quotients would be 5.5, and infinite with one small enough denominator.
    seen = NoiseScale().observed(NoiseEstimate(1.0, 10.0), decay=0.5).observed(NoiseEstimate(10.0, 10.0), decay=0.5)
    assert seen.samples == pytest.approx((0.5 * 10 + 10) / (0.5 * 1 + 10))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: from_norms(1.0, 1.0, 8, 1), "count, local_batch"),
        (lambda: from_norms(1.0, 1.0, 0, 2), "count, local_batch"),
        (lambda: NoiseScale().observed(NoiseEstimate(1.0, 1.0), decay=1.0), "decay"),
    ],
)
def test_what_cannot_be_estimated_is_refused(wrong: Callable[[], object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        wrong()
    assert refused.value.field == field
