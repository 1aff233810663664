"""Sessions inside running jobs, as the control plane passes their bytes on: in memory, bounded, and never recorded.

A client and an agent ask for pieces and hand over pieces; each direction has a buffer that its writer waits for when it
is full. A session ends with its command, when its client or its agent is silent for too long, or when no byte has
passed for ``IDLE_SECONDS``. Every method may be called from any thread.
"""

import secrets
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from shoal.core.errors import InputError
from shoal.live.agent_status import AgentKey
from shoal.wire.messages import MOST_PIECES, NewSession, SessionOrder, SessionOutput, SessionPiece, SessionPieces

MOST_SESSIONS = 256
MOST_SESSIONS_EACH = 8
"""Most sessions at a time, in all and of one tenant."""

_MOST_BYTES = 256 * 1024
"""Bytes that wait in one direction of a session."""

_SILENT_SECONDS = 60.0
"""Seconds after its last request at which a client or an agent counts as gone."""

_ATTACH_SECONDS = 20.0
"""Seconds in which an agent must answer for a new session."""

IDLE_SECONDS = 12 * 3600.0
"""Seconds without any byte after which a session is closed."""


@dataclass(slots=True)
class _Buffer:
    """Numbered pieces on their way in one direction, at most ``_MOST_BYTES`` of them, or one larger piece."""

    first: int = 0
    pieces: deque[SessionPiece] = field(default_factory=deque)
    size: int = 0

    @property
    def next(self) -> int:
        return self.first + len(self.pieces)

    def put(self, first: int, pieces: Sequence[SessionPiece]) -> int:
        """Take the pieces, numbered from ``first``, that are new and fit; return the number of the next one wanted."""
        for piece in pieces[max(0, self.next - first) :] if first <= self.next else ():
            if self.size >= _MOST_BYTES:
                break
            self.pieces.append(piece)
            self.size += len(piece.data)
        return self.next

    def get(self, after: int) -> list[SessionPiece]:
        """Drop the pieces before ``after``, which have arrived, and return the next ones."""
        while self.pieces and self.first < after:
            self.size -= len(self.pieces.popleft().data)
            self.first += 1
        return [self.pieces[index] for index in range(min(MOST_PIECES, len(self.pieces)))]


@dataclass(eq=False, slots=True)
class RelayedSession:
    """A session: its owner, its place, the bytes on their way, and its end."""

    order: SessionOrder
    agent: AgentKey
    agent_name: str
    caller: str
    tenant: str | None
    opened: float
    client_at: float
    bytes_at: float
    agent_at: float | None = None
    input: _Buffer = field(default_factory=_Buffer)
    output: _Buffer = field(default_factory=_Buffer)
    ended: bool = False
    status: int | None = None
    cause: str = ""

    def end(self, status: int | None, cause: str = "") -> None:
        """Note how it ended, once."""
        if not self.ended:
            self.ended, self.status, self.cause = True, status, cause

    @property
    def _shown(self) -> str:
        return f"{'node' if isinstance(self.agent, int) else 'allocation'} {self.agent_name}"

    def late(self, now: float) -> str:
        """Return why the session must be closed; empty if it may stay."""
        if now - self.client_at >= _SILENT_SECONDS:
            return "its client has gone"
        if self.agent_at is None and now - self.opened >= _ATTACH_SECONDS:
            return f"{self._shown} has not answered; see `shoal nodes`"
        if self.agent_at is not None and now - self.agent_at >= _SILENT_SECONDS:
            return f"{self._shown} no longer answers"
        return "it was idle for too long" if now - self.bytes_at >= IDLE_SECONDS else ""


class SessionRelay:
    """The sessions of a cluster. ``on_change`` is called, with no lock held, when a piece or an end may have come."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, new_name: Callable[[], str] = lambda: secrets.token_hex(16)
    ) -> None:
        self._clock, self._new_name = clock, new_name
        self._lock = threading.Lock()
        self._sessions: dict[str, RelayedSession] = {}
        self.on_change: Callable[[], None] = lambda: None

    def open(
        self,
        wanted: NewSession,
        key: tuple[int, int, int],
        agent: tuple[AgentKey, str],
        *,
        caller: str,
        tenant: str | None,
    ) -> str:
        """Add a session at this job, incarnation and rank, of this agent; return its name, a random one."""
        job, incarnation, rank = key
        with self._lock:
            now = self._clock()
            self._expire(now)
            held = Counter(session.caller for session in self._sessions.values() if not session.ended)
            if held[caller] >= MOST_SESSIONS_EACH or held.total() >= MOST_SESSIONS:
                hint = f"at most {MOST_SESSIONS_EACH} of a tenant and {MOST_SESSIONS} in all; close one"
                raise InputError("sessions", held[caller], hint)
            name = self._new_name()
            order = SessionOrder(
                session=name, job=job, incarnation=incarnation, rank=rank, command=wanted.command,
                terminal=wanted.terminal, rows=wanted.rows, columns=wanted.columns,
            )  # fmt: skip
            self._sessions[name] = RelayedSession(order, *agent, caller, tenant, now, now, now)
            return name

    def orders(self, agent: AgentKey) -> list[SessionOrder]:
        """Return the sessions that an agent should have."""
        with self._lock:
            self._expire(self._clock())
            return [each.order for each in self._sessions.values() if each.agent == agent and not each.ended]

    def of_client(self, name: str, tenant: str | None) -> RelayedSession:
        """Return a session of this tenant, None for an admin; ``LookupError`` if there is none."""
        return self._find(name, lambda session: tenant in (None, session.tenant))

    def of_agent(self, name: str, agent: str) -> RelayedSession:
        """Return a session of the agent of this node or allocation; ``LookupError`` if there is none."""
        return self._find(name, lambda session: session.agent_name == agent)

    def _find(self, name: str, allowed: Callable[[RelayedSession], bool]) -> RelayedSession:
        with self._lock:
            self._expire(self._clock())
            session = self._sessions.get(name)
            if session is None or not allowed(session):
                raise LookupError(name)
            return session

    def _expire(self, now: float) -> None:
        for name, session in list(self._sessions.items()):
            if session.ended and now - session.client_at >= _SILENT_SECONDS:
                del self._sessions[name]
            elif not session.ended and (cause := session.late(now)):
                session.end(None, cause)

    # ── the client ────────────────────────────────────────────────────────────────────────────────────────────

    def put_input(self, session: RelayedSession, first: int, pieces: Sequence[SessionPiece]) -> int:
        """Take input of the client as far as there is room; return the number of the next piece wanted."""
        with self._lock:
            session.client_at = session.bytes_at = self._clock()
            wanted = session.input.put(first, pieces)
        self.on_change()
        return wanted

    def get_output(self, session: RelayedSession, after: int) -> SessionPieces:
        """Return output from piece ``after`` on, and the end once there is no more output."""
        with self._lock:
            session.client_at = self._clock()
            pieces = session.output.get(after)
            ended = session.ended and session.output.first + len(pieces) == session.output.next
            found = SessionPieces(
                first=session.output.first, pieces=pieces, ended=ended, status=session.status, cause=session.cause
            )
        self.on_change()  # there is room for more
        return found

    def close(self, session: RelayedSession) -> None:
        """Close a session for its client."""
        session.end(None, "it was closed")
        self.on_change()

    # ── the agent ─────────────────────────────────────────────────────────────────────────────────────────────

    def get_input(self, session: RelayedSession, after: int) -> SessionPieces:
        """Return input from piece ``after`` on."""
        with self._lock:
            session.agent_at = self._clock()
            pieces = session.input.get(after)
            found = SessionPieces(first=session.input.first, pieces=pieces, ended=session.ended)
        self.on_change()
        return found

    def put_output(self, session: RelayedSession, sent: SessionOutput) -> int:
        """Take output of the agent as far as there is room; return the number of the next piece wanted."""
        with self._lock:
            session.agent_at = self._clock()
            wanted = session.output.put(sent.first, sent.pieces)
            if sent.pieces:
                session.bytes_at = session.agent_at
            if sent.ended and wanted >= sent.first + len(sent.pieces):
                session.end(sent.status, sent.cause)
        self.on_change()
        return wanted

    def waits(self, session: RelayedSession, buffer: _Buffer, after: int) -> bool:
        """Return whether a session has not ended and its buffer holds no piece after number ``after``."""
        return not session.ended and buffer.next <= after

    def room(self, session: RelayedSession, buffer: _Buffer) -> bool:
        """Return whether a buffer has room; true too once the session has ended, so that senders do not wait."""
        return session.ended or buffer.size < _MOST_BYTES
