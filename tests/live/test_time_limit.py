"""Calls that take too long are interrupted by their own CPU time."""

import time
from contextlib import suppress

import pytest

from shoal.engine.guard import TooSlow
from shoal.live.time_limit import CpuLimit


def spin() -> None:
    while True:
        with suppress(Exception):  # a policy that catches every error is interrupted all the same
            sum(range(1000))


def test_a_call_that_never_ends_is_interrupted_and_the_next_one_runs() -> None:
    limit = CpuLimit()
    for _ in range(2):
        with pytest.raises(TooSlow):
            limit.run(spin, 0.05)
    assert limit.run(lambda: 7, 0.05)[0] == 7
    limit.close()


def test_an_error_of_the_call_is_raised_and_sleeping_costs_no_time() -> None:
    limit = CpuLimit()
    with pytest.raises(ZeroDivisionError):
        limit.run(lambda: 1 / 0, 5.0)
    _, used = limit.run(lambda: time.sleep(0.6), 0.3)
    assert used < 0.3
    limit.close()
