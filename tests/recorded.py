"""Runs that are compared with themselves: every line of a record must be the same when the same run is made again.

``tests/mutants.py`` makes the first record of each run with unchanged code and every other with a mutant, so a mutant
that changes anything in the run is noticed, whether or not it breaks a promise.
"""

from collections.abc import Callable
from itertools import zip_longest

_FIRST: dict[str, list[str]] = {}
"""By name of a run, the first record of it in this process."""


def assert_repeats(name: str, record: Callable[[], list[str]]) -> None:
    """Make the record of a run and compare it with the first one, which is made now if there is none."""
    if name not in _FIRST:
        _FIRST[name] = record()
    for number, (first, now) in enumerate(zip_longest(_FIRST[name], record())):
        assert now == first, f"{name}, line {number}"
