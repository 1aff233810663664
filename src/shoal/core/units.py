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


def duration(seconds: Seconds) -> str:
    """Return a time span in the largest unit that divides it: ``2 h``, ``90 min``, ``45 s``."""
    units = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))
    name, unit = next(((n, u) for n, u in units if seconds >= u and seconds % u == 0), ("s", 1.0))
    return f"{seconds / unit:,.6g} {name}"
