"""Kill processes without a keeper: after a keeper died, and after an earlier agent of the same node did.

A process is identified by its number and its start time, or by the boot in its environment: another process that
happens to have an old number is never touched. Where runs have cgroups, everything in an earlier run's is killed.
"""

import hashlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from shoal.agent.cgroups import earlier_runs, end_cgroup, remove_empty
from shoal.agent.processes import Process, all_processes, descendants, environment, send_signal
from shoal.agent.takeover import NOTHING_TAKEN, TakenRuns
from shoal.agent.workspace import KeeperRecord, Workspace

_LOG = logging.getLogger(__name__)

_KEEPERS_OWN_SECONDS = 2.0
"""Seconds that keepers whose agent has died have to warn their ranks and kill them, so that ranks can save."""

_PAUSE_SECONDS = 0.05
_COMPLAIN_SECONDS = 10.0


def place_of(home: Path) -> str:
    """Return text that identifies this machine and home folder: two agents of one name cannot share both."""
    machine = ""
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{machine}\0{socket.gethostname()}\0{home}".encode()).hexdigest()[:32]


def machine_boot() -> str:
    """Return the identifier of this boot of the machine; process numbers are meaningless after another one."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def children() -> set[int]:
    """Return the numbers of this process's children."""
    return {process.pid for process in all_processes() if process.parent == os.getpid()}


def kill_orphans(others: Collection[int]) -> bool:
    """Kill all descendants of this process except these children and theirs; return whether there were none."""
    processes = all_processes()
    orphans = [process for process in processes if process.parent == os.getpid() and process.pid not in others]
    for process in [*orphans, *descendants([orphan.pid for orphan in orphans], processes)]:
        send_signal(process, signal.SIGKILL)
    for orphan in orphans:
        with suppress(ChildProcessError):
            os.waitpid(orphan.pid, os.WNOHANG)
    return not orphans


def remains(records: Sequence[KeeperRecord], machine: str, spared: TakenRuns = NOTHING_TAKEN) -> list[Process]:
    """Return the live processes of these keepers and all they started, on this boot of the machine.

    Those of runs that were taken over, and of their servers, are left out.
    """
    records = [record for record in records if record.machine == machine]
    processes = [process for process in all_processes() if process.state != "Z" and process.pid != os.getpid()]
    keepers = {(record.pid, record.start) for record in records}
    boots = {record.boot for record in records}
    tops = [
        process
        for process in processes
        if (process.pid, process.start) in keepers or environment(process.pid).get("SHOAL_BOOT") in boots
    ]
    kept = spared.servers | spared.keepers | {process.pid for process in descendants(spared.keepers, processes)}
    found = {*tops, *descendants([top.pid for top in tops], processes)}
    return [process for process in found if process.pid not in kept]


def clear_earlier(
    workspace: Workspace, given_up: Callable[[], bool], own_cgroup: str = "", spared: TakenRuns = NOTHING_TAKEN
) -> bool:
    """Kill all processes of earlier agents of the node and remove their records; False if ``given_up`` came first.

    Runs that this agent has taken over are spared.

    Runs whose records were removed are found by their cgroups below ``own_cgroup``.
    """
    found = list(workspace.records())
    records = [record for _, record in found if record is not None]
    machine = machine_boot()
    began = complained = time.monotonic()
    keepers = {(record.pid, record.start) for record in records}
    cgroups = {record.cgroup for record in records if record.cgroup and record.machine == machine}
    cgroups |= earlier_runs(own_cgroup, workspace.identity)
    cgroups -= spared.cgroups
    folders = {os.path.dirname(cgroup) for cgroup in cgroups}
    while (left := remains(records, machine, spared)) or cgroups:
        if given_up():
            return False
        now = time.monotonic()
        kept = any((process.pid, process.start) in keepers for process in left)
        if not kept or now - began >= _KEEPERS_OWN_SECONDS:
            for process in left:
                send_signal(process, signal.SIGKILL)
            cgroups = {folder for folder in cgroups if not end_cgroup(folder)}
        if now - complained >= _COMPLAIN_SECONDS:
            complained = now
            _LOG.warning("earlier processes do not die", extra={"pids": sorted(process.pid for process in left)})
        time.sleep(_PAUSE_SECONDS)
    for folder in folders:
        remove_empty(folder)
    for path, _ in found:
        if path not in spared.folders:
            workspace.forget(path)
    if records:
        _LOG.info("earlier boot cleared", extra={"runs": len(records)})
    return True
