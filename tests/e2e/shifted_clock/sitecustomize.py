"""Lets the wall clock of a process that has this folder on its path jump: a file says by how many seconds it is off."""

import os
import time
from collections.abc import Callable

_PATH = os.environ.get("SHOAL_TEST_CLOCK", "")


def _offset() -> float:
    try:
        with open(_PATH) as file:
            return float(file.read() or 0.0)
    except (OSError, ValueError):
        return 0.0


def _shifted(real: Callable[[], float]) -> Callable[[], float]:
    return lambda: real() + _offset()


def _shifted_ns(real: Callable[[], int]) -> Callable[[], int]:
    return lambda: real() + int(_offset() * 1e9)


if _PATH:
    time.time, time.time_ns = _shifted(time.time), _shifted_ns(time.time_ns)
