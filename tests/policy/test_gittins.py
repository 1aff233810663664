"""The Gittins index, against distributions whose index is known, and by hand."""

from math import erfc, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.policy.classic.gittins import Gittins, gittins_index
from shoal.testing.builders import job, simulate, snapshot

AGES = np.concatenate([[0.0], np.geomspace(0.01, 30.0, 200)])


@given(st.floats(0.05, 5.0))
def test_with_exponential_sizes_age_tells_nothing(rate: float) -> None:
    assert gittins_index(AGES, np.exp(-rate * AGES)) == pytest.approx(rate, rel=1e-9)


@given(st.floats(0.3, 0.95))
def test_with_falling_hazard_the_index_is_the_hazard_and_falls(shape: float) -> None:
    # Weibull with shape k < 1 survives to a with probability exp(−a^k); its mean hazard over an interval is the slope.
    index = gittins_index(AGES, np.exp(-(AGES**shape)))
    hazard = np.diff(AGES**shape) / np.diff(AGES)
    assert index == pytest.approx(hazard, rel=1e-6)
    assert (np.diff(index) < 0).all()


def test_with_rising_hazard_the_index_rises() -> None:
    assert (np.diff(gittins_index(AGES[AGES < 4], np.exp(-(AGES[AGES < 4] ** 2)))) > 0).all()


def test_two_sizes_by_hand() -> None:
    # Half the jobs take 1, half take 10 (spread over 0.1 % so that the hazard is finite). New: stop at 1, P = 1/2 for a
    # cost of 1, index 1/2; going on to 10 would be 1 for 5.5. Aged 1: 9 to go, index 1/9. Aged 9: 1 to go, index 1.
    ages = np.array([0.0, 0.9999, 1.0, 9.0, 9.999, 10.0])
    survival = np.array([1.0, 1.0, 0.5, 0.5, 0.5, 1e-12])
    index = gittins_index(ages, survival)
    assert index[[0, 2, 3]] == pytest.approx([0.5, 1 / 9, 1.0], rel=2e-3)


def test_no_stopping_rule_beats_the_index_of_a_lognormal() -> None:
    # P and E of the definition, integrated finely and independently at a few ages and spans.
    fine = np.exp(np.linspace(np.log(1e-3), np.log(1e6), 200_001))
    survival = np.array([erfc(np.log(x / 1000.0) / 2.3 / sqrt(2)) / 2 for x in fine])
    spent = np.concatenate([[0.0], np.cumsum((survival[1:] + survival[:-1]) / 2 * np.diff(fine))])
    policy = Gittins(median=1000.0, sigma=2.3, quantum=1.0)
    for age in (50.0, 1000.0, 20_000.0):
        at = int(np.searchsorted(fine, age))
        best = ((survival[at] - survival[at + 1 :]) / (spent[at + 1 :] - spent[at])).max()
        assert 1.0 / policy.price(np.array([age]))[0] == pytest.approx(best, rel=0.02)


def test_the_default_distribution_ages_badly_so_that_the_order_is_least_attained_service() -> None:
    price = Gittins(quantum=1.0).price(np.geomspace(100.0, 1e7, 50))
    assert (np.diff(price) > 0).all()


def test_equals_take_turns_and_a_running_job_wins_ties() -> None:
    # One GPU, quantum 60. a runs 0–61; b, a quantum younger, from 61. At 122 both are one quantum old: b, running, goes
    # on to its end at 161; a's last 39 s end at 200.
    run = simulate(Gittins(quantum=60.0), [job("a", 0, 1, 100), job("b", 0, 1, 100)], "gpu:1x1")
    assert run.completed == {"b": 161.0, "a": 200.0}


def test_when_all_jobs_are_about_equally_long_no_job_is_preempted() -> None:
    # Sizes near 100 GPU-seconds: the older, the nearer to its end, so a runs through and b after it.
    policy = Gittins(median=100.0, sigma=0.1, quantum=10.0)
    run = simulate(policy, [job("a", 0, 1, 100), job("b", 10, 1, 100)], "gpu:1x1")
    assert run.completed == {"a": 100.0, "b": 200.0}


def test_the_reason_names_the_price_of_a_completion() -> None:
    moment = snapshot([job("old", 0, 1), job("new", 0, 1)], "gpu:1x1", ran={"old": 6000.0}, now=6000.0)
    verdicts = Gittins().decide(moment).verdicts
    assert verdicts["new"].reason.sentence().startswith("runs: its expected GPU-seconds per completion is")
    assert verdicts["old"].reason.sentence().startswith("waits: its expected GPU-seconds per completion is")


@pytest.mark.parametrize("name", ["median", "sigma", "quantum"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_options_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Gittins(**{name: value})
