"""Confinement of a run's processes by the kernel: for as long as they live they cannot act on other processes.

``enter_domain`` puts a keeper, and with it all ranks of its run, into a Landlock domain of their own. From there they
cannot trace a process outside of it or read its memory (Linux 5.13), cannot send it a signal and cannot connect to its
abstract sockets (Linux 6.12). This holds among processes of one user, and for root. Files are not restricted.
``become`` makes a rank the process of its tenant's system user.

Keepers import this module, so it imports the standard library only.
"""

import ctypes
import os
import sys
from typing import Any

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""Numbers of Landlock's system calls, the same on all processors but Alpha."""
_ASK_VERSION = 1
_MAKE_BLOCK_DEVICE = 1 << 11
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_SCOPES_VERSION = 6

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


_prepared: list[int] = []
"""The rules of a domain, made by ``prepare_domain``; each process that enters them makes a domain of its own."""


def prepare_domain() -> None:
    """Make the rules of a domain once, for all processes that this one forks."""
    _prepared[:] = [_make_rules()]


def enter_domain() -> bool:
    """Put this process and those it starts into a new domain; return whether the kernel has Landlock.

    No program they execute gains privileges, as by a set-user-ID bit.
    """
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    rules = _prepared[0] if _prepared else _make_rules()
    if rules < 0:
        return False
    try:
        return bool(_libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        if not _prepared:
            os.close(rules)


def _make_rules() -> int:
    """Return a descriptor of the rules, which is closed by an exec; negative if the kernel has no Landlock."""
    version = landlock_version()
    if version < 1:
        return -1
    # A domain must restrict something: before there were scopes, the making of block devices, which only root may do.
    rules = _Ruleset(0, 0, _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    size = ctypes.sizeof(rules)
    if version < _SCOPES_VERSION:
        rules, size = _Ruleset(_MAKE_BLOCK_DEVICE, 0, 0), 8
    return int(_libc.syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), 0))


def unconfined() -> str:
    """Return why runs cannot be put into a domain of their own, tried in a child process; empty if they can."""
    if landlock_version() < 1:
        return "the kernel has no Landlock"
    child = os.fork()
    if not child:
        os._exit(0 if enter_domain() else 1)
    return "" if os.waitpid(child, 0)[1] == 0 else "the kernel refuses a Landlock domain"


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface; below 1 if it has none."""
    if sys.platform != "linux" or os.uname().machine == "alpha":
        return 0
    return int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION))


def hide_memory() -> None:
    """Keep other processes of this user, except root's, from tracing this one and reading its memory."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def become(user: dict[str, Any], log: int) -> None:
    """Take on a system user: its user and group numbers, no other groups, new files readable by it alone."""
    os.fchown(log, user["uid"], user["gid"])  # a job may open /dev/stdout
    os.setgroups(user["groups"])
    os.setresgid(user["gid"], user["gid"], user["gid"])
    os.setresuid(user["uid"], user["uid"], user["uid"])
    os.umask(0o077)
