"""Tuning constants: the numbers that a policy's code fixes, in one frozen dataclass, its class attribute ``tuning``.

A constant differs from an option in that a run cannot choose it; ``shoal policies NAME`` shows both, and the journal's
header records both. A field may be the tuning of a part that several policies share.
"""

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

Value = TypeVar("Value", bound=float)


class Constant(NamedTuple):
    """A constant's value and its description in one line."""

    value: float
    meaning: str


def constant(value: Value, meaning: str) -> Value:
    """A field of a tuning dataclass, e.g. ``patience: float = constant(3600.0, "seconds a job waits at most")``."""
    declared: Value = field(default=value, metadata={"meaning": meaning})
    return declared


def constants_of(policy: Any) -> Mapping[str, Constant]:
    """The tuning constants of a policy or of its class, by name; empty where it declares none.

    A constant of a shared tuning has a name such as ``migration.saves``.
    """
    return _constants(getattr(policy, "tuning", None), "")


def _constants(tuning: Any, prefix: str) -> dict[str, Constant]:
    found: dict[str, Constant] = {}
    for part in fields(tuning) if is_dataclass(tuning) else ():
        value = getattr(tuning, part.name)
        if is_dataclass(value):
            found |= _constants(value, f"{prefix}{part.name}.")
        else:
            found[f"{prefix}{part.name}"] = Constant(value, part.metadata.get("meaning", ""))
    return found
