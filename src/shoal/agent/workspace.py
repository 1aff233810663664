"""The folders of a node: jobs, logs and run records. No name from outside can lead to a path outside them.

Under the agent's home: ``jobs/<id>`` is a job's own folder, the same for every node with that home, so that a job which
moves finds its checkpoint; ``nodes/<node>/logs/<id>/<incarnation>.<rank>.log`` are logs; a folder
``nodes/<node>/runs/<job>.<incarnation>`` exists as long as a process of that run may live.
"""

import errno
import fcntl
import hashlib
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.agent.job_logs import read_piece
from shoal.agent.node_run import Key
from shoal.agent.slurm.install import install
from shoal.core.errors import InputError
from shoal.wire.files import replace_file
from shoal.wire.messages import LogAnswer, LogRead, Roster, RunOrder, SessionReport

MOST_LOG_BYTES = 256 * 1024
"""Most bytes of a log that are sent at once."""

_MOST_SPARE = 256
"""Folders of ended runs that are kept for the next ones."""

_MOST_PROGRESS_BYTES = 256
_MOST_SESSION_BYTES = 16 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,79}")
_ALLOCATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,159}")


class KeeperRecord(msgspec.Struct, frozen=True):
    """Record of a run's keeper server: its process, the boots of its agent and of the machine, the run's cgroup.

    ``number`` is the run's number at the server; a later agent takes the run over by its ``order`` and ``devices``.
    """

    pid: int
    start: int
    boot: str
    machine: str
    cgroup: str = ""
    number: int = 0
    order: RunOrder | None = None
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folders of one node, or of an allocation for one run, below an agent's home."""

    home: Path
    node: str
    _own: Path = field(init=False, compare=False, repr=False)
    _runs: Path = field(init=False, compare=False, repr=False)
    _spare: list[Path] = field(default_factory=list, init=False, compare=False, repr=False)
    """Folders of ended runs, for the next ones: ext4 takes long to make files where it has just deleted many."""

    def __post_init__(self) -> None:
        _checked("node", self.node, _ALLOCATION)
        object.__setattr__(self, "_own", self.home / "nodes" / self.node)
        object.__setattr__(self, "_runs", self._own / "runs")

    @property
    def folder(self) -> Path:
        """The folder in which the agent keeps its files."""
        return self._own

    @property
    def identity(self) -> str:
        """A short name of the node's folder, the same for every agent that serves it."""
        return hashlib.sha256(os.fsencode(self._own)).hexdigest()[:16]

    @property
    def passages(self) -> tuple[Path, ...]:
        """The folders on the way to those of jobs and runs."""
        return self.home, self.home / "jobs", self.home / "nodes", self._own, self._runs

    def lock(self) -> int:
        """Lock the node's folder for this process and return the open file; ``InputError`` if another agent has it."""
        try:
            self._make_parents()
            lock = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            hint = f"{error.filename}: {error.strerror}; name a folder this user may write to"
            raise InputError("home", str(self.home), hint) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(lock, 20).decode(errors="replace").strip()
            os.close(lock)
            hint = f"another agent (process {pid}) serves this folder; stop it, or name another node or home"
            raise InputError("node", str(self._own), hint) from None
        shutil.rmtree(self._own / "spare", ignore_errors=True)
        with suppress(OSError):  # on a full disk the number is not known, the lock still holds
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        return lock

    def _make_parents(self) -> None:
        for part in (self.home / "jobs", self._own / "logs", self._runs):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _make(self, path: Path) -> None:
        """Create a folder of a job or a run, and those above it again if they were removed while the agent runs."""
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            passable = stat.S_IMODE(self.home.stat().st_mode) & 0o711
            self._make_parents()
            for folder in self.passages[1:]:
                folder.chmod(passable)
            path.mkdir(mode=0o700, exist_ok=True)

    def job(self, job_id: str) -> Path:
        """Return a job's own folder; create it if it does not exist."""
        path = self.home / "jobs" / _checked("id", job_id)
        self._make(path)
        return path

    def logs(self, job_id: str) -> Path:
        """Return the folder of a job's logs; create it if it does not exist."""
        path = self._own / "logs" / _checked("id", job_id)
        self._make(path)
        return path

    def staging(self) -> Path:
        """Return a folder of the agent's own for files on their way to a job; create it if it does not exist."""
        path = self._own / "staging"
        self._make(path)
        return path

    @property
    def parents_of_job_folders(self) -> tuple[Path, Path]:
        """The folders that hold a folder for each job: of its logs, and its own."""
        return self._own / "logs", self.home / "jobs"

    def is_job_name(self, name: str) -> bool:
        """Return whether a folder's name can be that of a job."""
        return _NAME.fullmatch(name) is not None

    def folders_of(self, job_id: str) -> list[Path]:
        """Return the folders of a job's logs and its own folder, whether they exist or not."""
        return [parent / _checked("id", job_id) for parent in self.parents_of_job_folders]

    def read_log(self, read: LogRead) -> LogAnswer:
        """Return a piece of a log, at most ``MOST_LOG_BYTES``; size −1 if there is no such log."""
        missing = LogAnswer(read.read, -1, b"")
        if not _NAME.fullmatch(read.id):
            return missing
        try:
            folder = os.open(self._own / "logs" / read.id, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                file = _open_plain(log_name(read.incarnation, read.rank), folder)
            finally:
                os.close(folder)
        except OSError:
            return missing
        try:
            piece = read_piece(file, max(0, min(read.offset, 2**62)), max(0, min(read.most, MOST_LOG_BYTES)))
            return LogAnswer(read.read, piece.size, piece.data, piece.begin, piece.next)
        finally:
            os.close(file)

    def run(self, key: Key) -> Path:
        """Return the folder of one run."""
        return self._runs / f"{key[0]:d}.{key[1]:d}"

    def own(self, key: Key) -> Path:
        """Return the folder of one run in which the job may write."""
        return self.run(key) / "own"

    def progress(self, key: Key) -> Path:
        """Return the file where a job may write its progress."""
        return self.own(key) / "progress"

    def lease(self, key: Key) -> Path:
        """Return the file where a job reads the end of its lease."""
        return self.run(key) / "lease"

    def orders(self, key: Key) -> Path:
        """Return the file where the workers of a job that is resized in place read which workers train."""
        return self.run(key) / "orders"

    def gate(self, key: Key) -> Path:
        """Return the file that holds a run at the gate as long as it is there."""
        return self.run(key) / "gate"

    def arrival(self, key: Key) -> Path:
        """Return the file that a job writes when it is at the gate."""
        return self.own(key) / "gate"

    def programs(self) -> Path:
        """Return the folder of the programs that batch scripts call; install them if they are not there."""
        return install(self.home)

    def asked_to_requeue(self, key: Key) -> bool:
        """Return whether a batch script asked for another start of its job."""
        return (self.own(key) / "requeue").exists()

    def record(self, key: Key, record: KeeperRecord, lease: float | None = None) -> None:
        """Create a run's folder with the record of its keeper server and its lease, before a keeper starts anything."""
        path, data = self.run(key), msgspec.json.encode(record)
        if self._spare and self._reuse(self._spare.pop(), path, data, lease):
            return
        self._make(path)
        self.own(key).mkdir(mode=0o700, exist_ok=True)
        self._write_first_lease(path, lease)
        replace_file(path / "keeper.json", data, mode=0o600)

    def _reuse(self, spare: Path, path: Path, record: bytes, lease: float | None) -> bool:
        """Make the folder of an ended run that of a new one, with all its files at once; return whether that worked."""
        try:
            _overwrite(spare / "keeper.json", record, 0o600)
            self._write_first_lease(spare, lease)
            spare.rename(path)
        except OSError:
            shutil.rmtree(spare, ignore_errors=True)
            return False
        return True

    def _write_first_lease(self, folder: Path, lease: float | None) -> None:
        """Write the lease file of a run that has not begun; a job starts without one if that fails."""
        if lease is not None:
            with suppress(OSError):
                _overwrite(folder / "lease", _lease_data(lease, stopping=False), 0o666)
                return
        (folder / "lease").unlink(missing_ok=True)

    def records(self) -> Iterator[tuple[Path, KeeperRecord | None]]:
        """Yield every run folder with the record of its keeper, if it has one."""
        for path in (self._runs).iterdir():
            record = None
            with suppress(OSError, msgspec.DecodeError):
                record = msgspec.json.decode((path / "keeper.json").read_bytes(), type=KeeperRecord)
            yield path, record

    def forget(self, path: Path) -> None:
        """Remove a run folder, of which no process is left; the next run gets it if the job has left nothing there."""
        spare = self._own / "spare" / path.name
        try:
            if len(self._spare) < _MOST_SPARE and _is_clean(path):
                spare.parent.mkdir(mode=0o700, exist_ok=True)
                path.rename(spare)
                self._spare.append(spare)
                return
        except OSError:
            pass
        shutil.rmtree(path, ignore_errors=True)

    def read_progress(self, key: Key) -> tuple[float, float | None, SessionReport | None] | None:
        """Return a job's progress, the progress it saved, and its trainer library's report, as the job wrote them.

        The first line has one or two numbers, the second the report. None if the first line is anything else; no report
        if the second cannot be read.
        """
        try:
            file = _open_plain(self.progress(key))
        except OSError:
            return None
        try:
            first, _, more = os.read(file, _MOST_PROGRESS_BYTES + _MOST_SESSION_BYTES).partition(b"\n")
            numbers = [float(word) for word in first[:_MOST_PROGRESS_BYTES].split()]
        except ValueError:
            return None
        finally:
            os.close(file)
        if len(numbers) not in (1, 2) or not all(math.isfinite(number) and number >= 0 for number in numbers):
            return None
        session = None
        with suppress(ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
            session = msgspec.json.decode(more, type=SessionReport) if more.strip() else None
        return numbers[0], numbers[1] if len(numbers) == 2 else None, session

    def write_lease(self, key: Key, until: float, *, stopping: bool) -> None:
        """Write the end of the job's lease, on the monotonic clock, and whether the job is being stopped."""
        replace_file(self.lease(key), _lease_data(until, stopping=stopping))

    def write_orders(self, key: Key, roster: Roster) -> None:
        """Write which workers train; nothing for generation 0, before the run's workers are members."""
        if roster.generation:
            order = {"generation": roster.generation, "members": roster.members}
            replace_file(self.orders(key), msgspec.json.encode(order))


def log_name(incarnation: int, rank: int | str) -> str:
    """Return the file name of a rank's log, or of the log of the job's ``store``."""
    return f"{incarnation:d}.{rank}.log"


def _lease_data(until: float, *, stopping: bool) -> bytes:
    return msgspec.json.encode({"until": until, "stopping": stopping})


def _overwrite(path: Path, data: bytes, mode: int) -> None:
    """Write a file in place; a reader may see a part of it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, mode)
    try:
        if os.write(file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.ftruncate(file, len(data))
    finally:
        os.close(file)


def _is_clean(folder: Path) -> bool:
    """Return whether a run's folder has only files of the agent, and is private to it."""
    own = os.lstat(folder / "own")
    private = stat.S_ISDIR(own.st_mode) and stat.S_IMODE(own.st_mode) == 0o700 and own.st_uid == os.geteuid()
    return private and {*os.listdir(folder)} <= {"keeper.json", "lease", "own"} and not os.listdir(folder / "own")


def _open_plain(name: str | Path, folder: int | None = None) -> int:
    """Open a plain file for reading; a link, a pipe or a device in its place is an error and never blocks."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{name} is not a plain file")
    return file


def _checked(field: str, name: str, pattern: re.Pattern[str] = _NAME) -> str:
    if not pattern.fullmatch(name):
        raise InputError(field, name, "must be letters, digits, '_', '.' or '-', and begin with a letter or digit")
    return name
