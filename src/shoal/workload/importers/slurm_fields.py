"""Fields of Slurm's accounting as ``sacct`` prints them: times, durations, GPUs, states and lists of nodes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.errors import InputError
from shoal.workload.importers.rows import clock

_UNKNOWN = frozenset(("", "unknown", "none", "n/a", "invalid", "0"))
_UNLIMITED = frozenset(("", "unlimited", "partition_limit", "invalid", "none", "unknown", "n/a"))
_SPAN = re.compile(r"^(?:(?P<d>[0-9]+)-)?(?:(?P<h>[0-9]+):)?(?P<m>[0-9]+):(?P<s>[0-9]+(?:\.[0-9]+)?)$")
_DIGITS = re.compile(r"^[0-9]{1,15}(?:\.[0-9]+)?$")
_TRES_GPU = re.compile(r"^gres/gpu(?::(?P<kind>[^=]+))?=(?P<count>[0-9]{1,9})$")
_GRES_GPU = re.compile(
    r"^(?:per_node:|per_job:)?(?:gres[:/])?gpu(?:[:=](?P<kind>[^:=()]*[^:=()0-9][^:=()]*))?"
    r"(?:[:=](?P<count>[0-9]{1,9}))?(?:\(.*\))?$",
    re.IGNORECASE,
)
_KIND_IN_NAME = re.compile(
    r"(?<![a-z0-9])(?:nvidia[_-]?)?(gh200|gb200|[abhlptv][0-9]{1,3}s?|b[123]00|k[248]0m?|mi[0-9]{2,3}[ax]?|titan[a-z]*"
    r"|rtx[_-]?[a-z]?[0-9]{4}|gtx[_-]?[0-9]{3,4}(?:ti)?|quadro[a-z0-9]*)(?![0-9])",
    re.IGNORECASE,
)
_GROUP = re.compile(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*")
_MOST_NODES = 20_000

ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "SPECIAL_EXIT", "TIMEOUT",
)  # fmt: skip
"""States of jobs that have ended."""

REQUEUED = ("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD")
"""States of runs after which the job was put back into the queue."""

_OPEN = (
    "PENDING",
    "RUNNING",
    "SUSPENDED",
    "RESIZING",
    "CONFIGURING",
    "COMPLETING",
    "STOPPED",
    "STAGE_OUT",
    "SIGNALING",
)
STATES = (*ENDED, *REQUEUED, *_OPEN)


@dataclass(frozen=True, slots=True)
class Gpus:
    """A number of GPUs, and by kind where kinds are named."""

    count: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)


NO_GPUS = Gpus()


def moment(name: str, text: str) -> float | None:
    """Seconds since 1970 of an ISO time or a number of seconds; None for ``Unknown``, ``None`` and the like."""
    if text.lower() in _UNKNOWN:
        return None
    if _DIGITS.match(text):
        return float(text)
    return clock(name, text)


def span(name: str, text: str) -> float:
    """Seconds of a Slurm duration: ``[days-][hours:]minutes:seconds``, or a number of seconds."""
    match = _SPAN.match(text)
    if match is None:
        if _DIGITS.match(text):
            return float(text)
        raise InputError(name, text, "is not a span of time like 1-02:03:04")
    days, hours, minutes = (int(match[part] or 0) for part in "dhm")
    return float(days * 86400 + hours * 3600 + minutes * 60) + float(match["s"])


def limit(name: str, text: str, unit: float = 1.0) -> float | None:
    """Seconds of a time limit, a plain number counting ``unit`` seconds; None where it is unlimited or not known."""
    if text.lower() in _UNLIMITED:
        return None
    return (float(text) * unit if _DIGITS.match(text) else span(name, text)) or None


def tres_gpus(name: str, text: str) -> Gpus:
    """The GPUs in a TRES list such as ``cpu=8,gres/gpu=4,gres/gpu:a100=4``."""
    plain, kinds = 0, dict[str, int]()
    for part in text.split(",") if "gres/gpu" in text else ():
        match = _TRES_GPU.match(part)
        if match is None:
            if part.startswith(("gres/gpu=", "gres/gpu:")) and not part.endswith("+"):
                raise InputError(name, text, f"{part!r} is not gres/gpu=N or gres/gpu:KIND=N")
            continue
        if match["kind"] is None:
            plain = int(match["count"])
        else:
            kinds[match["kind"].lower()] = int(match["count"])
    if text.endswith("+") and not (plain or kinds):
        raise InputError(name, text, f"sacct cut the field, so GPUs may be missing; ask for more: -o {name}%100")
    # Slurm prints the total as well as the kinds where both are accounted; either alone is the total.
    return Gpus(plain or sum(kinds.values()), kinds)


def gres_gpus(name: str, text: str, nodes: int) -> Gpus:
    """The GPUs in a GRES list such as ``gpu:v100:2,lustre:1``, which counts them on each of ``nodes`` nodes."""
    total, kinds = 0, dict[str, int]()
    for part in text.split(",") if "gpu" in text.lower() else ():
        if "gpu" not in part.lower():
            continue
        match = _GRES_GPU.match(part.strip())
        if match is None:
            raise InputError(name, text, f"{part!r} is not gpu:N or gpu:KIND:N")
        count = int(match["count"] or 1) * (1 if part.lower().startswith("per_job:") else nodes)
        total += count
        if match["kind"]:
            kinds[match["kind"].lower()] = count
    return Gpus(total, kinds)


def kind_in(name: str) -> str | None:
    """The kind of GPU that a name such as ``gpu-a100-long`` contains; None for none."""
    match = _KIND_IN_NAME.search(name)
    return match[1].lower() if match else None


def state_of(text: str) -> str:
    """A state's whole name: ``CANCELLED by 1000`` is CANCELLED and ``OUT_OF_ME+`` is OUT_OF_MEMORY."""
    word = (text.upper().split() or [""])[0]
    if word.endswith("+"):
        return next((state for state in STATES if state.startswith(word[:-1])), word[:-1])
    return word


def expand_nodes(text: str) -> tuple[str, ...]:
    """The names in a list of nodes: ``gpu[01-03,7],login1`` is gpu01 gpu02 gpu03 gpu7 login1; empty if unknown."""
    if text.strip().lower() in ("", "none assigned", "none", "unknown", "(null)") or text.endswith("+"):
        return ()
    names: list[str] = []
    for group in filter(None, _GROUP.findall(text)):
        expanded = [""]
        for literal, ranges in re.findall(r"([^\[\]]*)(?:\[([^\]]*)\])?", group):
            choices = _numbers(ranges) if ranges else [""]
            if len(expanded) * len(choices) > _MOST_NODES:
                return ()
            expanded = [prefix + literal + number for prefix in expanded for number in choices]
        names += expanded
    return tuple(names) if len(names) <= _MOST_NODES else ()


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        low, dash, high = part.partition("-")
        if not dash:
            numbers.append(low)
        elif low.isdigit() and high.isdigit() and int(high) - int(low) < _MOST_NODES:
            numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)]
    return numbers
