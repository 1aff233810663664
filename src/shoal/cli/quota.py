"""``shoal quota``: set and list the quotas of tenants."""

from typing import TYPE_CHECKING

import click

from shoal.cli.client import cluster_options
from shoal.cli.live_tables import count
from shoal.cli.output import print_json, print_listing
from shoal.core.decoding import convert
from shoal.wire.messages import QuotaMessage

if TYPE_CHECKING:
    from shoal.wire.client import Client


@click.group(invoke_without_command=True)
@click.pass_context
def quota(ctx: click.Context) -> None:
    """Set or list the quotas of tenants (for administrators)."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@quota.command("set", short_help="Set the quota of a tenant.")
@click.argument("tenant")
@click.option("--queued", type=int, metavar="N", help="Most waiting jobs.  [default: any number]")
@click.option("--gpus", type=int, metavar="N", help="Most GPUs at once.  [default: any number]")
@click.option("--guaranteed", type=int, default=0, metavar="N", help="GPUs it gets back from others on demand.")
@cluster_options
def set_(tenant: str, queued: int | None, gpus: int | None, guaranteed: int, client: "Client", as_json: bool) -> None:
    """Set the quota of TENANT, in place of the one before; without options it has none."""
    given = {"tenant": tenant, "queued": queued, "gpus": gpus, "guaranteed": guaranteed}
    wanted = convert(given, QuotaMessage)
    client.call("POST", "/v1/quotas", wanted, type(None))
    if as_json:
        print_json(wanted)
    else:
        click.echo(f"{tenant}: {_described(wanted)}")


def _described(wanted: QuotaMessage) -> str:
    parts = []
    if wanted.queued is not None:
        parts.append(f"at most {count(wanted.queued, 'waiting job')}")
    if wanted.gpus is not None:
        parts.append(f"at most {count(wanted.gpus, 'GPU')} at once")
    if wanted.guaranteed:
        parts.append(f"{count(wanted.guaranteed, 'GPU')} guaranteed")
    return ", ".join(parts) or "no quota"


@quota.command("list")
@cluster_options
def list_(client: "Client", as_json: bool) -> None:
    """List the quotas."""
    found = client.get("/v1/quotas", list[QuotaMessage])
    if as_json:
        print_json(found)
        return
    rows = [(q.tenant, _number(q.queued), _number(q.gpus), _number(q.guaranteed)) for q in found]
    print_listing(count(len(found), "quota"), ("tenant", "waiting jobs>", "GPUs>", "guaranteed>"), rows)


def _number(value: int | None) -> str:
    return "any" if value is None else f"{value:,}"
