"""``shoal token``: who may talk to the cluster."""

from typing import TYPE_CHECKING
from urllib.parse import quote

import click
from msgspec import to_builtins

from shoal.cli.client import cluster_options
from shoal.cli.live_tables import count, print_listing
from shoal.cli.output import json_option, print_json, warn
from shoal.wire.fields import Role
from shoal.wire.messages import NewToken, TokenRow

if TYPE_CHECKING:
    from shoal.wire.client import Client


@click.group(invoke_without_command=True)
@click.pass_context
def token(ctx: click.Context) -> None:
    """Make, list or revoke tokens (for administrators)."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@token.command()
@click.argument("name")
@click.option("--role", required=True, type=click.Choice(["admin", "user", "agent"]), help="What it may do.")
@click.option("--tenant", metavar="T", help="The tenant a user's token is bound to.")
@click.option("--node", metavar="NODE", help="The one node an agent's token may speak for; any where left out.")
@cluster_options
@json_option
def create(name: str, role: Role, tenant: str | None, node: str | None, client: "Client", as_json: bool) -> None:
    """Make a token and print its secret, which is shown this once."""
    made = client.post("/v1/tokens", NewToken(name, role, tenant, node), TokenRow)
    if as_json:
        print_json(to_builtins(made))
    else:
        click.echo(made.secret)
    warn(f"keep the secret of {made.name}: it is stored hashed, and cannot be shown again")


@token.command("list")
@cluster_options
@json_option
def list_(client: "Client", as_json: bool) -> None:
    """List the tokens there are, without their secrets."""
    found = client.get("/v1/tokens", list[TokenRow])
    if as_json:
        print_json([{"name": t.name, "role": t.role, "tenant": t.tenant, "node": t.node} for t in found])
        return
    rows = [(t.name, t.role, t.tenant or "", t.node or "") for t in found]
    print_listing(count(len(found), "token"), ("name", "role", "tenant", "node"), rows)


@token.command()
@click.argument("name")
@cluster_options
@json_option
def revoke(name: str, client: "Client", as_json: bool) -> None:
    """Make a token worthless at once."""
    client.call("DELETE", f"/v1/tokens/{quote(name, safe='')}", None, type(None))
    if as_json:
        print_json({"revoked": name})
    else:
        click.echo(f"revoked {name}")
