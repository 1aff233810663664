"""CPU time of repeated calls."""

from collections.abc import Callable
from time import process_time
from typing import TypeVar

_T = TypeVar("_T")


def best_of(times: int, call: Callable[[], _T]) -> tuple[float, _T]:
    """Return the least CPU seconds of ``times`` calls (at least one), and the last call's result."""
    seconds = []
    for _ in range(times):
        begin = process_time()
        result = call()
        seconds.append(process_time() - begin)
    return min(seconds), result
