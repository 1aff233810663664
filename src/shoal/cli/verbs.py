"""``shoal hold``, ``release``, ``requeue``, ``priority`` and ``cancel``."""

from typing import TYPE_CHECKING, Any

import click

from shoal.cli.client import cluster_options, find_job, job_path
from shoal.cli.completion import complete_job
from shoal.cli.live_tables import count, state
from shoal.cli.output import print_json, say, warn
from shoal.core.errors import InputError
from shoal.wire.messages import CancelMany, PrioritiseMany, PriorityMessage, Submitted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.wire.client import Client
    from shoal.wire.messages import JobRow


def _filters(command: "Callable[..., None]") -> "Callable[..., None]":
    """Add the options that select live jobs instead of naming them; all but ``every`` are fields of the request."""
    for option in (
        click.option("--tenant", "--user", metavar="T", help="This tenant's live jobs (for administrators)."),
        click.option("--state", type=click.Choice(["pending", "running"]), help="Only jobs in this state."),
        click.option("--array", metavar="ID", help="The live jobs of this array."),
        click.option("--name", metavar="NAME", help="Your live jobs of this name."),
        click.option("--all", "every", is_flag=True, help="All your live jobs."),
    ):
        command = option(command)
    return command


def _filtered(jobs: tuple[str, ...], every: bool, filters: "Mapping[str, str | None]") -> bool:
    """Return whether live jobs are selected by filters; refuse a command with both names and filters, or neither."""
    filtered = every or any(value is not None for value in filters.values())
    if filtered == bool(jobs):
        hint = "name jobs, or give --all, --name, --array, --state or --tenant"
        raise InputError("job", " ".join(jobs) or None, hint)
    return filtered


def _each(
    client: "Client",
    jobs: tuple[str, ...],
    verb: str,
    as_json: bool,
    text: "Callable[[JobRow], str]",
    body: PriorityMessage | None = None,
) -> None:
    """Send a request about each job; all jobs are found before the first is changed."""
    rows = {detail.job.id: detail.job for detail in [find_job(client, name, only=True) for name in jobs]}
    for row in rows.values():
        client.call("POST", f"{job_path(row.id)}/{verb}", body, type(None))
        if not as_json:
            say(text(row))
    if as_json:
        print_json({"jobs": list(rows)})


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB…", shell_complete=complete_job)
@cluster_options
def hold(jobs: tuple[str, ...], client: "Client", as_json: bool) -> None:
    """Keep jobs from starting until `shoal release`; a running job continues, and is not restarted."""

    def text(row: "JobRow") -> str:
        runs = row.state in ("running", "starting")
        return f"held {row.id}" + "; it continues to run, and is not restarted" * runs

    _each(client, jobs, "hold", as_json, text)


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB…", shell_complete=complete_job)
@cluster_options
def release(jobs: tuple[str, ...], client: "Client", as_json: bool) -> None:
    """Release held jobs."""
    _each(client, jobs, "release", as_json, lambda row: f"released {row.id}")


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB…", shell_complete=complete_job)
@cluster_options
def requeue(jobs: tuple[str, ...], client: "Client", as_json: bool) -> None:
    """Stop running jobs and put them back into the queue; what they have not saved is lost."""
    _each(client, jobs, "requeue", as_json, lambda row: f"put {row.id} back into the queue; unsaved work is lost")


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB…]", shell_complete=complete_job)
@click.argument("priority", type=int, metavar="N")
@_filters
@cluster_options
def priority(
    jobs: tuple[str, ...], priority: int, every: bool, client: "Client", as_json: bool, **filters: Any
) -> None:
    """Set the priority of jobs; of a tenant's waiting jobs those with a higher one start first. Use `-- -5` for -5."""
    if _filtered(jobs, every, filters):
        changed = client.post("/v1/priority", PrioritiseMany(priority=priority, **filters), Submitted).jobs
        if as_json:
            print_json({"jobs": changed})
        else:
            say(f"{count(len(changed), 'job')} now {'has' if len(changed) == 1 else 'have'} priority {priority:,}")
        return

    def text(row: "JobRow") -> str:
        return f"{row.id} has priority {priority:,}, where it had {row.priority:,}"

    _each(client, jobs, "priority", as_json, text, PriorityMessage(priority))


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB…]", shell_complete=complete_job)
@click.option("--force", is_flag=True, help="Kill running jobs at once, also those that are already being cancelled.")
@_filters
@cluster_options
def cancel(jobs: tuple[str, ...], force: bool, every: bool, client: "Client", as_json: bool, **filters: Any) -> None:
    """Cancel jobs; running ones are warned (SIGTERM) and killed after their grace."""
    filtered = _filtered(jobs, every, filters)
    which = CancelMany(force=force, **filters)
    cancelled = client.post("/v1/cancel", which, Submitted).jobs if filtered else _cancel(client, jobs, force)
    if as_json:
        print_json({"cancelled": cancelled})
        return
    for id in cancelled:
        say(f"cancelled {id}")
    if filtered:
        warn(f"cancelled {count(len(cancelled), 'job')}")


def _cancel(client: "Client", jobs: tuple[str, ...], force: bool) -> list[str]:
    """Cancel the named jobs; return their ids."""
    found = {detail.job.id: detail.job for detail in [find_job(client, name, only=True) for name in jobs]}
    cancelled = []
    for row in found.values():
        if row.ended is not None and not (force and row.state == "cancelled"):
            warn(f"{row.id} had already ended ({state(row)})")
            continue
        client.call("DELETE", job_path(row.id) + "?force=true" * force, None, type(None))
        cancelled.append(row.id)
    return cancelled
