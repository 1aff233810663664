"""Stand-ins for ``time``, ``secrets`` and ``sqlite3`` in the modules under test, put there while a trial runs.

Modules of Shoal read these through their own globals, so a trial replaces the globals and puts them back; no module
needs to know about the simulation.
"""

import errno
import os
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.dst.poison import set_aside_briefly
from tests.dst.world import Killed, World

from shoal.live.home import ENDED

PACKAGES = ("shoal.live", "shoal.agent", "shoal.store")

SWITCH_PAUSE = 10
"""Records to wait for after a switch of segments that failed."""


def let_others_act(world: World, seconds: float) -> None:
    """Let time pass in the middle of a process's code; ``Killed`` if the process was killed meanwhile."""
    process = world.machine
    boot = process.boots
    world.run(world.now + seconds)
    if not process.alive or process.boots != boot:
        raise Killed


class SimTime:
    """The clocks of the machine whose code runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return float(self._world.machine.monotonic()) if self._world.machine else self._world.now

    perf_counter = process_time = thread_time = monotonic

    def time(self) -> float:
        return float(self._world.machine.wall()) if self._world.machine else self._world.now

    def sleep(self, seconds: float) -> None:
        """Let others act meanwhile; only the control plane's loop sleeps."""
        let_others_act(self._world, seconds)


class SimSecrets:
    """Random values from the trial's seed."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(secrets, name)

    def choice(self, options: Any) -> Any:
        return self._world.rng.choice(options)

    def token_hex(self, size: int = 16) -> str:
        return f"{self._world.rng.getrandbits(8 * size):0{2 * size}x}"

    def token_urlsafe(self, size: int = 16) -> str:
        return self.token_hex(size)

    def token_bytes(self, size: int = 16) -> bytes:
        return self._world.rng.getrandbits(8 * size).to_bytes(size, "big")


class Disk:
    """The control plane's disk: ``problem`` makes writes fail, ``crash`` kills the writer at its next commit.

    ``crash`` is "before", "after" or "torn": the commit reached the disk not at all, wholly, or in part.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.problem: str | None = None
        self.crash: str | None = None
        self.sync_fails = 0
        """Faults at present by which folders cannot be flushed."""
        self.die: Callable[[], None] = lambda: None
        """Kills the writer, which then finds nothing of it left."""
        self.torn: dict[str, int] = {}
        """By file name of a write-ahead log, how many of its bytes reached the disk before a crash."""
        self.open: list[sqlite3.Connection] = []
        self.commits = 0

    def drop(self) -> None:
        """Close what a dead process had open."""
        for connection in self.open:
            connection.close()
        self.open.clear()


def plane_names(disk: Disk) -> dict[str, dict[str, Any]]:
    """Return the names to replace in the control plane's modules: its threads, and the free space of its disk."""
    return {
        "shoal.live.control_plane:ControlPlane": {"start": lambda plane: None, "stop": lambda plane: None},
        "shoal.live.time_limit:CpuLimit": {"run": lambda limit, call, seconds: (call(), 0.0)},
        "shoal.live.journal_disk": {
            "free_bytes": lambda folder: 0 if disk.problem == "full" else 2**40,
            "reserve": lambda path, size: None,
        },
        "shoal.live.compaction": {"_PAUSE": SWITCH_PAUSE},
        "shoal.engine.guard": {"_set_aside": set_aside_briefly},
        "shoal.store.segments": {"os": SegmentOS(disk)},
    }


class SegmentOS:
    """``os`` as the journal's segments see it: files are moved for real, and flushing a folder can fail."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, file: int) -> None:
        if self._disk.sync_fails and self._disk.world.rng.random() < 0.5:
            raise OSError(errno.EIO, "input/output error")


class SimConnection:
    """A real connection to a real file, on a disk with faults."""

    def __init__(self, disk: Disk, path: Path, real: sqlite3.Connection) -> None:
        self._disk, self._path, self._real = disk, path, real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __enter__(self) -> "SimConnection":
        self._real.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._real.__exit__(*error)

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        word = sql.split(None, 1)[0].upper()
        if word in ("INSERT", "CREATE", "DELETE", "UPDATE"):
            self._write()
        if word == "PRAGMA" and "=" in sql and self._disk.problem == "io" and self._disk.world.rng.random() < 0.3:
            raise sqlite3.OperationalError("disk I/O error")
        return self._commit() if word in ("COMMIT", "END") else self._real.execute(sql, *rest)

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        self._write()
        return self._real.executemany(sql, rows)

    def commit(self) -> None:
        if self._real.in_transaction:
            self._commit()

    def _write(self) -> None:
        # A small write fits the cache, so in most cases only the commit meets the full disk.
        if self._disk.problem == "full" and self._disk.world.rng.random() < 0.3:
            raise sqlite3.OperationalError("database or disk is full")

    def _commit(self) -> sqlite3.Cursor:
        disk, world = self._disk, self._disk.world
        disk.commits += 1
        # Others act while the disk writes, except for those that need the lock of the ended jobs.
        if world.machine is not None and self._path.name != ENDED and world.rng.random() < 0.3:
            let_others_act(world, world.rng.uniform(0.0, 0.02))
        if disk.problem == "full" or (disk.problem == "io" and world.rng.random() < 0.6):
            # SQLite rolls a transaction back whose commit fails; if only a flush failed, the file has it all the same.
            self._real.execute("COMMIT" if disk.problem == "io" and world.rng.random() < 0.3 else "ROLLBACK")
            text = "database or disk is full" if disk.problem == "full" else "disk I/O error"
            raise sqlite3.OperationalError(text)
        how, disk.crash = disk.crash, None
        log = self._path.with_name(self._path.name + "-wal")
        before = log.stat().st_size if how == "torn" and log.exists() else 0
        if how != "before":
            cursor = self._real.execute("COMMIT")
        if how is None:
            return cursor
        if how == "torn" and log.exists():
            disk.torn[log.name] = world.rng.randint(before, max(before, log.stat().st_size))
        world.note("crash at commit", how)
        disk.die()
        raise Killed


class SimSqlite:
    """``sqlite3`` whose writers meet the faults of a disk; readers open the file as it is."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)

    def connect(self, path: Any, *rest: Any, **options: Any) -> Any:
        if options.get("uri"):
            return sqlite3.connect(path, *rest, **options)
        if self._disk.problem == "full" and not Path(path).exists():
            raise sqlite3.OperationalError("unable to open database file")
        real = sqlite3.connect(path, *rest, **options)
        self._disk.open.append(real)
        return SimConnection(self._disk, Path(path), real)


@contextmanager
def replaced(world: World, disk: Disk, more: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Replace clocks, chance and SQLite in every module under test, and the names in ``more``, by module."""
    sim = SimTime(world)
    swaps: list[tuple[Any, Any]] = [
        (time, sim), (secrets, SimSecrets(world)), (sqlite3, SimSqlite(disk)),
        (time.monotonic, sim.monotonic), (time.time, sim.time), (time.sleep, sim.sleep),
        (time.perf_counter, sim.monotonic), (time.thread_time, sim.monotonic),
    ]  # fmt: skip
    saved: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread.name} is a thread: a trial needs a stand-in for what it does")

    try:
        put(threading.Thread, "start", refuse)
        for module in [m for n, m in sys.modules.items() if n.startswith(PACKAGES) and m is not None]:
            for name, value in list(vars(module).items()):
                for real, stand_in in swaps:
                    if value is real:
                        put(module, name, stand_in)
        for path, names in more.items():
            module_name, _, class_name = path.partition(":")
            owner = sys.modules[module_name]
            owner = getattr(owner, class_name) if class_name else owner
            for name, value in names.items():
                put(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)
