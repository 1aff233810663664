"""Messages of sessions: commands that a person runs inside a running job, with their input and output.

A session's bytes travel in numbered pieces, so that one that is sent twice counts once. The control plane passes them
on between the client and the agent, both of which ask it, and records none of them.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from shoal.wire.fields import Natural, Text

MOST_PIECE_BYTES = 32 * 1024
"""Most bytes of one piece."""

MOST_PIECES = 8
"""Most pieces in one message."""

LONGEST_POLL_SECONDS = 20.0
"""Longest time for which a request for pieces waits."""

Lines = Annotated[int, Meta(ge=0, le=10_000)]


class SessionPiece(Struct, frozen=True, omit_defaults=True):
    """A piece of a session: input, its end, the terminal's new size; or standard output or error."""

    kind: Literal["in", "eof", "size", "out", "err"]
    data: bytes = b""
    rows: Lines = 0
    columns: Lines = 0


Pieces = Annotated[list[SessionPiece], Meta(max_length=MOST_PIECES)]


class NewSession(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A command to run beside a rank of a running job, without a shell, with ``terminal`` on a terminal of this type.

    Without a command the session is the terminal of the rank itself, of a job that was submitted with one.
    """

    command: Annotated[list[Text], Meta(max_length=256)] = field(default_factory=list)
    rank: Natural = 0
    terminal: Annotated[str, Meta(max_length=64)] = ""
    rows: Lines = 0
    columns: Lines = 0


class SessionOpened(Struct, frozen=True):
    """The name of a new session. It opens when the node answers."""

    session: str
    node: str


class SessionOrder(Struct, frozen=True, kw_only=True):
    """A session that an agent should have; it ends one that the orders do not list."""

    session: str
    job: int
    incarnation: int
    rank: int
    command: list[str]
    terminal: str = ""
    rows: int = 0
    columns: int = 0


class SessionInput(Struct, forbid_unknown_fields=True, frozen=True):
    """Pieces of input from the client, numbered from ``first`` on; the answer is the number of the next one wanted."""

    first: Natural
    pieces: Pieces


class SessionInputPoll(Struct, frozen=True):
    """An agent's request for the input from piece ``after`` on; the control plane may hold it for ``wait`` seconds."""

    after: Natural
    wait: Annotated[float, Meta(ge=0, le=60)] = 0.0


class SessionOutput(Struct, frozen=True, kw_only=True):
    """Pieces of output from the agent, numbered from ``first`` on.

    With ``ended`` they are the last: ``status`` is the command's exit status, negative for a signal. It is None if the
    command could not be started or the run ended first; ``cause`` is the reason.
    """

    first: Natural
    pieces: Pieces = field(default_factory=list)
    ended: bool = False
    status: int | None = None
    cause: Annotated[str, Meta(max_length=2000)] = ""


class PiecesWanted(Struct, frozen=True):
    """The number of the next piece wanted; ``closed``: the session is over."""

    next: int
    closed: bool = False


class SessionPieces(Struct, frozen=True, kw_only=True):
    """Pieces of a session's data, numbered from ``first``; the last ones if ``ended``."""

    first: int
    pieces: list[SessionPiece]
    ended: bool = False
    status: int | None = None
    cause: str = ""
