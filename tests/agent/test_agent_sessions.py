"""Sessions as an agent has them, before a keeper is involved."""

import os
import select
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import until

from shoal.agent import sessions
from shoal.agent.sessions import AgentSessions
from shoal.wire.messages import PiecesWanted, SessionOrder, SessionOutput, SessionPieces


class Plane:
    """A control plane that keeps the output it is sent and has no input."""

    def __init__(self) -> None:
        self.sent: list[SessionOutput] = []
        self.over = threading.Event()

    def post(self, path: str, body: Any, into: Any, *, timeout: float) -> Any:
        if path.endswith("/input"):
            self.over.wait(20)
            return SessionPieces(first=0, pieces=[], ended=True)
        self.sent.append(body)
        return PiecesWanted(body.first + len(body.pieces))

    def close(self) -> None:
        pass

    @property
    def last(self) -> SessionOutput | None:
        return next((sent for sent in self.sent if sent.ended), None)


def order(command: list[str], **fields: Any) -> SessionOrder:
    return SessionOrder(session="s1", job=1, incarnation=1, rank=0, command=command, **fields)


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
def agent(plane: Plane) -> AgentSessions:
    return AgentSessions(plane)  # type: ignore[arg-type]


@pytest.mark.parametrize(("command", "keeper"), [(["true"], None), ([], object())])
def test_a_session_of_a_run_that_is_over_or_has_no_terminal_ends_with_the_cause(
    plane: Plane, agent: AgentSessions, command: list[str], keeper: Any
) -> None:
    agent.follow([order(command)], {} if keeper is None else {(1, 1): keeper})
    last = until(lambda: plane.last, "its end was sent")
    assert last.status is None
    assert last.cause == (
        "its run has ended" if command else "the job has no terminal of its own, or another session has it"
    )


def test_a_session_takes_the_terminal_of_its_rank_and_ends_with_its_status(plane: Plane, agent: AgentSessions) -> None:
    terminal = agent.open_terminal((1, 1))
    agent.follow([order([], terminal="vt100", rows=33, columns=111)], {(1, 1): object()})  # type: ignore[dict-item]
    until(lambda: os.get_terminal_size(terminal) == (111, 33), "the size is set")
    os.write(terminal, b"hello")
    until(lambda: any(sent.pieces for sent in plane.sent), "its output was sent")
    agent.rank_ended((1, 1), 0, 5)
    last = until(lambda: plane.last, "its end was sent")
    assert last.status == 5
    assert b"".join(piece.data for sent in plane.sent for piece in sent.pieces) == b"hello"
    plane.over.set()
    os.close(terminal)


def test_what_a_terminal_showed_that_no_session_took_is_in_the_log(agent: AgentSessions, tmp_path: Path) -> None:
    log = tmp_path / "1-0.log"
    log.write_text("before\n")
    terminal = agent.open_terminal((1, 1), {"logs": str(tmp_path), "ranks": [{"log": log.name}]})
    os.write(terminal, b"hello\nworld\n")
    os.close(terminal)
    agent.run_over((1, 1))
    assert log.read_text() == "before\nhello\nworld\n"


def test_the_output_of_a_terminal_is_written_through_no_link(agent: AgentSessions, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("")
    (tmp_path / "1-0.log").symlink_to(tmp_path / "passwd")
    terminal = agent.open_terminal((1, 1), {"logs": str(tmp_path), "ranks": [{"log": "1-0.log"}]})
    os.write(terminal, b"root::0:0\n")
    os.close(terminal)
    agent.run_over((1, 1))
    assert (tmp_path / "passwd").read_text() == ""


@pytest.mark.parametrize("how", ["not taken in time", "its client left"])
def test_the_terminal_of_a_rank_is_hung_up_without_a_client(
    plane: Plane, agent: AgentSessions, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "not taken in time":
        monkeypatch.setattr(sessions, "UNATTENDED_SECONDS", 0.0)
    terminal = agent.open_terminal((1, 1))
    if how == "its client left":
        agent.follow([order([], terminal="vt100")], {(1, 1): object()})  # type: ignore[dict-item]
        plane.over.set()
    else:
        agent.hang_up_unattended()
    poll = select.poll()
    poll.register(terminal, 0)
    until(lambda: any(events & select.POLLHUP for _, events in poll.poll(100)), "the other end is closed")
    os.close(terminal)
