"""SLAQ: marginal drop in loss."""

import pytest

from shoal.core.decision import Verdicts
from shoal.policy.elastic.slaq import Slaq
from shoal.testing.builders import job, simulate, snapshot


def test_gpus_follow_the_steepest_loss() -> None:
    # One GPU, intervals of 100 s, loss 1 / (1 + 9p). A quarter of the work brings a fresh job's loss down by 0.69, one
    # at p = 1/4 by 0.126, at 1/2 by 0.053, at 3/4 by 0.029; a running job's drop counts 1.1 times. So a runs first
    # (a tie), b from 100 (0.69 > 0.138) to 300 (at 200: 0.138 > 0.126), a to 500, b again to its end at 700, then a.
    rows = [job("a", 0, 1, 400), job("b", 0, 1, 400)]
    run = simulate(Slaq(interval=100), rows, "gpu:1x1")
    turns = [(c.now, *c.granted()) for c in run.cycles if c.granted()]
    assert [turn for i, turn in enumerate(turns) if i == 0 or turn[1] != turns[i - 1][1]] == [
        (0, "a"),
        (100, "b"),
        (300, "a"),
        (500, "b"),
        (700, "a"),
    ]
    assert run.completed == {"a": pytest.approx(800), "b": pytest.approx(700)}


def test_a_young_job_gets_the_gpus_an_old_one_has_no_use_for() -> None:
    # Both could use all 8. The old one has 5 % left: its loss hardly falls any more, however many it gets.
    rows = [job("old", 0, 1, 20_000, max_gpus=8), job("young", 0, 1, 20_000, max_gpus=8)]
    moment = snapshot(rows, "gpu:1x8", ran={"old": 19_000.0}, now=19_000.0)
    assert Verdicts.of(moment, Slaq().decide(moment).verdicts).gpus.tolist() == [1, 7]


def test_a_job_of_unknown_length_is_served_too() -> None:
    rows = [job("says", 0, 1, 500), job("silent", 0, 1, 500, declares_work=False)]
    run = simulate(Slaq(), rows, "gpu:1x1")
    assert set(run.completed) == {"says", "silent"}


@pytest.mark.parametrize("option", ["interval", "steepness", "prior"])
def test_options_must_make_sense(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        Slaq(**{option: 0.0})
