"""EASY backfilling, by hand."""

from shoal.policy.classic.backfill import Backfill
from shoal.testing.builders import job, simulate


def test_a_later_job_passes_only_if_it_ends_before_the_reservation_of_the_first() -> None:
    # a holds 2 of 4 GPUs until 100, so b, which needs all, is to start at 100. c ends at 90 and passes; d would not.
    rows = [job("a", 0, 2, 100), job("b", 0, 4, 50), job("c", 0, 1, 90), job("d", 0, 1, 120)]
    run = simulate(Backfill(), rows, "gpu:1x4")
    assert run.completed == {"a": 100.0, "b": 150.0, "c": 90.0, "d": 270.0}
    assert run.cycles[0].sentence("d") == "waits: to start now, on 1 GPU, could delay a job that came earlier"


def test_a_later_job_may_use_what_a_reservation_leaves_over() -> None:
    # a holds 2 of 4 GPUs until 100; b needs 3 then, which leaves one over for c, however long it runs, but not for d.
    rows = [job("a", 0, 2, 100), job("b", 0, 3, 50), job("c", 0, 1, 500), job("d", 0, 1, 500)]
    run = simulate(Backfill(), rows, "gpu:1x4")
    assert run.completed == {"a": 100.0, "b": 150.0, "c": 500.0, "d": 650.0}
    assert set(run.starts.values()) == {1}


def test_a_reservation_of_one_kind_does_not_hold_back_jobs_on_another() -> None:
    rows = [
        job("a", 0, 2, 100, kinds=("p",)),
        job("b", 0, 4, 50, kinds=("p",)),
        job("c", 0, 1, 500, kinds=("p",)),
        job("d", 0, 4, 500, kinds=("q",)),
    ]
    run = simulate(Backfill(), rows, "p:1x4,q:1x4")
    assert run.completed == {"a": 100.0, "b": 150.0, "c": 650.0, "d": 500.0}
