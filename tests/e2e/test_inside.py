"""Inside a running job: commands, an interactive terminal, and `shoal run`, on a real cluster of one node."""

import json
import os
import pty
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from tests.e2e.test_up import Person, soon


class Terminal:
    """A person's terminal of 33 lines and 111 columns, on which a command of Shoal runs."""

    def __init__(self, person: Person, *words: str) -> None:
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(person.folder)
            os.execve(sys.executable, [sys.executable, "-m", "shoal", *words], {**person.env, "TERM": "vt100"})
        self.resize(33, 111)
        self.seen = ""

    def resize(self, rows: int, columns: int) -> None:
        ioctl(self.file, TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def types(self, keys: str, shown: str) -> None:
        """Type keys and wait until this is shown after them."""
        self.seen = ""
        os.write(self.file, keys.encode())
        self.waits_for(shown)

    def waits_for(self, shown: str) -> None:
        deadline = time.monotonic() + 60
        while shown not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.file], [], [], 1.0)[0]:
                self.seen += os.read(self.file, 4096).decode(errors="replace")

    def leaves(self, keys: str) -> int:
        """Type the last keys; return the exit code."""
        os.write(self.file, keys.encode())
        deadline = time.monotonic() + 60
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline
            if select.select([self.file], [], [], 0.05)[0]:
                try:
                    os.read(self.file, 4096)
                except OSError:  # the command has closed its end
                    time.sleep(0.05)
        os.close(self.file)
        return os.waitstatus_to_exitcode(ended[1])


@contextmanager
def running_job(person: Person) -> Iterator[str]:
    with person.up("--nodes", "1x3", "--policy", "fifo"):
        soon(lambda: all(node["up"] for node in person.asks("nodes")))
        job: str = person.says("submit", "--name", "inner", "--gpus", "2", "--", "sleep", "600").strip()
        soon(lambda: person.asks("job", job)["job"]["state"] == "running")
        yield job


def test_commands_and_a_terminal_run_inside_a_job_and_run_gives_its_status(tmp_path: Path) -> None:
    person = Person(tmp_path)
    with running_job(person) as job:
        said = person.says("exec", job, "--json", "--rank", "1", "--", "sh", "-c", "echo $SHOAL_JOB $RANK; pwd")
        found = json.loads(said)
        assert (found["stdout"], found["status"]) == (f"{job} 1\n{tmp_path}\n", 0)
        assert "no such program" in person.says("exec", job, "--", "no-such-program", rc=1)
        lines = "".join(f"{number}\n" for number in range(100_000))  # more than any buffer on the way holds
        command = [sys.executable, "-m", "shoal", "exec", job, "--", "sh", "-c", "cat; exit 4"]
        done = subprocess.run(
            command, input=lines, env=person.env, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout == lines) == (4, True)

        shell = Terminal(person, "run", "--pty", "--", "sh")
        shell.waits_for("# " if os.geteuid() == 0 else "$ ")
        shell.types("stty size; echo $TERM\r", "33 111\r\nvt100")
        shell.types("sleep 600\r", "sleep 600")
        shell.types("\x03", "# " if os.geteuid() == 0 else "$ ")
        shell.resize(44, 99)
        soon(lambda: _size(shell) == "44 99")
        assert shell.leaves("exit 7\r") == 7

        assert "was here\n" in person.says("run", "--", "sh", "-c", "echo was here")
        assert "exited with status 5" in person.says("run", "--", "sh", "-c", "exit 5", rc=5)
    soon(lambda: not person.left())


def _size(shell: Terminal) -> str:
    shell.types("echo size $(stty size) end\r", " end\r\n")
    return shell.seen.rpartition("size ")[2].partition(" end")[0]
