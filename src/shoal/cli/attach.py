"""``shoal exec`` and ``attach``: run a command or a shell inside a running job."""

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.client import cluster_options, find_job, job_path, retrying
from shoal.cli.completion import complete_job
from shoal.cli.output import print_json
from shoal.cli.submit import TakesCommand, words_after_dashes
from shoal.core.errors import InputError, ShoalError
from shoal.wire.messages import (
    LONGEST_POLL_SECONDS,
    MOST_PIECE_BYTES,
    MOST_PIECES,
    NewSession,
    PiecesWanted,
    SessionInput,
    SessionOpened,
    SessionPiece,
    SessionPieces,
)

if TYPE_CHECKING:
    from shoal.wire.client import Client

_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")

_MOST_UNSENT = 16
"""Pieces of input that are read ahead of those sent."""


@click.command("exec", cls=TakesCommand, options_metavar="[OPTIONS]")
@click.argument("job", metavar="JOB -- CMD…", shell_complete=complete_job)
@click.option("--rank", type=click.IntRange(0), default=0, metavar="R", help="Rank beside which it runs.")
@click.option("--pty", is_flag=True, help="Give the command a terminal.")
@cluster_options
def exec_(job: str, rank: int, pty: bool, client: "Client", as_json: bool) -> None:
    """Run the command after `--` inside JOB: on its node, as its user, in its environment and folder.

    Exits with the command's status. Standard input is passed on unless it is a terminal. With --json nothing else is
    printed.
    """
    command = words_after_dashes()
    if not command:
        raise InputError("command", None, "nothing stands after `--`; write e.g. `shoal exec JOB -- nvidia-smi`")
    if as_json and pty:
        raise InputError("pty", True, "has no document to print; leave --pty or --json out")
    wanted = NewSession(command=command, rank=rank, **(terminal_fields() if pty else {}))
    found = find_job(client, job).job.id
    if not as_json:
        raise SystemExit(exit_code(run_session(client, found, wanted)))
    streams: dict[str, list[bytes]] = {"out": [], "err": []}
    status = run_session(client, found, wanted, streams)
    texts = {kind: b"".join(parts).decode(errors="replace") for kind, parts in streams.items()}
    print_json({"job": found, "rank": rank, "status": status, "stdout": texts["out"], "stderr": texts["err"]})
    raise SystemExit(exit_code(status))


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.option("--rank", type=click.IntRange(0), default=0, metavar="R", help="Rank beside which the shell runs.")
@cluster_options
def attach(job: str, rank: int, client: "Client", as_json: bool) -> None:
    """Open a shell inside JOB, on this terminal; it ends with the job at the latest."""
    if as_json:
        raise InputError("json", True, "a shell prints no document; use `shoal exec --json`")
    wanted = NewSession(command=list(_SHELL), rank=rank, **terminal_fields())
    raise SystemExit(exit_code(run_session(client, find_job(client, job).job.id, wanted)))


def exit_code(status: int) -> int:
    """The exit code of a command that ended with this status: 128 and its number for a signal, as shells do."""
    return status if status >= 0 else 128 - status


def terminal_fields() -> dict[str, Any]:
    """The fields of a session on this terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("pty", True, "needs a terminal as standard input and output; use `shoal exec` without --pty")
    size = os.get_terminal_size(sys.stdin.fileno())
    return {"terminal": os.environ.get("TERM") or "xterm", "rows": size.lines, "columns": size.columns}


def run_session(client: "Client", job: str, wanted: NewSession, collected: dict[str, list[bytes]] | None = None) -> int:
    """Run a session until its command ends, and return its status; its output is printed, or collected by stream."""
    opened = client.post(f"{job_path(job)}/sessions", wanted, SessionOpened)
    path = f"/v1/sessions/{opened.session}"
    unsent: queue.Queue[SessionPiece] = queue.Queue(_MOST_UNSENT)
    with _raw_terminal(unsent) if wanted.terminal else _plain_input(unsent):
        threading.Thread(target=_send_input, args=(client, path, unsent), daemon=True).start()
        try:
            return _print_output(client, path, collected)
        except BaseException:
            with suppress(ShoalError):
                client.call("DELETE", path, None, type(None))
            raise


def _print_output(client: "Client", path: str, collected: dict[str, list[bytes]] | None) -> int:
    after = 0
    while True:
        asked = f"{path}/output?after={after}&wait={LONGEST_POLL_SECONDS:g}"
        found = retrying(lambda: client.get(asked, SessionPieces, timeout=LONGEST_POLL_SECONDS + 10))  # noqa: B023
        for piece in found.pieces:
            if collected is not None:
                collected[piece.kind].append(piece.data)
            else:
                _write(sys.stderr.fileno() if piece.kind == "err" else sys.stdout.fileno(), piece.data)
        after = found.first + len(found.pieces)
        if found.ended:
            if found.status is None:
                raise ShoalError(found.cause or "the session ended")
            return found.status


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _send_input(client: "Client", path: str, unsent: "queue.Queue[SessionPiece]") -> None:
    """Send pieces of input until the session is over."""
    number = 0
    with suppress(ShoalError):
        while True:
            pieces = [unsent.get()]
            while len(pieces) < MOST_PIECES and not unsent.empty():
                pieces.append(unsent.get())
            while pieces:
                wanted = client.post(f"{path}/input", SessionInput(number, pieces), PiecesWanted)
                if wanted.closed:
                    return
                pieces, number = pieces[max(0, wanted.next - number) :], max(number, wanted.next)


def _read_input(unsent: "queue.Queue[SessionPiece]") -> None:
    while data := os.read(sys.stdin.fileno(), MOST_PIECE_BYTES):
        unsent.put(SessionPiece("in", data))
    unsent.put(SessionPiece("eof"))


@contextmanager
def _plain_input(unsent: "queue.Queue[SessionPiece]") -> Iterator[None]:
    """Pass on standard input while the context is open, unless it is a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        unsent.put(SessionPiece("eof"))
    else:
        threading.Thread(target=_read_input, args=(unsent,), daemon=True).start()
    yield


@contextmanager
def _raw_terminal(unsent: "queue.Queue[SessionPiece]") -> Iterator[None]:
    """Pass on every key and the terminal's size while the context is open; the terminal's settings are restored."""
    import termios
    import tty

    def resized(*_: object) -> None:
        size = os.get_terminal_size(sys.stdin.fileno())
        with suppress(queue.Full):
            unsent.put_nowait(SessionPiece("size", rows=size.lines, columns=size.columns))

    before, file = termios.tcgetattr(sys.stdin), sys.stdin.fileno()
    handler = signal.signal(signal.SIGWINCH, resized)
    tty.setraw(file)
    try:
        threading.Thread(target=_read_input, args=(unsent,), daemon=True).start()
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
