"""Names for the plain numbers and texts used throughout the ring."""

from typing import TypeAlias

Seconds: TypeAlias = float
"""Seconds since the start of the run (simulation) or since the epoch (a live cluster)."""

JobId: TypeAlias = str
"""A job's name, given by its owner; unique within a journal."""

JobNumber: TypeAlias = int
"""A job's admission number: 0 for the first one submitted. Events and commands refer to jobs by it."""

TenantId: TypeAlias = str
"""The account a job is charged to."""

DAY: Seconds = 86_400.0

UNITS = (("d", DAY), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
"""Readable units of durations, and their seconds."""


def span(seconds: Seconds) -> str:
    """Return a duration in a readable unit, to about two digits: "90 s", "12 min"."""
    name, unit = unit_of(seconds)
    return f"{figure(seconds / unit)} {name}"


def unit_of(seconds: Seconds) -> tuple[str, float]:
    """Return the readable unit of a duration, its name and its seconds; a unit is used from two of it on."""
    return next((unit for unit in UNITS if abs(seconds) >= 2 * unit[1]), UNITS[-1])


def figure(value: float) -> str:
    """Return a number to about two digits."""
    return f"{value:.0f}" if value >= 10 or abs(value - round(value)) < 0.05 else f"{value:.1f}"
