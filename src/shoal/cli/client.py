"""Connection of the live commands: which server, which token, and which job an argument names.

Options override the environment, and that overrides ``client.json``, which ``shoal up`` writes in ``$SHOAL_HOME``. A
stored token is sent only to the server it was stored with.
"""

import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import click

from shoal.cli.output import json_option, warn
from shoal.cli.starting import wait_for_start
from shoal.core.errors import InputError, ShoalError, nearest
from shoal.wire.client import Client, Refused, Unreachable
from shoal.wire.messages import JobDetail, JobRow
from shoal.wire.token_source import ask_token, read_token_file

_T = TypeVar("_T")

_PAGE_JOBS = 1000
"""Most jobs that one request lists."""

_MOST_NEAR = 1000
"""Jobs among which the ones nearest to an unknown name are looked for."""

_PATIENCE_SECONDS = 60.0
"""Seconds that a command which follows something waits for an unreachable server: a restart takes a few."""

_PAUSE_SECONDS = 1.0
"""Seconds between two of its tries."""


class NoCluster(ShoalError):
    """No cluster is named and none was started here."""

    exit_code = 2


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the cluster, in whose place the command gets a ``client``, and `--json`.

    A group's own function is not called for its subcommands, which have these options themselves.
    """

    @click.option(
        "--server", metavar="URL", envvar="SHOAL_SERVER", help="URL of the control plane. [env: SHOAL_SERVER]"
    )
    @click.option("--token-file", metavar="FILE", help="File with the token; SHOAL_TOKEN by default.")
    @json_option
    @functools.wraps(command)
    def connected(*args: Any, server: str | None, token_file: str | None, **named: Any) -> Any:
        if click.get_current_context().invoked_subcommand is not None:
            return None
        if not server:
            wait_for_start(default_home(), lambda: _stored(default_home() / "client.json"))
        with closing(connect(server, token_file)) as client:
            return command(*args, client=client, **named)

    return connected


def connect(server: str | None = None, token_file: str | None = None) -> Client:
    """Return a client of the selected cluster; sends nothing."""
    stored = _stored(default_home() / "client.json")
    url = server or os.environ.get("SHOAL_SERVER") or stored.get("server")
    if not url:
        raise NoCluster("no cluster: start one with `shoal up`, or set SHOAL_SERVER")
    own = stored if url == stored.get("server") else {}
    token_file = token_file or os.environ.get("SHOAL_TOKEN_FILE")
    token = read_token_file(token_file) if token_file else os.environ.get("SHOAL_TOKEN") or own.get("token")
    cafile = os.environ.get("SHOAL_CAFILE") or own.get("cafile")
    if not token and not own.get("socket"):
        raise InputError("token", None, f"none for {url}: set SHOAL_TOKEN, or name a --token-file")
    if token and not (token.isascii() and token.isprintable()):
        raise InputError("token", "…", "must be one line of plain letters and digits")
    try:
        return Client(url, token or partial(_ask_stored, default_home() / "client.json"), cafile=cafile)
    except ValueError as error:
        raise InputError("server", url, f"is not a URL: {error}") from error
    except OSError as error:
        raise InputError("SHOAL_CAFILE", cafile, f"cannot be used: {error}") from error


def default_home() -> Path:
    """Folder of a cluster's files on this machine: ``$SHOAL_HOME``, or ``~/.shoal``."""
    return Path(os.environ.get("SHOAL_HOME") or Path.home() / ".shoal")


def _ask_stored(path: Path) -> str:
    """Return the token of the ``shoal up`` that wrote this file last: a restart makes another socket."""
    return ask_token(_stored(path).get("socket") or "")


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
        raise InputError(
            "client file", str(path), 'must hold {"server", "token" or "socket", "cafile"}; `shoal up` writes it anew'
        )
    return document


def job_path(job: str) -> str:
    """The path of a job in the API."""
    return f"/v1/jobs/{quote(job, safe='')}"


def find_job(client: Client, text: str, *, only: bool = False) -> JobDetail:
    """Return the job with this id, else with this name, else the only job whose id begins with the text.

    Ended jobs are considered only where no live one fits. Of several jobs with the same name it is the latest, which a
    line on stderr says; with ``only``, for commands that change a job, several live ones are an error.
    """
    if not text:
        raise InputError("job", text, "name a job; `shoal queue` lists them")
    try:
        return client.get(job_path(text), JobDetail)
    except (InputError, Refused) as error:
        if not _unknown_job(error):
            raise
    rows = list_jobs(client, _MOST_NEAR, ended=True, match=text) or list_jobs(client, _MOST_NEAR, ended=True)
    return client.get(job_path(choose_job(rows, text, only=only)), JobDetail)


def list_jobs(client: Client, most: int, *, ended: bool = False, offset: int = 0, **only: str | None) -> list[JobRow]:
    """Return at most ``most`` jobs, from the one at ``offset`` on; ``only`` are further query parameters."""
    asked = {"all": "true" if ended else None, **only}
    query = {name: value for name, value in asked.items() if value is not None}
    rows: list[JobRow] = []
    while len(rows) < most:
        wanted = min(most - len(rows), _PAGE_JOBS)
        page = urlencode({**query, "offset": offset + len(rows), "limit": wanted})
        found = client.get(f"/v1/jobs?{page}", list[JobRow])
        rows += found
        if len(found) < wanted:
            break
    return rows


def choose_job(rows: Sequence[JobRow], text: str, *, only: bool = False) -> str:
    """The id of the job that fits, as for `find_job`; an error lists the candidates."""
    named = _live_first([row for row in rows if row.name == text])
    fitting = named or _live_first([row for row in rows if row.id.startswith(text)])
    if len(fitting) == 1:
        return fitting[0].id
    shown = ", ".join(row.id for row in fitting[:10]) + (", …" if len(fitting) > 10 else "")
    if named and not (only and named[0].ended is None):
        latest = max(named, key=lambda row: row.submitted)
        warn(f"{len(named)} jobs are named {text} ({shown}); this is the latest, {latest.id}")
        return latest.id
    if fitting:
        raise InputError("job", text, f"fits {len(fitting)} jobs ({shown}); write more of the id")
    if not rows:
        raise InputError("job", text, "unknown; there are no jobs")
    raise InputError("job", text, nearest(text, {row.id for row in rows}))


def _live_first(rows: Sequence[JobRow]) -> list[JobRow]:
    return [row for row in rows if row.ended is None] or list(rows)


def _unknown_job(error: InputError | Refused) -> bool:
    return error.field in ("job", "id") if isinstance(error, InputError) else error.status == 404


def retrying(ask: Callable[[], _T], *, on_retry: Callable[[str], None] = warn) -> _T:
    """Call ``ask`` until the server answers, for up to a minute; ``on_retry`` gets the first error's text."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    first = True
    while True:
        try:
            return ask()
        except Unreachable as error:
            if time.monotonic() >= deadline:
                raise
            if first:
                on_retry(f"{error} (trying again)")
            first = False
            time.sleep(_PAUSE_SECONDS)
