"""How the commands of a live cluster reach it: which server, as whom, and which job a person means.

Options go before the environment, and that before what ``shoal up`` left in ``$SHOAL_HOME/client.json``. A stored token
is sent only to the server it was stored with.
"""

import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click

from shoal.cli.output import warn
from shoal.core.errors import InputError, ShoalError, nearest
from shoal.wire.client import Client, Refused, Unreachable
from shoal.wire.messages import JobDetail, JobRow

_T = TypeVar("_T")

_PATIENCE_SECONDS = 60.0
"""How long a command that follows something waits for a server that has gone: a restart takes a few seconds."""


class NoCluster(ShoalError):
    """Nobody said which cluster is meant, and none was left behind."""

    exit_code = 2


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which cluster; the command gets a ``client`` in their place."""

    @click.option("--server", metavar="URL", envvar="SHOAL_SERVER", help="The control plane; SHOAL_SERVER otherwise.")
    @click.option("--token-file", metavar="FILE", help="A file with the token; SHOAL_TOKEN otherwise.")
    @functools.wraps(command)
    def connected(*args: Any, server: str | None, token_file: str | None, **named: Any) -> Any:
        with closing(connect(server, token_file)) as client:
            return command(*args, client=client, **named)

    return connected


def connect(server: str | None = None, token_file: str | None = None) -> Client:
    """A client of the cluster that is meant; nothing is sent yet."""
    home = Path(os.environ.get("SHOAL_HOME") or Path.home() / ".shoal")
    stored = _stored(home / "client.json")
    url = server or os.environ.get("SHOAL_SERVER") or stored.get("server")
    if not url:
        raise NoCluster("no cluster: start one with `shoal up`, or set SHOAL_SERVER")
    own = stored if url == stored.get("server") else {}
    token = _read(token_file) if token_file else os.environ.get("SHOAL_TOKEN") or own.get("token")
    cafile = os.environ.get("SHOAL_CAFILE") or own.get("cafile")
    if not token:
        raise InputError("token", None, f"none for {url}: set SHOAL_TOKEN, or name a --token-file")
    if not token.isascii() or not token.isprintable():
        raise InputError("token", "…", "must be one line of plain letters and digits")
    try:
        return Client(url, token, cafile=cafile)
    except ValueError as error:
        raise InputError("server", url, f"is not a URL: {error}") from error
    except OSError as error:
        raise InputError("SHOAL_CAFILE", cafile, f"cannot be used: {error}") from error


def _stored(path: Path) -> dict[str, str | None]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError("client file", str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError("client file", str(path), "is not JSON; `shoal up` writes it anew") from error
    if not isinstance(document, dict) or not all(isinstance(v, str | None) for v in document.values()):
        raise InputError("client file", str(path), 'must hold {"server", "token", "cafile"}; `shoal up` writes it anew')
    return document


def _read(token_file: str) -> str:
    try:
        return Path(token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("token-file", token_file, f"cannot be read: {getattr(error, 'strerror', error)}") from error


# ── which job ────────────────────────────────────────────────────────────────────────────────────────────────────


def job_path(job: str) -> str:
    """Where a job of this id is."""
    return f"/v1/jobs/{quote(job, safe='')}"


def find_job(client: Client, meant: str) -> JobDetail:
    """The job a person means: by its id, else by the one beginning of an id or the one name that fits.

    Where live jobs fit, ended ones are not considered.
    """
    if not meant:
        raise InputError("job", meant, "name a job; `shoal queue` lists them")
    try:
        return client.get(job_path(meant), JobDetail)
    except (InputError, Refused) as error:
        if not _unknown_job(error):
            raise
    rows = client.get("/v1/jobs?all=true", list[JobRow])
    return client.get(job_path(choose_job(rows, meant)), JobDetail)


def choose_job(rows: Sequence[JobRow], meant: str) -> str:
    """The one id among these jobs that fits, or an error that says what there is instead."""
    fitting = [row for row in rows if row.name == meant or row.id.startswith(meant)]
    fitting = [row for row in fitting if row.ended is None] or fitting
    if len(fitting) == 1:
        return fitting[0].id
    if fitting:
        shown = ", ".join(row.id for row in fitting[:10]) + (", …" if len(fitting) > 10 else "")
        raise InputError("job", meant, f"fits {len(fitting)} jobs ({shown}); write more of the id")
    if not rows:
        raise InputError("job", meant, "unknown; there are no jobs")
    raise InputError("job", meant, nearest(meant, {row.id for row in rows}))


def _unknown_job(error: InputError | Refused) -> bool:
    return error.field in ("job", "id") if isinstance(error, InputError) else error.status == 404


# ── following ────────────────────────────────────────────────────────────────────────────────────────────────────


def patiently(ask: Callable[[], _T], *, told: Callable[[str], None] = warn, pause_seconds: float = 1.0) -> _T:
    """An answer, though the server may be away for a moment; ``told`` hears of it once."""
    given_up = time.monotonic() + _PATIENCE_SECONDS
    silent = True
    while True:
        try:
            return ask()
        except Unreachable as error:
            if time.monotonic() >= given_up:
                raise
            if silent:
                told(f"{error} (trying again)")
            silent = False
            time.sleep(pause_seconds)
