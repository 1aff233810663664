"""Values of ``sbatch`` options: times, sizes, arrays, dependencies and signals. Pure: the time is an argument."""

import re
from datetime import datetime, timedelta
from typing import Any

from shoal.jobspec.sbatch_options import Directive

MOST_IN_ARRAY = 10_000
"""Most jobs in one batch of submissions."""

_TIME_HINT = "write minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]]"
_BEGIN_HINT = "write now+1hour, 16:00, 2027-01-31, 2027-01-31T16:00 or tomorrow"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_WHEN = {"afterok": "ok", "afterany": "any", "afternotok": "notok", "after": "start"}
_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "XCPU": 24}
"""Signals that the process which runs a batch script passes on."""
_OF_DAY = {"midnight": 0, "noon": 12, "elevenses": 11, "fika": 15, "teatime": 16}


def time_limit(directive: Directive) -> float | None:
    """The seconds of a time limit; None for no limit."""
    value = directive.value
    if value.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    if re.fullmatch(r"(?:\d{1,6}-)?\d{1,9}(?::\d{1,9}){0,2}", value) is None:
        raise directive.error(_TIME_HINT)
    days, dash, clock = value.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return float(int(days or 0) * 86_400 + sum(part * unit for part, unit in zip(parts, units, strict=False))) or None


def memory(directive: Directive) -> int:
    """Bytes; a number alone is in megabytes. 0 stands for all of the node."""
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", directive.value.upper())
    if found is None:
        raise directive.error("write a number with K, M, G or T, such as 64G")
    return int(found[1]) << {"K": 10, "M": 20, "": 20, "G": 30, "T": 40}[found[2]]


def array(directive: Directive) -> tuple[tuple[int, ...], int | None]:
    """The indices of an array, and how many of its jobs may run at once."""
    indices, percent, most = directive.value.partition("%")
    hint = f"write indices such as 0-15, 1,3,5, 0-15:4 or 0-15%4, at most {MOST_IN_ARRAY:,}"
    chosen: dict[int, None] = {}
    for part in indices.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if found is None or found[3] == "0":
            raise directive.error(hint)
        steps = range(int(found[1]), int(found[2] or found[1]) + 1, int(found[3] or 1))
        if not steps or len(chosen) + len(steps) > MOST_IN_ARRAY:
            raise directive.error(hint)
        chosen |= dict.fromkeys(steps)
    if percent and (not most.isdecimal() or int(most) < 1):
        raise directive.error(hint)
    return tuple(chosen), int(most) if percent else None


def dependencies(directive: Directive) -> tuple[list[dict[str, str]], bool]:
    """The jobs that a job waits for, and whether it waits for all earlier ones of its name."""
    found: list[dict[str, str]] = []
    singleton = False
    if "?" in directive.value:
        raise directive.error("a job waits for all its conditions: write `,` between them, not `?`")
    for part in directive.value.split(","):
        kind, _, jobs = part.partition(":")
        if part == "singleton":
            singleton = True
        elif kind not in _WHEN or not jobs or "+" in jobs:
            raise directive.error("write afterok, afterany, afternotok or after, with :JOB[:JOB…], or singleton")
        else:
            found += [{"job": job, "when": _WHEN[kind]} for job in jobs.split(":") if job]
    return found, singleton


def signal_request(directive: Directive) -> tuple[str, float, bool]:
    """The signal, the seconds before the time limit, and whether it goes to the batch script alone."""
    found = re.fullmatch(r"(?:([RB]+):)?(\w+)(?:@(\d{1,5}))?", directive.value)
    name = found[2].upper().removeprefix("SIG") if found else ""
    if found is None or (name not in _SIGNALS and not (name.isdigit() and int(name) in _SIGNALS.values())):
        raise directive.error(f"write [B:]SIGNAL[@SECONDS] with one of {', '.join(_SIGNALS)} or its number")
    return name, float(found[3] or 60), "B" in (found[1] or "")


def begin(directive: Directive, now: datetime) -> float:
    """The earliest start, in Unix seconds."""
    value = directive.value.strip().lower()
    if found := re.fullmatch(r"now(?:\+(\d{1,9})\s*([a-z]*))?", value):
        unit = (found[2] or "s")[0]
        if unit not in _UNITS or (found[2] and not re.fullmatch(r"(second|minute|hour|day|week)s?", found[2])):
            raise directive.error(_BEGIN_HINT)
        return (now + timedelta(seconds=int(found[1] or 0) * _UNITS[unit])).timestamp()
    return _moment(directive, value, now).timestamp()


def _moment(directive: Directive, value: str, now: datetime) -> datetime:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if value in ("today", "tomorrow"):
        return now if value == "today" else now + timedelta(days=1)
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", value)
    if value in _OF_DAY or clock is not None:
        parts = [_OF_DAY[value]] if clock is None else [int(part or 0) for part in clock.groups()]
        seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
        if seconds >= 86_400:
            raise directive.error(_BEGIN_HINT)
        moment = today + timedelta(seconds=seconds)
        return moment if moment > now else moment + timedelta(days=1)
    try:
        return datetime.fromisoformat(value.upper()).replace(tzinfo=now.tzinfo)
    except ValueError:
        raise directive.error(_BEGIN_HINT) from None


def array_variables(indices: tuple[int, ...] | None, number: int) -> list[tuple[str, dict[str, Any]]]:
    """For each job of an array, the suffix of its name and its own variables."""
    if indices is None:
        return [("", {})]
    shared = {"JOB_ID": number, "TASK_COUNT": len(indices), "TASK_MIN": min(indices), "TASK_MAX": max(indices)}
    shared["TASK_STEP"] = indices[1] - indices[0] if len(indices) > 1 else 1
    return [
        (f"_{index}", {f"SLURM_ARRAY_{name}": str(value) for name, value in {**shared, "TASK_ID": index}.items()})
        for index in indices
    ]
