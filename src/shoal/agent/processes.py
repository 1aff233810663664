"""The processes of this machine, as /proc shows them.

Keepers import this module, so it imports the standard library only.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple


class Process(NamedTuple):
    """A process as /proc shows it. (pid, start) identifies it for ever, pid alone only while it lives."""

    pid: int
    state: str
    parent: int
    group: int
    start: int


def find_process(pid: int) -> Process | None:
    """Return the process with this number, if there is one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may itself hold spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[19]))


def all_processes() -> list[Process]:
    """Return all processes of this machine."""
    return [process for name in os.listdir("/proc") if name.isdigit() and (process := find_process(int(name)))]


def descendants(tops: Iterable[int], processes: Iterable[Process]) -> list[Process]:
    """Return the descendants of these processes, without the processes themselves."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = list(tops)
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [process.pid for process in below]
    return found


def environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty if it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            items = file.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in items if "=" in item)


def send_signal(process: Process, number: int) -> None:
    """Send a signal to this process, and never to another that has got its number since."""
    now = find_process(process.pid)
    if now is not None and now.start == process.start:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)
