"""Errors that users read: each names the field, the value and the way out::

ShoalError
├── InputError      a user's input is wrong: exit code 2
├── JournalError    a journal is not what it claims to be: exit code 2
└── PolicyError     a policy broke its contract: exit code 2
"""

import difflib
from collections.abc import Callable, Iterable
from functools import partial


class ShoalError(Exception):
    """The base of all errors that Shoal raises for its users to read; its text is one line."""

    exit_code = 1


class InputError(ShoalError):
    """Bad input: the text names the field, the value and what would be accepted."""

    exit_code = 2

    def __init__(self, field: str, value: object, hint: str, *, where: str = "") -> None:
        self.field = field
        self.value = value
        self.hint = hint
        self.where = where
        place = f"{where}: " if where else ""
        super().__init__(f"{place}{field}: {value!r}: {hint}")

    def __reduce__(self) -> tuple[Callable[..., "InputError"], tuple[str, object, str]]:
        # Worker processes send errors pickled; the default would pass only the whole text, as the field.
        return partial(type(self), where=self.where), (self.field, self.value, self.hint)


class JournalError(ShoalError):
    """A journal cannot be read, or holds something that cannot have happened."""

    exit_code = 2


class PolicyError(ShoalError):
    """A policy failed or broke its contract, e.g. a missing verdict or an unknown job; the text names the policy."""

    exit_code = 2


_MOST_LISTED = 50


def nearest(name: str, names: Iterable[str], *, most: int = 3) -> str:
    """Return a hint: the valid names closest to a misspelt one; all names (at most 50) if none is close."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=most, cutoff=0.5)
    if close:
        return f"unknown; did you mean {' or '.join(close)}?"
    listed = ", ".join(known[:_MOST_LISTED]) + (f", … ({len(known):,} in all)" if len(known) > _MOST_LISTED else "")
    return f"unknown; choose one of {listed}" if known else "unknown"
