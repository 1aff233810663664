"""Output of Slurm's programs as values; pure functions, for Slurm 20.11 and newer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.core.units import Seconds
from shoal.provider.protocol import AllocationState, Seen, Site, SiteState

_FLAGS: Final = "*~#!%$@^-+"
"""Suffixes of a node's state; `_FLAGGED` has those that make it unusable."""

_FLAGGED: Mapping[str, tuple[SiteState, str]] = {
    "*": ("down", "does not respond"),
    "~": ("asleep", "powered down"),
    "#": ("asleep", "powering up"),
    "%": ("down", "powering down"),
    "!": ("down", "powering down"),
    "$": ("draining", "in a maintenance reservation"),
    "@": ("draining", "will reboot"),
    "^": ("down", "reboots"),
}

_BASES: Mapping[str, SiteState] = {
    **dict.fromkeys(("idle", "mixed", "allocated", "completing", "planned", "reserved", "blocked"), "up"),
    **dict.fromkeys(("drained", "draining", "drain", "failing", "maint", "reboot_requested"), "draining"),
    **dict.fromkeys(("powered_down", "powering_up", "power_up"), "asleep"),
}
"""Words for a node's state; any other, such as ``down``, ``fail``, ``inval`` or ``unknown``, is down."""

_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_UP = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT", "COMPLETING"}
"""States of jobs whose processes may run; in COMPLETING an agent that was cancelled has its grace, and no other agent
must be started on its node, since that agent's token would replace its own."""
_EXITED = {"COMPLETED", "FAILED"}
"""States of jobs whose script ended by itself; Slurm then kills what the job has left and confirms it."""
_LOST = {"NODE_FAIL"}

_GRES = re.compile(r"gpu(?::(?P<kind>[^:(]*[^:(\d][^:(]*))?(?::no_consume)?(?::(?P<count>\d+))?(?:\(.*\))?")
_AWAY = re.compile(
    "contact slurm controller|connect failure|Connection (refused|reset|timed out)|Socket timed out|"
    "Transport endpoint|Zero Bytes|temporarily unable|Insane message|configuration source",
    re.IGNORECASE,
)
_GONE = re.compile("Invalid job id|already complet|Job/step already", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as ``squeue`` prints it; ``node`` is empty before it has one."""

    ref: str
    state: str
    reason: str
    node: str
    name: str

    def seen(self, name: str) -> Seen:
        """Return this job as the allocation ``name``."""
        why = "" if self.reason == "None" else self.reason
        if self.state in _WAITING:
            return Seen(name, self.ref, AllocationState.WAITING, why=why)
        if self.state in _UP:
            return Seen(name, self.ref, AllocationState.UP)
        why = why or self.state
        if self.state in _LOST:
            return Seen(name, self.ref, AllocationState.LOST, why=why)
        status = 0 if self.state == "COMPLETED" else None
        return Seen(name, self.ref, AllocationState.ENDED, status, self.state in _EXITED, why)


def read_jobs(text: str) -> list[SlurmJob]:
    """Return the jobs that ``commands.list_jobs`` printed."""
    return [SlurmJob(*line.split("|", 4)) for line in text.splitlines() if line.count("|") >= 4]


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node with GPUs, and the address at which others reach it."""

    site: Site
    address: str


def read_nodes(text: str) -> list[SlurmNode]:
    """Return the nodes with GPUs that ``commands.list_nodes`` printed, each once."""
    found: dict[str, SlurmNode] = {}
    for line in text.splitlines():
        if line.count("|") < 4:
            continue
        name, address, state, gres, reason = line.split("|", 4)
        if name not in found and (gpus := read_gres(gres)):
            # A node of Shoal has GPUs of one kind: the most numerous; of equal ones the first.
            kind = max(gpus, key=lambda kind: gpus[kind])
            shown, why = node_state(state, reason)
            found[name] = SlurmNode(Site(name, kind, gpus[kind], state=shown, why=why), address)
    return list(found.values())


def node_state(state: str, reason: str) -> tuple[SiteState, str]:
    """Return a node's state from the long form of ``sinfo``'s state with its suffixes, and why it is not up."""
    base = state.rstrip(_FLAGS)
    reason = "" if reason == "none" else reason
    for flag in state[len(base) :]:
        if flag in _FLAGGED:
            found, why = _FLAGGED[flag]
            return found, reason or why
    known = _BASES.get(base, "down")
    return known, "" if known == "up" else reason or base


def read_gres(text: str) -> dict[str, int]:
    """Return the number of GPUs by kind in a node's gres, such as ``gpu:v100:2(S:0-1)``; ``gpu`` if it has no type."""
    found: dict[str, int] = {}
    for part in re.split(r",(?![^(]*\))", text):
        if read := _GRES.fullmatch(part):
            kind = read["kind"] or "gpu"
            found[kind] = found.get(kind, 0) + int(read["count"] or 1)
    return {kind: count for kind, count in found.items() if count}


def read_configuration(text: str) -> dict[str, str]:
    """Return the settings that ``scontrol show config`` printed, by name."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def kill_wait(settings: Mapping[str, str]) -> Seconds | None:
    """Return the seconds between SIGTERM and SIGKILL of a cancelled job, if the configuration has them."""
    read = re.match(r"\d+", settings.get("KillWait", ""))
    return float(read[0]) if read else None


def submitted(text: str) -> str:
    """Return the number of the job that ``sbatch --parsable`` printed, without the name of a cluster."""
    return text.strip().partition(";")[0]


def complaint(text: str) -> str:
    """Return the stderr of Slurm's programs as one line, without the program's name and repeated words."""
    lines = [re.sub(r"^\w+: (error|fatal): |^\w+ error: ", "", line).strip() for line in text.splitlines()]
    return lines[-1].removeprefix("Batch job submission failed: ") if lines else "no reason given"


def is_away(text: str) -> bool:
    """Return whether a program complains that it cannot reach Slurm's controller."""
    return _AWAY.search(text) is not None


def is_gone(text: str) -> bool:
    """Return whether ``scancel`` complains that the job has ended."""
    return _GONE.search(text) is not None
