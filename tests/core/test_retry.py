"""The crash rule: crashes in a row, the back-off between tries, and when a job has failed."""

import pytest

from shoal.core.events import JobCrashed
from shoal.core.retry import (
    FIRST_RETRY,
    LONGEST_RETRY,
    MOST_FAILED_STARTS,
    OLD_RETRIES,
    RETRIES,
    AfterCrash,
    Crashes,
    retry_after,
)


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


def outcomes(tries: int, retries: int | None, *, ran: float, fresh: bool = True) -> list[tuple[bool, float]]:
    """Return whether each of these crashes at the same progress failed the job, and the wait after it."""
    crashes, found = Crashes(), []
    for _ in range(tries):
        crashes, failed, retry_in = crashes.after(30.0, blamed=True, ran=ran, fresh=fresh, retries=retries)
        found.append((failed, retry_in))
    return found


def test_a_job_that_ran_for_half_a_minute_has_three_retries() -> None:
    assert RETRIES == 3
    expected = [(False, 10.0), (False, 20.0), (False, 40.0), (True, 0.0)]
    assert outcomes(4, None, ran=30.0) == expected
    assert outcomes(4, None, ran=1.0, fresh=False) == expected


def test_a_job_that_fails_within_half_a_minute_is_not_tried_again() -> None:
    assert outcomes(1, None, ran=29.9) == [(True, 0.0)]


@pytest.mark.parametrize("ran", [1.0, 1000.0])
@pytest.mark.parametrize("retries", [0, 1, 7])
def test_a_job_that_chooses_its_retries_has_them_however_fast_it_fails(retries: int, ran: float) -> None:
    assert [failed for failed, _ in outcomes(retries + 1, retries, ran=ran)] == [False] * retries + [True]


def test_without_the_length_of_the_run_progress_since_the_last_crash_starts_the_count_again() -> None:
    before = Crashes(3, 30.0)
    assert before.after(30.001, blamed=True) == AfterCrash(Crashes(1, 30.001), failed=False, retry_in=10.0)
    assert before.after(30.0, blamed=True).failed
    assert before.after(20.0, blamed=True) == AfterCrash(Crashes(4, 20.0), failed=True, retry_in=0.0)


def test_progress_is_compared_with_the_last_crash_and_not_with_the_furthest() -> None:
    set_back = Crashes(1, 30.0).after(20.0, blamed=True).crashes
    assert set_back == Crashes(2, 20.0)
    assert set_back.after(25.0, blamed=True).crashes == Crashes(1, 25.0)


def test_progress_takes_a_crash_off_the_count_for_each_five_minutes_of_the_run_and_no_progress_takes_none() -> None:
    before = Crashes(3, 30.0)
    runs = {ran: before.after(31.0, blamed=True, ran=ran) for ran in (0.0, 30.0, 150.0, 300.0, 900.0, 1e9)}
    assert {ran: (crashes.blamed, failed) for ran, (crashes, failed, _) in runs.items()} == {
        0.0: (4.0, True), 30.0: (3.9, True), 150.0: (3.5, True),
        300.0: (3.0, False), 900.0: (1.0, False), 1e9: (1.0, False),
    }  # fmt: skip
    assert before.after(30.0, blamed=True, ran=1e9).failed


def test_tiny_progress_between_crashes_does_not_save_a_job_from_failing() -> None:
    crashes, tries, failed = Crashes(), 0, False
    while not failed and tries < 100:
        tries += 1
        crashes, failed, _ = crashes.after(0.001 * tries, blamed=True, ran=2.0)
    assert tries == RETRIES + 1


def test_crashes_without_blame_wait_longer_each_time_except_the_first_and_never_fail_the_job() -> None:
    crashes, waits = Crashes(4, 30.0), []
    for _ in range(40):
        crashes, failed, retry_in = crashes.after(50.0, blamed=False, ran=0.0, fresh=True, retries=0)
        assert not failed
        waits.append(retry_in)
    assert (waits[:5], waits[-1], crashes.in_a_row) == ([0.0, 10.0, 20.0, 40.0, 80.0], LONGEST_RETRY, 4)
    assert crashes.after(50.0, blamed=False, ran=1e9).retry_in == 0.0


def test_a_start_that_fails_is_tried_elsewhere_at_once_and_five_in_a_row_fail_the_job() -> None:
    crashes, found = Crashes(), []
    for _ in range(MOST_FAILED_STARTS):
        crashes, failed, retry_in = crashes.after(0.0, blamed=True, ran=0.0, began=False)
        found.append((failed, retry_in))
    assert found == [(False, 0.0), (False, 10.0), (False, 20.0), (False, 40.0), (True, 0.0)]
    assert crashes.in_a_row == 0


def test_a_start_that_no_other_node_is_worth_a_try_for_fails_the_job_at_once_unless_the_node_is_at_fault() -> None:
    assert Crashes().after(0.0, blamed=True, ran=0.0, began=False, unrunnable=True, retries=9).failed
    assert not Crashes().after(0.0, blamed=False, ran=0.0, began=False, unrunnable=True).failed


def test_a_start_that_fails_through_the_nodes_fault_never_fails_the_job_and_a_run_clears_the_count() -> None:
    crashes = Crashes(failed_starts=90)
    assert crashes.after(0.0, blamed=False, ran=0.0, began=False).retry_in == LONGEST_RETRY
    assert crashes.after(0.0, blamed=True, ran=0.0).crashes.failed_starts == 0


def test_the_first_wait_is_the_backends_to_choose() -> None:
    assert Crashes(1, 5.0).after(5.0, blamed=True, first_retry=0.2).retry_in == 0.4


@pytest.mark.parametrize("last", [True, False])
def test_a_fold_takes_the_events_word_on_whether_the_job_has_failed(last: bool) -> None:
    crashed = JobCrashed(1.0, 0, 1, 0.0, True, "it died", ran=1.0, failed=last)
    assert (Crashes().fold(crashed).failed, Crashes(9.0).fold(crashed).failed) == (last, last)


def test_in_a_journal_of_an_older_version_five_crashes_in_a_row_fail_a_job() -> None:
    crashed = JobCrashed(1.0, 0, 1, 0.0, True, "it died", ran=1.0)
    assert OLD_RETRIES == 4
    assert [Crashes(float(before), 0.0).fold(crashed).failed for before in range(5)] == [False] * 4 + [True]
