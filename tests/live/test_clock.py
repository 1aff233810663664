"""The live clock: seconds since the journal began, never before what the journal already has."""

import time

import pytest

from shoal.live.clock import WallClock


def test_it_counts_from_the_epoch_by_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, monotonic = [1500.0], [70.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(time, "monotonic", lambda: monotonic[0])
    clock = WallClock(1000.0)
    assert clock.now() == 500.0
    wall[0], monotonic[0] = 0.0, 73.0
    assert clock.now() == 503.0, "a wall clock that is set back changes nothing"
    assert WallClock(1000.0, at_least=800.0).now() == 800.0
