"""Cgroups (version 2) for the runs of a node, so that no process of a run can leave it.

A run's cgroup is ``shoal-<node>-<boot>/<job>.<incarnation>`` below the agent's own, where ``<node>`` identifies the
node's folder. No controller is used: a cgroup here only holds processes, so that ``cgroup.kill`` ends all of them, and
can be removed only when none is left.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from glob import escape, glob


def find(mounts: str, own: str) -> str:
    """Return the folder of a process's cgroup, by its /proc files mountinfo and cgroup; empty if there is none."""
    inside = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    for root, point in _mounts(mounts):
        if inside is not None and (inside + "/").startswith(root.rstrip("/") + "/"):
            return os.path.normpath(point + "/" + inside[len(root.rstrip("/")) :])
    return ""


def _mounts(text: str) -> Iterator[tuple[str, str]]:
    """Yield (root, mount point) of each cgroup file system of version 2."""
    for line in text.splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            yield fields.split()[3], fields.split()[4]


def usable(folder: str) -> str:
    """Return why runs cannot have cgroups below this folder; empty if they can."""
    if not folder:
        return "no cgroups of version 2 are mounted here"
    procs, probe = f"{folder}/cgroup.procs", f"{folder}/shoal-probe-{os.getpid()}"
    if not os.access(procs, os.W_OK):
        return f"this user may not write to {procs}: the subtree is not delegated"
    try:
        os.mkdir(probe)
        kills = os.path.exists(f"{probe}/cgroup.kill")
        os.rmdir(probe)
    except OSError as error:
        return f"cannot make a cgroup below {folder}: {error.strerror}"
    return "" if kills else "this kernel has no cgroup.kill (Linux 5.14)"


def own_folder() -> tuple[str, str]:
    """Return the folder below which this process may make cgroups; empty, and why, if there is none."""
    texts = []
    for name in ("mountinfo", "cgroup"):
        try:
            with open(f"/proc/self/{name}", encoding="utf-8") as file:
                texts.append(file.read())
        except OSError as error:
            return "", f"cannot read /proc/self/{name}: {error.strerror}"
    folder = find(*texts)
    reason = usable(folder)
    return ("", reason) if reason else (folder, "")


def run_folder(own: str, node: str, boot: str, key: tuple[int, int]) -> str:
    """Return the cgroup that a run's keeper makes below the agent's own, in a folder for its boot; empty if none."""
    if not own:
        return ""
    folder = f"{own}/shoal-{node}-{boot}"
    with suppress(FileExistsError):
        os.mkdir(folder)
    return f"{folder}/{key[0]:d}.{key[1]:d}"


def earlier_runs(own: str, node: str) -> set[str]:
    """Return the cgroups of a node's runs below this folder, whether or not the runs have records."""
    return set(glob(f"{escape(own)}/shoal-{node}-*/[0-9]*.[0-9]*")) if own else set()


def end_cgroup(folder: str) -> bool:
    """Kill every process in a cgroup and remove it; return whether it is gone: the kernel keeps one with processes.

    Without a cgroup (an empty name) there is nothing to do.
    """
    if not folder:
        return True
    with suppress(OSError):
        os.rmdir(folder)
    if not os.path.exists(folder):
        return True
    with suppress(OSError), open(f"{folder}/cgroup.kill", "wb") as file:
        file.write(b"1")
    for inner, _, _ in os.walk(folder, topdown=False):  # a job may have made some inside
        with suppress(OSError):
            os.rmdir(inner)
    return not os.path.exists(folder)


def remove_empty(folder: str) -> None:
    """Remove a folder of cgroups if no cgroup is left in it."""
    with suppress(OSError):
        os.rmdir(folder)
