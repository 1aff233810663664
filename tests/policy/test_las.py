"""Least attained service, by hand."""

import pytest

from shoal.policy.classic.las import Las
from shoal.testing.builders import job, simulate, snapshot


def test_equals_take_turns_by_quanta() -> None:
    # One GPU, quantum 60, reviews at the next tick of 6 s after a lease has ended. a's lease ends at 60: a runs 0–66, b
    # (nothing yet) 66–132; then both have 66 and the earlier goes first: a's last 34 s end at 166, b's at 200.
    run = simulate(Las(quantum=60.0), [job("a", 0, 1, 100), job("b", 0, 1, 100)], "gpu:1x1")
    assert run.completed == {"a": 166.0, "b": 200.0}
    assert run.starts == {"a": 2, "b": 2}


def test_a_newcomer_waits_for_the_lease_to_end_and_no_longer() -> None:
    # a's lease runs to 60; b comes at 30 and gets the GPU at the next tick, 66. b is done at 76, a at 110.
    run = simulate(Las(quantum=60.0), [job("a", 0, 1, 100), job("b", 30, 1, 10)], "gpu:1x1")
    assert run.completed == {"b": 76.0, "a": 110.0}
    assert run.cycles[1].sentence("a") == "keeps its GPUs: its lease runs until t = 60 s"


def test_service_counts_gpus() -> None:
    # 40 s on 4 GPUs are 160 GPU-seconds, 100 s on one are 100: the narrow job has had less.
    moment = snapshot([job("wide", 0, 4), job("narrow", 0, 1)], "gpu:1x4", ran={"wide": 40.0, "narrow": 100.0})
    verdicts = Las().decide(moment).verdicts
    assert verdicts["narrow"].reason.sentence().startswith("runs")
    assert verdicts["wide"].reason.sentence().startswith("waits")


def test_nothing_is_reviewed_when_everything_fits() -> None:
    run = simulate(Las(), [job("a", 0, 2, 5000), job("b", 0, 2, 5000)], "gpu:1x4")
    assert [cycle.now for cycle in run.cycles] == [0.0, 5000.0]


def test_a_quantum_below_a_second_is_refused() -> None:
    with pytest.raises(ValueError, match="quantum"):
        Las(quantum=0.5)
