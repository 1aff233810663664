"""A job for fault tests: works by the clock, saves, resumes, and writes down whatever must never happen to it.

Run as ``python -I -S job.py SECONDS SAVING``, one process per rank: seconds of work, and seconds it takes to save when
warned. Every process of an incarnation keeps a lock of its own as long as it lives, and looks for locks of other
incarnations once it has it: of two that overlap, the later sees it.
"""

import fcntl
import json
import os
import signal
import sys
import time
from contextlib import suppress

TICK_SECONDS = 0.05


def main() -> None:
    """Work until done, or until warned."""
    names = ("SHOAL_DIR", "SHOAL_INCARNATION", "RANK", "WORLD_SIZE")
    folder, incarnation, rank, world = (os.environ[name] for name in names)
    story = os.open(f"{folder}/story", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(what: str) -> None:
        line = [int(incarnation), int(rank), int(world), what, time.monotonic(), os.getpid()]
        os.write(story, json.dumps(line).encode() + b"\n")

    os.makedirs(f"{folder}/locks", exist_ok=True)
    own = os.open(f"{folder}/locks/{incarnation}.{rank}", os.O_RDWR | os.O_CREAT, 0o600)
    if not _locked(own, fcntl.LOCK_EX):
        note("twice")
    for name in os.listdir(f"{folder}/locks"):
        if not name.startswith(f"{incarnation}."):
            other = os.open(f"{folder}/locks/{name}", os.O_RDWR)
            if not _locked(other, fcntl.LOCK_SH):
                note("twice")
            os.close(other)
    note("began")

    warned = False

    def warn(*_: object) -> None:
        nonlocal warned
        warned = True

    signal.signal(signal.SIGTERM, warn)
    work, done = float(sys.argv[1]), _read(f"{folder}/saved")
    while done < work and not warned:
        time.sleep(min(TICK_SECONDS, work - done))
        done = min(work, done + TICK_SECONDS)
        if rank == "0":
            _write(f"{folder}/saved", f"{done!r}")
            # Its folder is the agent's to remove once the run is over.
            with suppress(FileNotFoundError):
                _write(os.environ["SHOAL_PROGRESS"], f"{done!r} {done!r}")
        note("works")
    if done < work:
        time.sleep(float(sys.argv[2]))
        note("saved")
        sys.exit(1)
    note("done")


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: str) -> float:
    try:
        with open(path) as file:
            return float(file.read())
    except FileNotFoundError:
        return 0.0


def _write(path: str, text: str) -> None:
    """Whole or not at all."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


if __name__ == "__main__":
    main()
