"""Fitting step times: known ones are found again, nothing better is found at random, and the unseen is left to hope."""

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from shoal.core.arrays import Floats
from shoal.core.errors import InputError
from shoal.core.goodput import StepFit
from shoal.core.topology import Locality
from shoal.perf.fit import FitProblem, Observation, carried_over, completed, fitted
from shoal.perf.goodput import iteration_seconds

SAME, NODE, RACK = Locality
PROFILES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pollux" / "traces"
MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")

ALLOCATIONS = (
    (1, 1, SAME),
    (2, 1, SAME),
    (3, 1, SAME),
    (4, 1, SAME),
    (2, 2, NODE),
    (8, 2, NODE),
    (16, 4, NODE),
    (32, 8, NODE),
    (8, 2, RACK),
    (24, 6, RACK),
)
TRUTH = StepFit((0.05, 0.002), (0.06, 0.01), (0.15, 0.004), (0.25, 0.006), 2.5, 256)


def measured(
    truth: StepFit,
    locals_: Sequence[int] = (16, 48, 96, 160, 256),
    allocations: Sequence[tuple[int, int, Locality]] = ALLOCATIONS,
    error: float = 0.0,
) -> list[Observation]:
    """What a job with these step times measures, each time off by this part."""
    chance = np.random.default_rng(11)
    seen = []
    for gpus, nodes, apart in allocations:
        for local in locals_:
            once = truth.compute[0] + truth.compute[1] * local
            step = float(iteration_seconds(truth, local, 0, gpus, apart))
            off = np.exp(error * chance.standard_normal(2))
            seen.append(Observation(gpus, nodes, apart, local, once * float(off[0]), step * float(off[1])))
    return seen


def figures(fit: StepFit) -> list[float]:
    return [*fit.compute, *fit.node, *fit.network, *fit.rack, fit.gamma]


def seconds(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@st.composite
def identifiable(draw: st.DrawFn) -> StepFit:
    """Step times in which every figure shows: synchronising is neither hidden by passes nor hides them."""
    once = draw(seconds(0.01, 1.0))
    node, network, rack = (once * draw(st.floats(0.5, 3.0)) for _ in range(3))
    pairs = [(alpha, alpha * draw(st.floats(0.02, 0.2))) for alpha in (node, network, rack)]
    compute = (once, once * draw(st.floats(0.005, 0.02)))
    return StepFit(compute, pairs[0], pairs[1], pairs[2], draw(st.floats(1.2, 4.0)), 256)


@settings(max_examples=25)
@given(identifiable())
def test_exact_measurements_give_the_truth_back_within_five_percent(truth: StepFit) -> None:
    fit = fitted(measured(truth), 256)
    np.testing.assert_allclose(figures(fit), figures(truth), rtol=0.05)
    assert fit.error < 1e-3
    assert (fit.gpus, fit.nodes, fit.most_local) == (32, 8, 256)


def test_measurements_off_by_a_few_thousandths_give_the_truth_back_within_five_percent() -> None:
    fit = fitted(measured(TRUTH, range(8, 256, 12), error=0.003), 256)
    np.testing.assert_allclose(figures(fit), figures(TRUTH), rtol=0.05)
    assert fit.error == pytest.approx(0.003, rel=0.1)


def rmsle(fit: StepFit, seen: Sequence[Observation]) -> float:
    """The root mean squared log error of passes and steps together, from the public formulas."""
    squares = [
        math.log((fit.compute[0] + fit.compute[1] * o.local) / o.pass_seconds) ** 2
        + math.log(float(iteration_seconds(fit, o.local, 0, o.gpus, o.locality)) / o.step_seconds) ** 2
        for o in seen
    ]
    return math.sqrt(sum(squares) / (2 * len(squares)))


def at_random(seen: Sequence[Observation]) -> float:
    """The least error that another solver reaches from random starts, by finite differences."""
    local, gpus = np.array([o.local for o in seen]), np.array([o.gpus for o in seen])
    apart = np.array([o.locality for o in seen])
    known = np.log(np.array([(o.pass_seconds, o.step_seconds) for o in seen]))

    def errors(x: Floats) -> Floats:
        once = x[0] + x[1] * local
        alpha, beta = x[2:8:2][apart], x[3:8:2][apart]
        sync = np.where(gpus > 1, alpha + beta * (gpus - 2), 0.0)
        gamma = x[8]
        step = np.log(once) + np.log1p((sync / once) ** gamma) / gamma
        return np.concatenate((np.log(once) - known[:, 0], step - known[:, 1]))

    chance = np.random.default_rng(4)
    scale = float(np.exp(known.mean()))
    reached = math.inf
    for _ in range(20):
        start = scale * np.exp(chance.uniform(-5, 1, 9)) / np.array([1, np.mean(local), *([1, 8] * 3), 1])
        start[8] = chance.uniform(1, 10)
        bounds = ([1e-9] * 8 + [1.0], [math.inf] * 8 + [10.0])
        found = least_squares(errors, start, bounds=bounds, x_scale=np.maximum(start, 1e-6), max_nfev=60)
        reached = min(reached, math.sqrt(2 * found.cost / (2 * len(seen))))
    return reached


@pytest.mark.parametrize("gamma", [1.0, 3.0, 9.0])
def test_no_random_restart_ends_a_hundredth_lower(gamma: float) -> None:
    seen = measured(replace(TRUTH, gamma=gamma), (16, 64, 256), error=0.05)
    fit = fitted(seen, 256)
    assert fit.error == pytest.approx(rmsle(fit, seen), rel=1e-6)
    assert fit.error <= 1.01 * at_random(seen)


def profile(model: str) -> list[Observation]:
    """What was measured of a model on the paper's machines."""
    path = PROFILES / model / "placements.csv"
    if not path.exists():
        pytest.skip(f"no shared data: {path.name}")
    seen = []
    with path.open() as file:
        for row in csv.DictReader(file):
            seats, step, sync = row["placement"], float(row["step_time"]), float(row["sync_time"])
            apart = SAME if len(seats) == 1 else NODE
            if step > sync:
                local = int(row["local_bsz"])
                seen.append(Observation(sum(map(int, seats)), len(seats), apart, local, step - sync, step))
    return seen


@pytest.mark.parametrize("model", MODELS)
def test_no_random_restart_ends_a_hundredth_lower_on_a_hundred_measured_step_times(model: str) -> None:
    seen = profile(model)
    hundred = [seen[i] for i in np.random.default_rng(2).choice(len(seen), 100, replace=False)]
    assert fitted(hundred, 256).error <= 1.01 * at_random(hundred)


@settings(max_examples=25)
@given(identifiable(), st.integers(0, 2**32 - 1))
def test_the_derivatives_are_those_of_finite_differences(truth: StepFit, seed: int) -> None:
    seen = measured(truth, (16, 64), ALLOCATIONS, error=0.1)
    problem = FitProblem.of(
        np.array([(o.gpus, o.nodes, o.locality, o.local, o.pass_seconds, o.step_seconds) for o in seen])
    )
    at = np.array([[*figures(truth)[:-1], 1.0 / truth.gamma]]) * np.random.default_rng(seed).uniform(0.5, 1.5, 9)
    slopes = problem.errors(at)[1][0]
    for i in range(at.shape[1]):
        nudge = np.zeros_like(at)
        nudge[0, i] = 1e-6 * at[0, i]
        difference = (problem.errors(at + nudge)[0] - problem.errors(at - nudge)[0])[0] / (2 * nudge[0, i])
        np.testing.assert_allclose(
            slopes[:, i], difference, rtol=1e-4, atol=1e-6 * max(1.0, np.abs(slopes[:, i]).max())
        )


@pytest.mark.parametrize(
    ("allocations", "node", "network", "rack"),
    [
        ([(1, 1, SAME)], "unseen", "unseen", "unseen"),
        ([(1, 1, SAME), (2, 1, SAME)], "fixed", "unseen", "unseen"),
        ([(1, 1, SAME), (2, 1, SAME), (4, 1, SAME)], "both", "unseen", "unseen"),
        ([(1, 1, SAME), (2, 2, NODE)], "unseen", "fixed", "as network"),
        ([(2, 1, SAME), (4, 1, SAME), (8, 2, NODE)], "both", "fixed", "as network"),
        ([(4, 1, SAME), (8, 2, NODE), (16, 4, NODE)], "fixed", "both", "as network"),
        ([(4, 2, NODE), (8, 2, NODE), (8, 2, RACK)], "unseen", "both", "fixed"),
    ],
)
def test_what_was_not_seen_is_believed_to_cost_nothing(
    allocations: list[tuple[int, int, Locality]], node: str, network: str, rack: str
) -> None:
    fit = fitted(measured(TRUTH, allocations=allocations), 256)
    for pair, expected in ((fit.node, node), (fit.network, network), (fit.rack, rack)):
        if expected == "as network":
            assert pair == fit.network
        else:
            assert (pair[0] > 0 or pair[1] > 0) == (expected != "unseen")
            assert pair[1] > 0 if expected == "both" else pair[1] == 0.0
    if node == network == "unseen":
        assert fit.gamma == 1.0
    assert fit.error < 1e-3, "what was seen is explained all the same"


def test_one_batch_size_leaves_half_of_a_pass_as_its_fixed_cost() -> None:
    fit = fitted(measured(TRUTH, (64,), [(1, 1, SAME)]), 256)
    once = TRUTH.compute[0] + 64 * TRUTH.compute[1]
    assert fit.compute == pytest.approx((once / 2, once / 128))


def test_where_overlap_is_not_determined_it_counts_as_none() -> None:
    fit = fitted(measured(TRUTH, (64,), [(1, 1, SAME), (2, 1, SAME)]), 256)
    assert fit.gamma == pytest.approx(1.0, abs=0.05)


@settings(max_examples=25)
@given(identifiable(), st.integers(1, 9))
def test_a_fit_goes_on_from_an_earlier_one_that_had_seen_less(truth: StepFit, known: int) -> None:
    seen = measured(truth, (16, 64, 256), error=0.02)
    earlier = fitted(seen[: 3 * known], 256)
    assert fitted(seen, 256, start=earlier).error <= 1.01 * fitted(seen, 256).error


@settings(max_examples=25)
@given(identifiable(), st.integers(1, 256))
def test_the_same_measurements_in_any_unit_of_time_give_the_same_fit(truth: StepFit, seed: int) -> None:
    seen = measured(truth, (16, 64), error=0.02)
    order = np.random.default_rng(seed).permutation(len(seen))
    slower = [
        replace(seen[i], pass_seconds=60 * seen[i].pass_seconds, step_seconds=60 * seen[i].step_seconds) for i in order
    ]
    assert fitted(slower, 256).error == pytest.approx(fitted(seen, 256).error, rel=0.01)


@settings(max_examples=25)
@given(identifiable(), seconds(0.1, 10.0), st.sampled_from(ALLOCATIONS), st.integers(1, 256))
def test_another_kind_keeps_its_ratio_to_the_known_one_at_any_size(
    known: StepFit, speed: float, at: tuple[int, int, Locality], local: int
) -> None:
    gpus, _, apart = at
    other = carried_over(known, speed, 128)
    ratio = iteration_seconds(known, local, 0, gpus, apart) / iteration_seconds(other, local, 0, gpus, apart)
    assert float(ratio) == pytest.approx(speed)
    assert (other.gpus, other.nodes, other.most_local) == (0, 0, 128)
    own = fitted(measured(replace(known, compute=(0.02, 0.003)), allocations=[(1, 1, SAME)]), 128)
    whole = completed(own, known, local)
    alone = iteration_seconds(known, local, 0, 1, SAME) / iteration_seconds(own, local, 0, 1, SAME)
    ratio = iteration_seconds(known, local, 0, gpus, apart) / iteration_seconds(whole, local, 0, gpus, apart)
    assert float(ratio) == pytest.approx(float(alone))
    assert (whole.compute, whole.gpus) == (own.compute, 1)


GOOD = Observation(2, 1, SAME, 64, 0.1, 0.2)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"step_seconds": 0.0}, "observations[1].step_seconds"),
        ({"pass_seconds": math.nan}, "observations[1].pass_seconds"),
        ({"local": 0}, "observations[1].local"),
        ({"gpus": 0}, "observations[1].gpus"),
        ({"locality": NODE}, "observations[1].locality"),
        ({"nodes": 2}, "observations[1].locality"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused_by_name(wrong: dict[str, float], field: str) -> None:
    values = {name: getattr(GOOD, name) for name in GOOD.__slots__}
    with pytest.raises(InputError) as refused:
        fitted([GOOD, Observation(**{**values, **wrong})], 64)
    assert refused.value.field == field


def test_no_measurement_gives_no_fit_and_no_speed_no_other_kind() -> None:
    with pytest.raises(InputError, match="at least one measurement"):
        fitted([], 64)
    with pytest.raises(InputError, match="speed"):
        carried_over(TRUTH, 0.0, 64)
