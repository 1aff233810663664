"""Shortest remaining time and service first, by hand."""

from shoal.core.decision import Refusal
from shoal.policy.classic.shortest import Srsf, Srtf
from shoal.testing.builders import job, simulate, snapshot


def test_a_shorter_newcomer_preempts() -> None:
    # One GPU. a has 90 s left when b (20 s) comes at 10: b 10–30. c (50 s) came at 15: c 30–80, then a 80–170.
    rows = [job("a", 0, 1, 100), job("b", 10, 1, 20), job("c", 15, 1, 50)]
    run = simulate(Srtf(), rows, "gpu:1x1")
    assert run.completed == {"b": 30.0, "c": 80.0, "a": 170.0}
    assert run.starts == {"a": 2, "b": 1, "c": 1}
    assert (
        run.cycles[1].sentence("a")
        == "waits: its remaining time in seconds is 90; jobs with up to 20 go first and take the GPUs"
    )


def test_a_longer_newcomer_waits() -> None:
    # At 50 a has 50 s left, b 60 s: a goes on.
    run = simulate(Srtf(), [job("a", 0, 1, 100), job("b", 50, 1, 60)], "gpu:1x1")
    assert run.completed == {"a": 100.0, "b": 160.0}


def test_time_and_service_order_wide_jobs_differently() -> None:
    # Wide: 30 s on 4 GPUs, 120 GPU-seconds. Long: 60 s on 1 GPU, 60 GPU-seconds. They do not fit together.
    rows = [job("wide", 0, 4, 30), job("long", 0, 1, 60)]
    assert simulate(Srtf(), rows, "gpu:1x4").completed == {"wide": 30.0, "long": 90.0}
    assert simulate(Srsf(), rows, "gpu:1x4").completed == {"long": 60.0, "wide": 90.0}


def test_a_gang_that_does_not_fit_is_passed_over() -> None:
    # a (10 s) takes 3 of 4; b (20 s) needs 2 and is passed; c (30 s) fits beside a. a's end at 10 makes room for b.
    rows = [job("a", 0, 3, 10), job("b", 0, 2, 20), job("c", 0, 1, 30)]
    assert simulate(Srtf(), rows, "gpu:1x4").completed == {"a": 10.0, "b": 30.0, "c": 30.0}


def test_an_unknown_length_comes_last() -> None:
    rows = [job("unknown", 0, 1, 10, declares_work=False), job("known", 0, 1, 500)]
    assert simulate(Srtf(), rows, "gpu:1x1").completed == {"known": 500.0, "unknown": 510.0}


def test_a_job_whose_kind_is_not_there_takes_no_other_jobs_place() -> None:
    # Nobody declares a length, so all are equal and the first in line goes first: but it cannot run here at all.
    rows = [job("alien", 0, 1, 10, kinds=("a100",), declares_work=False), job("b", 0, 1, 10, declares_work=False)]
    verdicts = Srtf().decide(snapshot(rows, "v100:1x1")).verdicts
    assert isinstance(verdicts["alien"], Refusal)
    assert verdicts["b"].reason.sentence().startswith("runs")
