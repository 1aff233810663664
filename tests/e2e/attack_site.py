"""The cluster that ``tests.e2e.attack`` attacks: its home lies on a small disk, and its clock can jump."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.e2e.site import DEADLINE_SECONDS, Site

DISK_MB, DISK_FILES = 192, 4000
CLOCK = Path(__file__).with_name("shifted_clock")
_FILLER = "filler"


class Disk:
    """A file system in memory of a bounded size; where none may be made, an ordinary folder that is never struck."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.mounted = self._mount(f"size={DISK_MB}m,nr_inodes={DISK_FILES}", "-t", "tmpfs", "shoal-attack")

    def fill(self) -> None:
        """Take every free block."""
        with suppress(OSError), (self.folder / _FILLER).open("ab", buffering=0) as file:
            for size in (2**20, 4096):
                with suppress(OSError):
                    while file.write(b"\0" * size) == size:
                        pass

    def take_files(self) -> None:
        """Leave no room for another file."""
        self._remount(f"nr_inodes={max(1, self._files())}")

    def set_writable(self, writable: bool) -> bool:
        """Make it writable or not; return whether that was possible: a file that is open for writing forbids it."""
        return self._remount("rw" if writable else "ro")

    def mend(self) -> None:
        """Give back everything that was taken."""
        self._remount(f"rw,nr_inodes={DISK_FILES}")
        with suppress(OSError):
            (self.folder / _FILLER).unlink()

    def close(self) -> None:
        """Remove it."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)

    def _files(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_files - found.f_ffree

    def _remount(self, options: str) -> bool:
        return self.mounted and self._mount(f"remount,{options}")

    def _mount(self, options: str, *more: str) -> bool:
        command = ["mount", "-o", options, *more, str(self.folder)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0


class AttackSite(Site):
    """A cluster on a small disk whose control plane may refuse to start, and whose clock may jump."""

    def __init__(self, folder: Path, cluster: tuple[int, int], options: Sequence[str]) -> None:
        folder.mkdir(parents=True)
        self.disk = Disk(folder / "home")
        self.clock = folder / "clock"
        os.environ |= {"SHOAL_TEST_CLOCK": str(self.clock), "PYTHONPATH": str(CLOCK), "PYTHONFAULTHANDLER": "1"}
        self.began = time.monotonic()
        self.disk_struck = False
        self.refused = 0
        """Starts that the control plane refused, with a sentence, because of its disk."""
        super().__init__(folder, cluster, options)

    def shift_clock(self, seconds: float) -> None:
        """Set the wall clock of every process of the cluster this far off."""
        self.clock.write_text(str(seconds))

    def repair(self) -> None:
        """Give the disk back and start again what did not start, or ended, while it was full."""
        self.disk.mend()
        plane = self._plane
        if plane is not None and plane.poll() == 2 and self.disk_struck:
            self.refused += 1
            self._plane = None
        for node in [node for node, agent in self._agents.items() if agent.poll() is not None and self.disk_struck]:
            del self._agents[node]
        self.mend()

    def plane_pid(self) -> int:
        """Return the process of the control plane; 0 if there is none."""
        return 0 if self._plane is None or self._plane.poll() is not None else self._plane.pid

    def pids(self) -> dict[str, int]:
        """Return the processes that were started, by name."""
        agents = {f"agent-{node}": agent for node, agent in self._agents.items()}
        named = agents | ({} if self._plane is None else {"plane": self._plane})
        return {name: process.pid for name, process in named.items() if process.poll() is None}

    def start_on_read_only_disk(self) -> str:
        """Stop the control plane and start it on a disk that cannot be written; return what is wrong with its end."""
        plane = self._plane
        if plane is None or not self.disk.mounted:
            return ""
        plane.terminate()
        plane.wait(DEADLINE_SECONDS)
        self._plane = None
        with self._agents_away():
            if not self.disk.set_writable(False):
                return ""
            self.start_plane()
            status = self._status()
            self.disk.set_writable(True)
        said = (self.folder / "plane.log").read_text(errors="replace").splitlines()[-3:]
        self.refused += status == 2
        return "" if status == 2 and "Traceback" not in "".join(said) else f"status {status}, said {said}"

    def _status(self) -> int:
        """Return the status with which the control plane ends by itself; −6 if it had to be killed."""
        plane, self._plane = self._plane, None
        if plane is None:
            return 0
        try:
            return plane.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            plane.send_signal(signal.SIGABRT)  # its log then has a traceback
            return plane.wait()

    @contextmanager
    def _agents_away(self) -> Iterator[None]:
        """End the agents, whose files are on the disk, and start them again."""
        nodes = [*self._agents]
        for node in nodes:
            self.kill_agent(node)
        time.sleep(1.0)
        yield
        for node in nodes:
            self.start_agent(node)

    def close(self) -> list[int]:
        """End everything in good order."""
        statuses = super().close()
        self.disk.close()
        return statuses


def held(pid: int) -> dict[str, int]:
    """Return what a process holds: resident memory in MB, open files, threads."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return {"mb": int(lines["VmRSS"].split()[0]) // 1024, "files": files, "threads": int(lines["Threads"])}
    except (OSError, KeyError, ValueError):
        return {}
