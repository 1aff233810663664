"""``shoal run``: submit a command, wait until it runs, print its output and exit with its status."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import fields

from shoal.cli.attach import exit_code, run_session, terminal_fields
from shoal.cli.client import cluster_options, job_path, retrying
from shoal.cli.live_tables import state
from shoal.cli.logs import follow_job
from shoal.cli.output import print_json, warn
from shoal.cli.submit import TakesCommand, command_job, deliver, given_fields, ship_folders, submit, words_after_dashes
from shoal.cli.waiting_options import waiting_fields
from shoal.core.errors import InputError, ShoalError
from shoal.wire.client import Refused
from shoal.wire.messages import JobDetail, NewSession, Submission

if TYPE_CHECKING:
    from shoal.wire.client import Client

_POLL_SECONDS = 0.3


@click.command(cls=TakesCommand, options_metavar="[OPTIONS] -- CMD…")
@click.option("--pty", is_flag=True, help="Run the command on this terminal, as an interactive shell needs.")
@click.option("--ship", "shipped", is_flag=True, help="Send the working folder's files, and run the job in a copy.")
@cluster_options
def run(pty: bool, shipped: bool, client: "Client", as_json: bool, **options: Any) -> None:
    """Submit a command, wait until it runs, print its output and exit with its status; Ctrl-C cancels it.

    It takes the options of `shoal submit`, and is not tried again after a crash unless --retries says so. With --json
    its output is not printed; `shoal logs` has it.
    """
    command = words_after_dashes()
    if not command:
        raise InputError("command", None, "nothing stands after `--`; write e.g. `shoal run -- python train.py`")
    if pty and as_json:
        raise InputError("pty", True, "has no document to print; leave --pty or --json out")
    given = {"retries": 0, **waiting_fields(given_fields(options), client)}
    terminal = terminal_fields() if pty else {}
    if pty:
        env = {"TERM": terminal["terminal"], **given.get("env", {})}
        given = {"preemptible": "no", **given, "terminal": True, "ranks": "node", "env": env}
    jobs = [command_job(command, given)]
    (job,) = deliver(client, ship_folders(client, jobs) if shipped else jobs)
    warn(f"submitted {job}")
    try:
        code = _on_terminal(client, job, terminal) if pty else _output(client, job, quiet=as_json)
    except BaseException as error:
        with suppress(ShoalError):
            client.call("DELETE", job_path(job), None, type(None))
            warn(f"cancelled {job}" if isinstance(error, KeyboardInterrupt) else f"{job} is cancelled")
        raise
    if as_json:
        found = _detail(client, job)
        print_json({"job": job, "state": found.job.state, "exit_code": code, "reason": found.job.reason})
    raise SystemExit(code)


_FIELDS = {field.name for field in fields(Submission)}
run.params[:0] = [option for option in submit.params if option.name in _FIELDS]


def _detail(client: "Client", job: str) -> JobDetail:
    return retrying(lambda: client.get(job_path(job), JobDetail))


def _wait(client: "Client", job: str) -> JobDetail:
    """Wait until the job runs or has ended; say once why it waits."""
    found = _detail(client, job)
    announced = False
    while found.job.ended is None and found.job.state.lower() != "running":
        if found.decision and not announced and found.job.state.lower() in ("pending", "held"):
            warn(f"{job} {found.decision}")
            announced = True
        time.sleep(_POLL_SECONDS)
        found = _detail(client, job)
    return found


def _output(client: "Client", job: str, *, quiet: bool) -> int:
    """Print a job's output until it ends, unless ``quiet``; return the exit code."""
    found = _wait(client, job)
    with suppress(InputError, Refused):  # a job that could not be started has no log
        if not quiet:
            follow_job(client, found)
    while (found := _detail(client, job)).job.ended is None:
        time.sleep(_POLL_SECONDS)
    if found.job.state.lower() == "completed":
        return 0
    warn(f"{job} has ended ({state(found.job)}): {found.job.reason}")
    return exit_code(found.exit_status or 1)


def _on_terminal(client: "Client", job: str, terminal: dict[str, Any]) -> int:
    """Take the terminal of the job's first rank until it ends; return the exit code.

    A command that ended before this terminal joined it has left its output in its log.
    """
    if _wait(client, job).job.ended is None:
        try:
            return exit_code(run_session(client, job, NewSession(**terminal)))
        except ShoalError:
            if _detail(client, job).job.ended is None:
                raise
    return _output(client, job, quiet=False)
