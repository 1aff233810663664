"""Sessions on a node: commands that a person runs inside a running job, as its agent starts them and passes bytes on.

The keeper of the run starts the command, on a terminal or on three pipes whose other ends are here. Two threads of each
session ask the control plane: one for input, one with output. Neither touches the agent's own state, and a session that
writes faster than its owner reads waits, as it would at a pipe.
"""

import logging
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from types import MappingProxyType
from typing import Any, TypeVar

from shoal.agent.keeper_handle import KeeperHandle
from shoal.agent.node_run import Key
from shoal.core.errors import ShoalError
from shoal.wire.client import Client, Refused, Unreachable
from shoal.wire.messages import (
    LONGEST_POLL_SECONDS,
    MOST_PIECE_BYTES,
    MOST_PIECES,
    PiecesWanted,
    SessionInputPoll,
    SessionOrder,
    SessionOutput,
    SessionPiece,
    SessionPieces,
)

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

MOST_SESSIONS = 16
"""Most sessions of a node at a time."""

_PATIENCE_SECONDS = 30.0
"""Seconds for which a session outlives an unreachable control plane."""

_LAST_OUTPUT_SECONDS = 0.3
"""Seconds after the end of a command for which output of processes it left behind is still passed on."""

UNATTENDED_SECONDS = 60.0
"""Seconds that a rank with a terminal of its own waits for a session before its terminal is hung up."""


@dataclass(eq=False)
class _Session:
    """A session: where its input goes, where its output comes from, and the end of its command."""

    order: SessionOrder
    client: Client
    hang_up: Callable[[], None]
    given: int
    """File for its input; the terminal's, if it has one."""
    outputs: dict[int, str]
    """By file, which output comes from it."""
    over: threading.Event = field(default_factory=threading.Event)
    status: int | None = None
    cause: str = ""

    def begin(self) -> None:
        """Start the threads."""
        for work in (self._pass_input, self._pass_output):
            threading.Thread(target=self._guarded, args=(work,), name=f"session-{work.__name__}", daemon=True).start()

    def end(self, status: int | None, cause: str = "") -> None:
        """Note how the command ended, once."""
        if not self.over.is_set():
            self.status, self.cause = status, cause
            self.over.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (ShoalError, OSError) as error:
            _LOG.info("session ends", extra={"session": self.order.session, "error": str(error)})
        finally:
            self.hang_up()
            self.client.close()

    @property
    def _path(self) -> str:
        return f"/v1/agent/sessions/{self.order.session}"

    def _pass_input(self) -> None:
        after = 0
        while not self.over.is_set():
            poll = SessionInputPoll(after, LONGEST_POLL_SECONDS)
            found = self._ask(f"{self._path}/input", poll, SessionPieces)
            for piece in found.pieces:
                self._take(piece)
            after = found.first + len(found.pieces)
            if found.ended:
                return

    def _take(self, piece: SessionPiece) -> None:
        if piece.kind == "size" and self.order.terminal:
            set_size(self.given, piece.rows, piece.columns)
        elif piece.kind == "eof" and not self.order.terminal:
            self._close_input()
        elif piece.kind == "in":
            data = piece.data
            with suppress(BrokenPipeError):
                while data and self.given >= 0:
                    data = data[os.write(self.given, data) :]

    def _close_input(self) -> None:
        given, self.given = self.given, -1
        if given >= 0 and given not in self.outputs:
            os.close(given)

    def _pass_output(self) -> None:
        number, left = 0, None
        try:
            while self.outputs and (left is None or time.monotonic() < left):
                pieces = self._read()
                if self.over.is_set() and left is None:
                    left = time.monotonic() + _LAST_OUTPUT_SECONDS
                while pieces:
                    sent = SessionOutput(first=number, pieces=pieces)
                    wanted = self._ask(f"{self._path}/output", sent, PiecesWanted)
                    if wanted.closed:
                        return
                    pieces, number = pieces[max(0, wanted.next - number) :], max(number, wanted.next)
            self.over.wait()
            last = SessionOutput(first=number, ended=True, status=self.status, cause=self.cause)
            self._ask(f"{self._path}/output", last, PiecesWanted)
        finally:
            self.hang_up()
            self.over.wait()
            for file in self.outputs:
                os.close(file)
            self._close_input()

    def _read(self) -> list[SessionPiece]:
        """Return output that has arrived; a file at its end is closed."""
        wait = _LAST_OUTPUT_SECONDS / 3 if self.over.is_set() else 0.5
        ready, _, _ = select.select([*self.outputs], [], [], wait)
        pieces = []
        for file in ready[:MOST_PIECES]:
            try:
                data = os.read(file, MOST_PIECE_BYTES)
            except OSError:  # a terminal that no process has open
                data = b""
            if data:
                pieces.append(SessionPiece("err" if self.outputs[file] == "err" else "out", data))
            else:
                self._ended_output(file)
        return pieces

    def _ended_output(self, file: int) -> None:
        del self.outputs[file]
        if file == self.given:
            self.given = -1
        os.close(file)

    def _ask(self, path: str, body: object, into: type[_T]) -> _T:
        """Send a request until it is answered; an error once the session is over or the control plane long silent."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self.client.post(path, body, into, timeout=LONGEST_POLL_SECONDS + 10)
            except (Unreachable, Refused) as error:
                away = isinstance(error, Unreachable) or error.status >= 500 or error.status in (408, 429)
                if not away or time.monotonic() >= deadline:
                    raise
            time.sleep(0.5)


class AgentSessions:
    """The sessions of a node. Its methods are called from the agent's own thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sessions: dict[str, _Session] = {}
        self._terminals: dict[Key, tuple[int, float, Path | None]] = {}
        """By run whose first rank has a terminal: its other end, until when a session may take it, the rank's log."""

    def follow(self, orders: list[SessionOrder], keepers: Mapping[Key, KeeperHandle]) -> None:
        """Start the sessions that are new in the orders and end those that they no longer list."""
        wanted = {order.session for order in orders}
        for name, session in [item for item in self._sessions.items() if item[0] not in wanted]:
            if session.over.is_set():
                del self._sessions[name]
            else:
                session.hang_up()
        for order in orders:
            if order.session not in self._sessions:
                self._start(order, keepers.get((order.job, order.incarnation)))

    def _start(self, order: SessionOrder, keeper: KeeperHandle | None) -> None:
        problem, theirs = "", []
        session = _Session(order, self._client, lambda: None, -1, {})
        self._sessions[order.session] = session
        try:
            if keeper is None or len(self._sessions) > MOST_SESSIONS:
                problem = "its run has ended" if keeper is None else f"the node has {MOST_SESSIONS} sessions already"
            elif not order.command:
                problem = self._attach(session, (order.job, order.incarnation))
            else:
                theirs = self._open_files(session)
                process = {"session": order.session, "rank": order.rank, "argv": order.command}
                keeper.start_session({**process, "env": _variables(order)}, theirs)
                session.hang_up = lambda: keeper.hang_up(order.session)
        except OSError as error:
            problem = f"the agent could not start it: {error.strerror}"
        finally:
            for file in theirs:
                os.close(file)
        if problem:
            session.end(None, problem)
        session.begin()

    def _open_files(self, session: _Session) -> list[int]:
        """Make a terminal or three pipes; return the ends for the command."""
        order = session.order
        if order.terminal:
            session.given, terminal = os.openpty()
            session.outputs = {session.given: "out"}
            set_size(session.given, order.rows, order.columns)
            return [terminal]
        given, session.given = os.pipe()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        session.outputs = {out: "out", err: "err"}
        return [given, out_end, err_end]

    def _attach(self, session: _Session, key: Key) -> str:
        """Give a session the terminal of a run's first rank; return the problem if there is none."""
        if key not in self._terminals:
            return "the job has no terminal of its own, or another session has it"
        session.given = self._terminals.pop(key)[0]
        session.outputs = {session.given: "out"}
        set_size(session.given, session.order.rows, session.order.columns)

        def hang_up() -> None:
            if not session.over.is_set():
                session.end(None, "its terminal was closed")  # the last closed end sends the hang-up signal

        session.hang_up = hang_up
        return ""

    def open_terminal(self, key: Key, run: Mapping[str, Any] = MappingProxyType({})) -> int:
        """Make a terminal for a run's first rank; return its end for the rank, which the caller closes.

        ``run`` is the keeper's input, which names the rank's log.
        """
        ours, theirs = os.openpty()
        log = Path(run["logs"], run["ranks"][0]["log"]) if run else None
        self._terminals[key] = ours, time.monotonic() + UNATTENDED_SECONDS, log
        return theirs

    def hang_up_unattended(self) -> None:
        """Close the terminals of ranks that no session has taken in time: the kernel hangs up their ranks."""
        now = time.monotonic()
        for key in [key for key, (_, until, _) in self._terminals.items() if now >= until]:
            os.close(self._terminals.pop(key)[0])

    def left(self, session: str, status: int, cause: str) -> None:
        """Note that the command of a session ended; with a cause it was not started."""
        if session in self._sessions:
            self._sessions[session].end(None if cause else status, cause)

    def rank_ended(self, key: Key, rank: int, status: int) -> None:
        """Note that a rank ended; a session at its own terminal ends with it."""
        for session in self._sessions.values():
            order = session.order
            if not order.command and (order.job, order.incarnation, order.rank) == (*key, rank):
                session.end(status)

    def run_over(self, key: Key) -> None:
        """Note that no process of a run is left; the log gets its terminal's output if no session has received that."""
        for session in self._sessions.values():
            if (session.order.job, session.order.incarnation) == key:
                session.end(None, "its run has ended")
        if key in self._terminals:
            terminal, _, log = self._terminals.pop(key)
            if log is not None:
                _keep_output(terminal, log)
            os.close(terminal)


def _keep_output(terminal: int, log: Path) -> None:
    """Append the output that waits in a terminal, whose other end is closed, to a log that its rank opened."""
    os.set_blocking(terminal, False)
    with suppress(OSError):  # a job's folder is its owner's: follow no link there
        folder = os.open(log.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            file = os.open(log.name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with open(file, "wb") as kept:
            while data := os.read(terminal, MOST_PIECE_BYTES):
                kept.write(data.replace(b"\r\n", b"\n"))
                kept.flush()


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Set a terminal's size, if it is known."""
    if rows and columns:
        ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _variables(order: SessionOrder) -> dict[str, str]:
    return {"TERM": order.terminal} if order.terminal else {}
