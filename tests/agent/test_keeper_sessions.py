"""Commands inside a run: a real keeper starts them with the run's environment and ends them with it."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent.conftest import until

from shoal.agent.keeper_handle import KeeperHandle, KeeperMessage, KeeperServerHandle
from shoal.agent.processes import find_process


class Run:
    """A keeper with one rank that sleeps, and what the keeper has said."""

    def __init__(self, folder: Path) -> None:
        self.server = KeeperServerHandle("boot")
        self.server.start()
        self.keeper = KeeperHandle(self.server, time.monotonic() + 600, 5.0)
        self.said: list[KeeperMessage] = []
        rank = {"rank": 3, "env": {"SHOAL_RANK": "3", "OWN": "rank"}, "log": "1.3.log"}
        self.keeper.begin({
            "argv": ["sleep", "600"], "cwd": str(folder.resolve()), "env": {"PATH": "/usr/bin:/bin", "ALL": "run"},
            "logs": str(folder), "lease": time.monotonic() + 600, "grace": 5.0, "ranks": [rank],
        })  # fmt: skip
        self.hear("started")

    def hear(self, event: str) -> KeeperMessage:
        """The first message of this kind, waited for."""

        def found() -> KeeperMessage | None:
            self.said += self.keeper.read()[0]
            return next((message for message in self.said if message.event == event), None)

        message: KeeperMessage = until(found, event)
        self.said.remove(message)
        return message

    def start(self, *command: str, session: str = "s1", streams: list[int] | None = None) -> str:
        """Start a command whose three streams, or those given, are one pipe; return what it prints."""
        read, write = os.pipe()
        given = os.open(os.devnull, os.O_RDONLY)
        process = {"session": session, "rank": 3, "argv": list(command), "env": {"TERM": "vt100"}}
        self.keeper.start_session(process, streams or [given, write, write])
        os.close(write)
        os.close(given)
        with os.fdopen(read) as file:
            return "" if streams else file.read()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.keeper.stop(0.0)
    made.hear("over")
    made.keeper.close()
    made.server.close()


def test_a_command_runs_with_the_environment_and_the_folder_of_its_rank(run: Run, tmp_path: Path) -> None:
    printed = run.start("sh", "-c", 'echo "$ALL $OWN $SHOAL_RANK $TERM"; pwd; exit 7')
    assert printed == f"run rank 3 vt100\n{tmp_path.resolve()}\n"
    left = run.hear("left")
    assert (left.session, left.status, left.cause) == ("s1", 7, "")


def test_a_command_that_cannot_be_started_is_reported_with_the_cause(run: Run) -> None:
    run.start("no-such-program")
    assert "no such program on the job's PATH" in run.hear("left").cause


def test_a_command_on_a_terminal_controls_it(run: Run) -> None:
    ours, theirs = os.openpty()
    run.start("sh", "-c", "tty; exec 3</dev/tty && echo controls", streams=[theirs])
    os.close(theirs)
    printed = b""
    while b"controls" not in printed:
        printed += os.read(ours, 4096)
    assert run.hear("left").status == 0
    os.close(ours)


def pid_of(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip(), "it has begun"))


def living(pid: int) -> bool:
    found = find_process(pid)
    return found is not None and found.state != "Z"


@pytest.mark.parametrize("how", ["hang up", "stop"])
def test_a_command_ends_when_its_owner_leaves_or_its_run_is_stopped(run: Run, tmp_path: Path, how: str) -> None:
    read, write = os.pipe()
    given = os.open(os.devnull, os.O_RDONLY)
    script = f"trap '' HUP TERM; echo $$ > {tmp_path}/pid; sleep 600"
    run.start("sh", "-c", script, streams=[given, write, write])
    for file in (read, write, given):
        os.close(file)
    pid = pid_of(tmp_path / "pid")
    end: Callable[[], None] = (lambda: run.keeper.hang_up("s1")) if how == "hang up" else lambda: run.keeper.stop(600.0)
    end()
    until(lambda: not living(pid), "it is gone")
    if how == "hang up":
        assert run.hear("left").status == -9
        assert run.keeper.read()[0] == [], "the rank goes on"
