"""Goodput: step time between its bounds, efficiency as the paper has it, and the batch chosen is the best there is."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError
from shoal.core.goodput import StepFit
from shoal.core.topology import Locality
from shoal.perf.goodput import best, best_of_many, efficiency, fixed, iteration_seconds, sync_seconds

SAME, NODE, RACK = Locality

CIFAR = StepFit((0.02, 0.0005), (0.01, 0.001), (0.08, 0.002), (0.12, 0.002), 2.5, 1024)
CIFAR_LIMITS = BatchLimits(128, 4096, 32, 1024)


def seconds(low: float, high: float) -> st.SearchStrategy[float]:
    """Times whose logarithms are spread evenly."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


def pairs() -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(seconds(1e-4, 10.0), st.one_of(st.just(0.0), seconds(1e-6, 0.1)))


def fits(most_local: int = 4096) -> st.SearchStrategy[StepFit]:
    compute = st.tuples(st.one_of(st.just(0.0), seconds(1e-4, 1.0)), seconds(1e-5, 0.1))
    return st.builds(
        StepFit, compute, pairs(), pairs(), pairs(), st.floats(1.0, 10.0), st.integers(1, most_local), gpus=st.just(8)
    )


def noises() -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), seconds(1.0, 1e9))


@st.composite
def small_limits(draw: st.DrawFn) -> BatchLimits:
    initial = draw(st.integers(1, 60))
    most_local = draw(st.integers(1, 40))
    return BatchLimits(initial, initial + draw(st.integers(1, 200)), draw(st.integers(1, most_local)), most_local)


@given(fits(), st.integers(1, 4096), st.integers(1, 256), st.sampled_from(Locality))
def test_a_step_lasts_from_the_longer_of_pass_and_sync_to_their_sum(
    fit: StepFit, local: int, gpus: int, apart: Locality
) -> None:
    once = fit.compute[0] + fit.compute[1] * local
    sync = float(sync_seconds(fit, gpus, apart))
    step = float(iteration_seconds(fit, local, 0, gpus, apart))
    assert max(once, sync) * (1 - 1e-12) <= step <= (once + sync) * (1 + 1e-12)
    accumulated = float(iteration_seconds(fit, local, 3, gpus, apart))
    assert accumulated == pytest.approx(3 * once + step)
    assert sync > 0 if gpus > 1 else sync == 0.0


@pytest.mark.parametrize(
    ("gpus", "apart", "expected"),
    [(1, SAME, 0.0), (2, SAME, 0.01), (4, SAME, 0.012), (2, NODE, 0.08), (8, NODE, 0.092), (8, RACK, 0.132)],
)
def test_synchronising_takes_the_pair_of_the_farthest_distance(gpus: int, apart: Locality, expected: float) -> None:
    assert float(sync_seconds(CIFAR, gpus, apart)) == pytest.approx(expected)


def test_a_steep_overlap_of_times_far_apart_stays_finite() -> None:
    extreme = StepFit((1e-60, 1e-60), (1e60, 0.0), (1e60, 0.0), (0.0, 0.0), 10.0, 64)
    assert float(iteration_seconds(extreme, 1, 0, 2, SAME)) == pytest.approx(1e60)
    assert float(iteration_seconds(extreme, 1, 0, 2, RACK)) == pytest.approx(2e-60)
    found = best(extreme, BatchLimits(8, 64, 1, 64), 100.0, np.array([1, 2, 4]), np.array([SAME, SAME, RACK]))
    assert np.all(np.isfinite(found.goodput))
    assert np.all(found.goodput > 0)


@given(noises(), st.integers(1, 10_000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_efficiency_is_one_at_the_initial_batch_and_falls_but_never_to_zero(
    noise: float, initial: int, more: int, yet_more: int
) -> None:
    near, far = (
        float(efficiency(noise, initial, initial + more)),
        float(efficiency(noise, initial, initial + more + yet_more)),
    )
    assert float(efficiency(noise, initial, initial)) == 1.0
    assert 0 < far <= near <= 1
    assert efficiency(math.inf, initial, initial + more) == pytest.approx(1.0)


def on_the_grid(fit: StepFit, limits: BatchLimits, noise: float, gpus: int, apart: Locality) -> float:
    """The best goodput of all whole numbers of samples and passes; 0 where none is allowed."""
    local = np.arange(limits.least_local, min(fit.most_local, limits.most_local) + 1)[None, :]
    added = np.arange(limits.most // (gpus * limits.least_local) + 1)[:, None]
    batch = gpus * local * (added + 1)
    allowed = (batch >= limits.initial) & (batch <= limits.most)
    reached = batch / iteration_seconds(fit, local, added, gpus, apart) * efficiency(noise, limits.initial, batch)
    return float(np.max(np.where(allowed, reached, 0.0), initial=0.0))


@given(fits(most_local=40), small_limits(), noises(), st.integers(1, 9), st.sampled_from(Locality))
@example(StepFit((0.0, 0.1), (0.1, 0.0), (0.1, 0.0), (0.1, 0.0), 1.0, 7), BatchLimits(97, 120, 1, 7), 0.0, 1, SAME)
def test_the_chosen_batch_is_the_best_of_all_whole_ones(
    fit: StepFit, limits: BatchLimits, noise: float, gpus: int, apart: Locality
) -> None:
    # Beyond 64 numbers of passes the search may stop short; `test_..._stops_short` has that.
    assume(limits.most <= 64 * gpus * limits.least_local)
    found = best(fit, limits, noise, np.array([gpus]), np.array([apart]))
    goodput, local, added = float(found.goodput[0]), int(found.local[0]), int(found.accumulation[0])
    assert goodput == pytest.approx(on_the_grid(fit, limits, noise, gpus, apart), rel=1e-9)
    if goodput > 0:
        batch = gpus * local * (added + 1)
        assert limits.initial <= batch <= limits.most
        assert limits.least_local <= local <= min(fit.most_local, limits.most_local)
        again = batch / iteration_seconds(fit, local, added, gpus, apart) * efficiency(noise, limits.initial, batch)
        assert goodput == pytest.approx(float(again))


@settings(max_examples=40)
@given(fits(most_local=400), noises(), st.sampled_from([1, 2, 5, 8, 64]), st.sampled_from(Locality))
def test_the_chosen_batch_is_within_a_few_percent_of_the_best_where_the_search_stops_short(
    fit: StepFit, noise: float, gpus: int, apart: Locality
) -> None:
    limits = BatchLimits(96, 5003, 1, 300)
    found = float(best(fit, limits, noise, np.array([gpus]), np.array([apart])).goodput[0])
    grid = on_the_grid(fit, limits, noise, gpus, apart)
    assert 0.97 * grid <= found <= grid * (1 + 1e-9)


@settings(max_examples=40)
@given(fits(most_local=840), noises(), st.sampled_from([1, 4, 64]))
def test_more_gpus_of_a_node_never_lower_the_optimum_unless_synchronising_costs(
    fit: StepFit, noise: float, initial: int
) -> None:
    # The batch's limit is a multiple of every count, so that each can reach it; else a count that cannot may lose.
    free = StepFit(fit.compute, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), fit.gamma, 840)
    counts = np.arange(1, 9)
    found = best(free, BatchLimits(initial, 840, 1, 840), noise, counts, np.full(8, SAME)).goodput
    assert np.all(np.diff(found) >= -1e-9 * found[:-1])


@settings(max_examples=40)
@given(fits(most_local=840), noises())
def test_with_a_flat_cost_of_synchronising_more_gpus_of_a_node_never_lower_the_optimum_from_two_on(
    fit: StepFit, noise: float
) -> None:
    flat = StepFit(fit.compute, (fit.node[0], 0.0), (0.0, 0.0), (0.0, 0.0), fit.gamma, 840)
    counts = np.arange(2, 9)
    found = best(flat, BatchLimits(1, 840, 1, 840), noise, counts, np.full(7, SAME)).goodput
    assert np.all(np.diff(found) >= -1e-9 * found[:-1])


def test_where_synchronising_costs_more_than_it_gives_one_gpu_is_better_than_two() -> None:
    slow = StepFit((0.01, 0.001), (5.0, 0.0), (5.0, 0.0), (5.0, 0.0), 1.0, 64)
    found = best(slow, BatchLimits(32, 256, 1, 64), 100.0, np.array([1, 2]), np.array([SAME, SAME]))
    assert found.goodput[1] < found.goodput[0]
    assert np.maximum.accumulate(found.goodput)[1] == found.goodput[0], "read as: on at most so many"


def test_a_noisier_gradient_asks_for_a_larger_batch_and_a_slow_network_for_added_passes() -> None:
    quiet, noisy = (best(CIFAR, CIFAR_LIMITS, phi, np.array([4]), np.array([SAME])) for phi in (100.0, 10_000.0))
    assert quiet.local[0] < noisy.local[0]
    slow = StepFit((0.01, 0.001), (2.0, 0.0), (2.0, 0.0), (2.0, 0.0), 1.5, 64)
    found = best(slow, BatchLimits(64, 4096, 1, 64), 5_000.0, np.array([1, 8]), np.array([SAME, NODE]))
    assert found.accumulation.tolist()[0] == 0
    assert found.accumulation.tolist()[1] > 0
    assert found.local.tolist()[1] == 64, "passes are added up only when they are full"


def test_no_batch_is_found_where_the_limits_leave_none() -> None:
    found = best(
        CIFAR, BatchLimits(128, 256, 32, 1024), 1e3, np.array([0, 1, 8, 9]), np.array([SAME, SAME, NODE, NODE])
    )
    assert (found.goodput > 0).tolist() == [False, True, True, False], "nine GPUs with 32 samples each exceed 256"
    assert found.local.tolist()[2] == 32
    assert (found.local[3], found.accumulation[3]) == (0, 0)


@pytest.mark.parametrize(
    ("batch", "gpus", "local", "added"), [(128, 1, 128, 0), (128, 3, 43, 0), (4096, 1, 1024, 3), (5000, 2, 834, 2)]
)
def test_a_job_that_is_not_adaptive_keeps_its_batch_at_full_efficiency(
    batch: int, gpus: int, local: int, added: int
) -> None:
    found = best(CIFAR, fixed(batch), 50.0, np.array([gpus]), np.array([SAME]))
    assert (found.local[0], found.accumulation[0]) == (local, added)
    assert found.goodput[0] == pytest.approx(batch / float(iteration_seconds(CIFAR, local, added, gpus, SAME)))
    assert best(CIFAR, fixed(2), 50.0, np.array([3]), np.array([SAME])).goodput[0] == 0.0


@settings(max_examples=40)
@given(st.lists(st.tuples(fits(most_local=64), small_limits(), noises(), st.booleans()), min_size=1, max_size=5))
def test_many_jobs_at_once_get_what_each_gets_alone(jobs: list[tuple[StepFit, BatchLimits, float, bool]]) -> None:
    counts, apart = np.array([1, 2, 4, 7, 8, 16]), np.array([SAME, SAME, SAME, NODE, NODE, RACK])
    limits = [fixed(limit.initial) if still else limit for _, limit, _, still in jobs]
    together = best_of_many(
        [fit for fit, *_ in jobs], limits, np.array([noise for _, _, noise, _ in jobs]), counts, apart
    )
    assert together.shape == (len(jobs), 6)
    for row, (fit, _, noise, _), limit in zip(together, jobs, limits, strict=True):
        np.testing.assert_allclose(row, best(fit, limit, noise, counts, apart).goodput, rtol=1e-6)


@pytest.mark.parametrize("noise", [-1.0, math.nan])
def test_a_noise_scale_that_is_no_number_of_samples_is_refused(noise: float) -> None:
    with pytest.raises(InputError) as refused:
        best(CIFAR, CIFAR_LIMITS, noise, np.array([1]), np.array([SAME]))
    assert refused.value.field == "noise"


@given(fits(), small_limits(), noises(), st.integers(1, 64), st.sampled_from(list(Locality)))
def test_one_allocation_has_the_same_batch_as_several_like_it(
    fit: StepFit, limits: BatchLimits, noise: float, gpus: int, apart: Locality
) -> None:
    alone = best(fit, limits, noise, np.array([gpus]), np.array([int(apart)]))
    several = best(fit, limits, noise, np.array([gpus] * 3), np.array([int(apart)] * 3))
    assert alone.goodput[0] == pytest.approx(several.goodput[0], rel=1e-9)
    assert (alone.goodput[0] == 0) == (several.goodput[0] == 0)


@given(fits(), fits(), small_limits(), noises())
def test_a_kept_goodput_is_that_of_the_same_fit_limits_and_allocations(
    fit: StepFit, other: StepFit, limits: BatchLimits, noise: float
) -> None:
    gpus, apart = np.array([1, 2, 4]), np.array([0, 0, 0])
    first = best_of_many([fit], [limits], np.array([noise]), gpus, apart)
    both = best_of_many([other, fit], [limits, limits], np.array([noise, noise]), gpus, apart)
    assert both[1].tolist() == first[0].tolist()
    fewer = best_of_many([fit], [limits], np.array([noise]), gpus[:2], apart[:2])
    assert fewer[0] == pytest.approx(first[0, :2], rel=1e-5)
    assert best_of_many([fit], [limits], np.array([noise + 1.0]), gpus, apart).shape == (1, 3)


@settings(max_examples=40)
@given(st.lists(st.tuples(fits(most_local=64), small_limits(), noises()), min_size=1, max_size=4), st.randoms())
def test_goodputs_asked_for_piece_by_piece_are_those_asked_for_at_once(
    jobs: list[tuple[StepFit, BatchLimits, float]], random: Random
) -> None:
    places = [(1, SAME), (2, SAME), (4, SAME), (4, NODE), (8, NODE), (16, RACK)]
    for _ in range(4):
        some, here = random.sample(jobs, random.randint(1, len(jobs))), random.sample(places, random.randint(1, 6))
        gpus, apart = np.array([n for n, _ in here]), np.array([int(distance) for _, distance in here])
        found = best_of_many(
            [fit for fit, *_ in some], [k for _, k, _ in some], np.array([n for *_, n in some]), gpus, apart
        )
        for row, (fit, limits, noise) in zip(found, some, strict=True):
            np.testing.assert_allclose(row, best(fit, limits, noise, gpus, apart).goodput, rtol=1e-6)
