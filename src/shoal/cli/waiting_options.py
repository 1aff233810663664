"""Options of ``shoal submit`` on what a job waits for and how long it may run."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.client import find_job
from shoal.jobspec.times import read_moment, read_span

if TYPE_CHECKING:
    from shoal.wire.client import Client

_OPTIONS = (
    click.option(
        "--after",
        multiple=True,
        metavar="JOB[:WHEN]",
        help="Wait for JOB: WHEN is ok, any, notok or start; repeatable.",
    ),
    click.option("--singleton", is_flag=True, default=None, help="Wait for all earlier jobs of its name and tenant."),
    click.option("--begin", metavar="TIME", help="Do not start it before 18:00, 2026-11-17T08:00 or +2h."),
    click.option("--hold", is_flag=True, default=None, help="Do not start it until `shoal release`."),
    click.option("--time", metavar="TIME", help="Stop a run that lasts this long (2h, 90min); the job fails."),
    click.option("--signal", metavar="SIG[@SECONDS]", help="Send SIG this long before --time ends.  [default: 60]"),
    click.option(
        "--exclusive", is_flag=True, default=None, help="Use whole nodes alone: --gpus must be all of their GPUs."
    ),
    click.option("--priority", type=int, metavar="N", help="Higher starts first among your own jobs.  [default: 0]"),
)


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def waiting_fields(given: dict[str, Any], client: "Client") -> dict[str, Any]:
    """Return the fields with these options as a submission has them; jobs are found by name or id."""
    fields = dict(given)
    if "after" in fields:
        fields["after"] = [_dependency(text, client) for text in fields["after"]]
    if "begin" in fields:
        fields["begin"] = read_moment("begin", fields["begin"], datetime.now())
    if "time" in fields:
        fields["time"] = read_span("time", fields["time"])
    if "signal" in fields:
        name, at, before = fields["signal"].partition("@")
        fields["signal"] = {"signal": name, **({"before": read_span("signal", before)} if at else {})}
    return fields


def _dependency(text: str, client: "Client") -> dict[str, str]:
    job, _, when = text.partition(":")
    return {"job": find_job(client, job).job.id, **({"when": when} if when else {})}
