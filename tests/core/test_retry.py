"""The crash rule: crashes in a row, the back-off between tries, and when a job has failed."""

import pytest

from shoal.core.retry import FIRST_RETRY, LONGEST_RETRY, MOST_CRASHES, AfterCrash, Crashes, retry_after


@pytest.mark.parametrize(
    ("in_a_row", "seconds"), [(1, 10.0), (2, 20.0), (3, 40.0), (4, 80.0), (6, 320.0), (7, 600.0), (30, 600.0)]
)
def test_the_wait_doubles_from_ten_seconds_to_ten_minutes(in_a_row: int, seconds: float) -> None:
    assert retry_after(in_a_row) == seconds


def test_another_first_wait_is_capped_in_the_same_way() -> None:
    assert [retry_after(n, first=100.0) for n in (1, 2, 3, 4)] == [100.0, 200.0, 400.0, LONGEST_RETRY]
    assert [retry_after(n, first=0.5) for n in (1, 2)] == [0.5, 1.0]


def test_a_first_wait_above_the_cap_is_the_wait_after_every_crash() -> None:
    assert [retry_after(n, first=700.0) for n in (1, 2, 5)] == [700.0, 700.0, 700.0]


def test_the_first_crash_counts_even_if_the_job_had_done_nothing() -> None:
    assert Crashes().after(0.0, blamed=True) == AfterCrash(Crashes(1, 0.0), failed=False, retry_in=FIRST_RETRY)


def test_a_job_that_crashes_five_times_at_the_same_progress_has_failed() -> None:
    crashes, outcomes = Crashes(), []
    for _ in range(MOST_CRASHES):
        crashes, failed, retry_in = crashes.after(30.0, blamed=True)
        outcomes.append((crashes.in_a_row, failed, retry_in))
    assert outcomes == [(1, False, 10.0), (2, False, 20.0), (3, False, 40.0), (4, False, 80.0), (5, True, 0.0)]


def test_progress_since_the_last_crash_starts_the_count_again() -> None:
    before = Crashes(4, 30.0)
    assert before.after(30.001, blamed=True) == AfterCrash(Crashes(1, 30.001), failed=False, retry_in=10.0)
    assert before.after(30.0, blamed=True).failed
    assert before.after(20.0, blamed=True) == AfterCrash(Crashes(5, 20.0), failed=True, retry_in=0.0)


def test_progress_is_compared_with_the_last_crash_and_not_with_the_furthest() -> None:
    set_back = Crashes(1, 30.0).after(20.0, blamed=True).crashes
    assert set_back == Crashes(2, 20.0)
    assert set_back.after(25.0, blamed=True).crashes == Crashes(1, 25.0)


def test_a_crash_without_blame_changes_nothing_and_is_tried_again_at_once() -> None:
    before = Crashes(4, 30.0)
    assert before.after(50.0, blamed=False) == AfterCrash(before, failed=False, retry_in=0.0)


def test_the_first_wait_is_the_backends_to_choose() -> None:
    assert Crashes(1, 5.0).after(5.0, blamed=True, first_retry=0.2).retry_in == 0.4
