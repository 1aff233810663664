"""System users of tenants: where an agent runs as root, the jobs of each tenant run as a user of their own.

Users are mapped by a file with lines ``tenant: user``, or made: numbers of a range, which need no entry in /etc/passwd.
The numbers given out are recorded in ``tenants.json`` in the agent's home, so that a tenant keeps its number, and has
the same one on all nodes that share the home.
"""

import fcntl
import grp
import json
import os
import pwd
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.agent.node_run import Key
from shoal.agent.workspace import Workspace
from shoal.core.errors import InputError
from shoal.wire.files import replace_file

_MADE = range(2_000_000_000, 2_000_065_536)
"""Numbers of users that are made by default: above those of people, containers and /etc/subuid."""

_LEAST_NUMBER = 1000
"""Numbers below it belong to the system."""


@dataclass(frozen=True, slots=True)
class SystemUser:
    """The user as which a tenant's jobs run; ``home`` is None for a user that is not in /etc/passwd."""

    tenant: str
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str | None = None

    def keeper_input(self) -> dict[str, Any]:
        """Return the part of a keeper's input with which it starts a process as this user."""
        shown = f"{self.name} of tenant {self.tenant}"
        return {"uid": self.uid, "gid": self.gid, "groups": list(self.groups), "shown": shown}

    def hand_over(self, workspace: Workspace, job: str, key: Key) -> dict[str, str]:
        """Give a run's writable folders to the user; return the variables that name the user and the folders."""
        run, own, folder = workspace.run(key), workspace.own(key), workspace.job(job)
        for path in (run, own, own / "tmp"):
            path.mkdir(mode=0o700, exist_ok=True)
        # The agent's records of the run stay its own; the user may pass through their folder and read its lease.
        os.chown(run, -1, self.gid, follow_symlinks=False)
        run.chmod(0o710)
        for path in (folder, own, own / "tmp"):
            os.chown(path, self.uid, self.gid, follow_symlinks=False)
        name = self.tenant if self.home is None else self.name
        return {"USER": name, "LOGNAME": name, "HOME": self.home or str(folder), "TMPDIR": str(own / "tmp")}


@dataclass(frozen=True, slots=True)
class TenantUsers:
    """The users of tenants on one node: those of a file, or numbers of a range recorded in the agent's home."""

    home: Path
    mapped: dict[str, SystemUser] | None = None
    made: range = _MADE

    def user(self, tenant: str) -> SystemUser:
        """Return a tenant's user; ``InputError`` if it has none."""
        if not tenant:
            raise InputError("tenant", tenant, "the control plane names no tenant; run the same version of Shoal there")
        if self.mapped is not None:
            if tenant not in self.mapped:
                raise InputError("tenant", tenant, "has no system user on this node; the operator adds it to the file")
            return self.mapped[tenant]
        number = self._number(tenant)
        return SystemUser(tenant, f"user {number}", number, number)

    def _number(self, tenant: str) -> int:
        record = self.home / "tenants.json"
        lock = os.open(self.home / "tenants.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known: dict[str, int] = json.loads(record.read_bytes()) if record.exists() else {}
            if known.get(tenant) in self.made:
                return known[tenant]
            used = set(known.values())
            free = next((number for number in self.made if number not in used), None)
            if free is None:
                hint = f"all {len(self.made)} numbers of users are taken; name a wider range"
                raise InputError("tenant-users", f"{self.made[0]}-{self.made[-1]}", hint)
            replace_file(record, json.dumps({**known, tenant: free}).encode(), mode=0o600)
            return free
        finally:
            os.close(lock)

    def open_home(self, workspace: Workspace) -> None:
        """Let the users pass through the agent's folders, and keep them from the files in its home."""
        os.umask(0o022)
        for folder in workspace.passages:
            folder.chmod(0o711)
            for entry in os.scandir(folder):
                if entry.is_file(follow_symlinks=False):
                    os.chmod(entry.path, stat.S_IMODE(entry.stat().st_mode) & 0o700)


def choose_users(wanted: str, home: Path) -> tuple[TenantUsers | None, str]:
    """Return the users of tenants that an operator wants, or None and why tenants share the agent's user.

    ``wanted`` is ``off``, ``auto``, a range of numbers or the path of a file. With ``auto`` tenants have users of their
    own if the agent is root and such users can reach ``home`` and the agent's Python.
    """
    closed = _closed(home)
    if wanted in ("off", "auto"):
        why = _why_shared(wanted, closed)
        return (None, why) if why else (TenantUsers(home), "")
    if os.geteuid() != 0:
        raise InputError("tenant-users", wanted, "only an agent that runs as root can start jobs of other users")
    if closed is not None:
        hint = f"other users cannot pass through {closed}; choose a home such as /var/lib/shoal"
        raise InputError("home", str(home), hint)
    numbers = re.fullmatch(r"(\d{1,10})-(\d{1,10})", wanted)
    if numbers is None:
        return TenantUsers(home, _read(Path(wanted))), ""
    first, last = int(numbers[1]), int(numbers[2])
    if not _LEAST_NUMBER <= first <= last < 2**31:
        raise InputError("tenant-users", wanted, f"must be FIRST-LAST with {_LEAST_NUMBER} ≤ FIRST ≤ LAST < 2147483648")
    return TenantUsers(home, made=range(first, last + 1)), ""


def _why_shared(wanted: str, closed: Path | None) -> str:
    """Return why tenants share the agent's user with ``off`` or ``auto``; empty if each has its own."""
    if os.geteuid() != 0:
        return "its agents do not run as root"
    if wanted == "off":
        return "--tenant-users is off"
    if closed is not None:
        return f"other users cannot pass through {closed}; choose a home such as /var/lib/shoal"
    closed = _closed(Path(sys.prefix, "bin")) or _closed(Path(sys.executable))
    if closed is not None:
        return f"other users cannot run its Python, since they cannot pass through {closed}; use another Python"
    return ""


def _closed(path: Path) -> Path | None:
    """Return the outermost folder above ``path`` that other users cannot pass through; None if they can."""
    existing = [folder for folder in reversed(path.resolve().parents) if folder.exists()]
    return next((folder for folder in existing if not folder.stat().st_mode & stat.S_IXOTH), None)


def _read(path: Path) -> dict[str, SystemUser]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        hint = f"is neither off, auto nor FIRST-LAST, and as a file cannot be read: {error}"
        raise InputError("tenant-users", str(path), hint) from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            tenant, colon, name = (part.strip() for part in text.partition(":"))
            if not colon or not tenant or not name:
                raise InputError("tenant-users", text, "must be `tenant: user`", where=f"{path}:{number}")
            found[tenant] = _mapped(tenant, name, f"{path}:{number}")
    shared = {user.uid for user in found.values()}
    if len(shared) < len(found):
        raise InputError("tenant-users", str(path), "two tenants have the same user; give each its own")
    return found


def _mapped(tenant: str, name: str, where: str) -> SystemUser:
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        if not name.isdigit() or int(name) >= 2**31:
            raise InputError("user", name, "there is no such user on this node", where=where) from None
        if int(name) == 0:
            raise InputError("user", name, "jobs may not run as root", where=where) from None
        return SystemUser(tenant, f"user {name}", int(name), int(name))
    if entry.pw_uid == 0:
        raise InputError("user", name, "jobs may not run as root", where=where)
    groups = tuple(group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem)
    return SystemUser(tenant, entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)
