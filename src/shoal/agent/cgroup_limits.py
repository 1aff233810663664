"""CPU and memory limits of runs, by the controllers of their cgroups; without these no limit is enforced.

Keepers import this module, so it imports the standard library only.
"""

import os
from contextlib import suppress
from typing import Any

_CONTROLLERS = ("cpu", "memory")
_ENABLE = " ".join(f"+{name}" for name in _CONTROLLERS)
_PERIOD = 100_000
"""Microseconds in which a run gets its share of CPU time."""


def enable_limits(own: str, leaf: str) -> str:
    """Let the cgroups below the agent's own have limits; return why they cannot, empty if they can.

    The kernel allows that only where no process is in the agent's own cgroup: if the agent is alone in it, it moves
    into its child ``leaf``.
    """
    try:
        missing = set(_CONTROLLERS) - set(_read(f"{own}/cgroup.controllers").split())
        if missing:
            return f"the cgroup controllers {' and '.join(sorted(missing))} are not delegated to {own}"
        with suppress(OSError):
            _write(f"{own}/cgroup.subtree_control", _ENABLE)
            return ""
        others = set(_read(f"{own}/cgroup.procs").split()) - {str(os.getpid())}
        if others:
            return f"other processes are in the agent's cgroup {own}: start the agent in a cgroup of its own"
        os.makedirs(f"{own}/{leaf}", exist_ok=True)
        _write(f"{own}/{leaf}/cgroup.procs", "0")
        _write(f"{own}/cgroup.subtree_control", _ENABLE)
    except OSError as error:
        return f"cannot use the cgroup {own} for limits: {error.strerror}"
    return ""


def pass_on(folder: str) -> None:
    """Let the cgroups of runs in this folder have limits."""
    _write(f"{folder}/cgroup.subtree_control", _ENABLE)


def set_limits(folder: str, limits: dict[str, Any]) -> None:
    """Limit a run's new cgroup to this much ``memory`` in bytes and ``cpus``, each if it is given.

    All processes of a run that needs more memory are killed together, and none of its memory is swapped out.
    """
    if limits.get("memory"):
        _write(f"{folder}/memory.max", str(limits["memory"]))
        _write(f"{folder}/memory.oom.group", "1")
        with suppress(FileNotFoundError):  # a kernel without swap
            _write(f"{folder}/memory.swap.max", "0")
    if limits.get("cpus"):
        _write(f"{folder}/cpu.max", f"{limits['cpus'] * _PERIOD} {_PERIOD}")


def ran_out_of_memory(folder: str) -> bool:
    """Return whether the kernel killed a process of this cgroup because it was at its memory limit."""
    try:
        events = _read(f"{folder}/memory.events")
    except OSError:
        return False
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", 0)) > 0


def over_memory(rank: int, ranks: int, shown: str) -> str:
    """Return the cause of end of a run, with this many ranks here, that was killed at its memory limit."""
    user = "it" if ranks == 1 else "the job"
    return f"rank {rank} was killed: {user} used more than its {shown} of memory" + " on one node" * (ranks > 1)


def machine_size() -> tuple[int, int]:
    """Return the CPUs that this process may use, and the machine's memory in bytes."""
    return len(os.sched_getaffinity(0)), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)  # never creates one: a missing controller is an error
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
