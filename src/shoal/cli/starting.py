"""Wait for the `shoal up` that was started just before a command and does not answer yet."""

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from shoal.cli.output import warn

_PAUSE_SECONDS = 0.1
_START_SECONDS = 60.0
"""Age up to which a `shoal up` that does not answer counts as starting, and the longest wait for one."""
_CONNECT_SECONDS = 2.0


def wait_for_start(home: Path, stored: Callable[[], Mapping[str, str | None]]) -> None:
    """Return when the cluster of the client file answers, or 60 s have passed; at once if none is starting here.

    ``stored`` reads the client file in ``home``, which a starting `shoal up` writes anew.
    """
    deadline, announced = time.monotonic() + _START_SECONDS, False
    while not answers(stored()) and up_is_starting(home) and time.monotonic() < deadline:
        if not announced:
            warn(f"waiting for the cluster that is starting on this machine, at most {_START_SECONDS:.0f} s")
        announced = True
        time.sleep(_PAUSE_SECONDS)


def answers(stored: Mapping[str, str | None]) -> bool:
    """Return whether a server accepts connections, and the socket that hands out its token too, if one is named."""
    if not stored.get("server"):
        return False
    parts, name = urlsplit(stored["server"] or ""), stored.get("socket")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_CONNECT_SECONDS):
            pass
        if name:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
                asked.settimeout(_CONNECT_SECONDS)
                asked.connect(f"\0{name}")
    except PermissionError:  # within a job: it answers, though not to us
        return True
    except (OSError, ValueError):
        return False
    return True


def up_is_starting(home: Path, processes: Path = Path("/proc")) -> bool:
    """Return whether a process of this user that was started lately executes `shoal up` for this home."""
    for process in processes.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if not any(os.path.basename(word) == "shoal" and after == "up" for word, after in pairwise(words)):
                continue
            mine = process.stat().st_uid in (os.getuid(), 0) and _age(process) < _START_SECONDS
            if mine and _home(words, process) in (None, home.resolve()):
                return True
    return False


def _age(process: Path) -> float:
    """Return the seconds since a process was started."""
    ticks = float((process / "stat").read_text().rpartition(")")[2].split()[19])
    return float((process.parent / "uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def _home(words: list[str], process: Path) -> Path | None:
    """Return the home of a `shoal up`, from its options or its environment; None if they cannot be read."""
    after = next((after for word, after in pairwise(words) if word == "--home"), None)
    home = next((word.removeprefix("--home=") for word in words if word.startswith("--home=")), after)
    try:
        if home is None:
            variables = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            found = dict(variable.partition("=")[::2] for variable in variables)
            home = found.get("SHOAL_HOME") or f"{found.get('HOME', '')}/.shoal"
        return (Path(home) if os.path.isabs(home) else Path(os.readlink(process / "cwd"), home)).resolve()
    except OSError:
        return None
