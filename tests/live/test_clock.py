"""The live clock: seconds since the journal began, never before what the journal already has."""

import time

import pytest

from shoal.live.clock import MOST_STEP, WallClock


def test_it_counts_from_the_epoch_by_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, monotonic = [1500.0], [70.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(time, "monotonic", lambda: monotonic[0])
    clock = WallClock(1000.0)
    assert clock.now() == 500.0
    wall[0], monotonic[0] = 1e9, 73.0
    assert clock.now() == 503.0, "a wall clock that is set changes nothing"


def test_a_restart_adds_the_time_away_but_never_more_than_an_hour_and_never_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 70.0)
    ten_years = 10 * 365 * 86_400.0
    for wall, now in ((1810.0, 810.0), (1000.0 + ten_years, 800.0 + MOST_STEP), (1300.0, 800.0), (0.0, 800.0)):
        monkeypatch.setattr(time, "time", lambda wall=wall: wall)
        clock = WallClock(1000.0, last=800.0)
        assert clock.now() == now
        assert clock.epoch + clock.now() == pytest.approx(wall), "the present is shown as the machine shows it"


def test_a_clock_that_was_years_ahead_at_one_start_is_right_again_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 70.0)
    monkeypatch.setattr(time, "time", lambda: 1e9)
    ahead = WallClock(1000.0, last=800.0)
    monkeypatch.setattr(time, "time", lambda: 1900.0)
    right = WallClock(ahead.epoch, last=ahead.now())
    assert (right.now(), right.epoch + right.now()) == (ahead.now(), 1900.0)
