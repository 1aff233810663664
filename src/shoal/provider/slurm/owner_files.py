"""Files and variables of the users as whom native allocations run: each can use its own folders and no others'."""

import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from shoal.core.errors import InputError
from shoal.provider.protocol import EngineRefusal


def user_of(name: str) -> pwd.struct_passwd:
    """Return the system user of a tenant, who has the same name; ``EngineRefusal`` if there is none, or it is root."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise EngineRefusal(f"there is no system user {name!r} on the control plane's machine") from None
    if found.pw_uid == 0:
        raise EngineRefusal("jobs may not run as root: submit as another tenant")
    return found


def variables_of(owner: pwd.struct_passwd | None) -> dict[str, str]:
    """Return the variables that name a user and its home; none for the control plane's own user."""
    if owner is None:
        return {}
    return {"HOME": owner.pw_dir, "USER": owner.pw_name, "LOGNAME": owner.pw_name}


def make_folders(folders: Iterable[str], owner: pwd.struct_passwd | None) -> None:
    """Make folders that only their owner can enter; those above them let other users pass."""
    for folder in map(Path, folders) if owner is not None else ():
        assert owner is not None
        folder.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        folder.parent.chmod(0o711)
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def open_home(folder: Path) -> None:
    """Let users pass through the control plane's home, which has ``folder``, and keep them from its files.

    ``InputError`` if they cannot reach it.
    """
    home = folder.resolve().parent
    closed = next((above for above in reversed(home.parents) if not above.stat().st_mode & stat.S_IXOTH), None)
    if closed is not None:
        hint = f"tenants' users cannot pass through {closed}; choose a home such as /srv/shoal that the nodes share"
        raise InputError("home", str(home), hint)
    for path in (home, folder):
        path.chmod(0o711)
        for entry in os.scandir(path):
            if entry.is_file(follow_symlinks=False):
                os.chmod(entry.path, stat.S_IMODE(entry.stat().st_mode) & 0o700)
