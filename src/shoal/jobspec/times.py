"""Times and durations as text, in options and job files."""

import re
from datetime import datetime, timedelta
from math import inf

from shoal.core.errors import InputError
from shoal.core.units import Seconds

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST: Seconds = 1e10
"""Longest duration that is read; sums with it stay exact to the second."""

_SPAN = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)")
_CLOCK = re.compile(r"(\d+):(\d\d)(?::(\d\d))?")


def read_span(field: str, text: str) -> Seconds:
    """Return the seconds of a duration: ``90``, ``45s``, ``30min``, ``2h``, ``1d`` or ``H:MM:SS``."""
    clock = _CLOCK.fullmatch(text)
    if clock is not None and clock[3] is not None:
        return 3600.0 * int(clock[1]) + 60.0 * int(clock[2]) + int(clock[3])
    found = _SPAN.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found is not None and found[2] in _UNITS else inf
    if seconds > _LONGEST:
        raise InputError(field, text, "must be a duration: seconds, 30min, 2h, 1d or H:MM:SS")
    return seconds


def read_moment(field: str, text: str, now: datetime) -> float:
    """Return the Unix time of a text: ``18:00``, today or tomorrow; ``2026-11-17T08:00``; or ``+2h`` from now."""
    if text.startswith("+"):
        return now.timestamp() + read_span(field, text[1:])
    clock = _CLOCK.fullmatch(text)
    try:
        if clock is None:
            return datetime.fromisoformat(text).timestamp()
        at = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0), microsecond=0)
    except ValueError:
        raise InputError(field, text, "must be a time: 18:00, 2026-11-17T08:00, or +2h from now") from None
    return (at if at > now else at + timedelta(days=1)).timestamp()
