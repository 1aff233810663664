"""``shoal token``: create, list and revoke tokens."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from shoal.cli.client import cluster_options
from shoal.cli.live_tables import count
from shoal.cli.output import print_json, print_listing, warn
from shoal.wire.fields import Role
from shoal.wire.messages import TOKEN_DAYS, NewToken, TokenRow

if TYPE_CHECKING:
    from shoal.wire.client import Client


@click.group(invoke_without_command=True)
@click.pass_context
def token(ctx: click.Context) -> None:
    """Create, list or revoke tokens (for administrators)."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@token.command()
@click.argument("name")
@click.option(
    "--role", required=True, type=click.Choice(["admin", "user", "agent", "join"]), help="Role of the holder."
)
@click.option("--tenant", metavar="T", help="Tenant that a user's token acts for.")
@click.option("--node", metavar="NODE", help="Node of an agent's token.")
@click.option("--days", type=float, default=TOKEN_DAYS, help="Days until the token expires.")
@cluster_options
def create(
    name: str, role: Role, tenant: str | None, node: str | None, days: float, client: "Client", as_json: bool
) -> None:
    """Create token NAME and print its secret, which is shown only now."""
    made = client.post("/v1/tokens", NewToken(name, role, tenant, node, days), TokenRow)
    if as_json:
        print_json(made)
    else:
        click.echo(made.secret)
    warn(f"keep the secret of {made.name}: it is stored hashed, and cannot be shown again")


@token.command("list")
@cluster_options
def list_(client: "Client", as_json: bool) -> None:
    """List the tokens, without their secrets."""
    found = client.get("/v1/tokens", list[TokenRow])
    if as_json:
        shown = ("name", "role", "tenant", "node", "created", "expires")
        print_json([{field: getattr(t, field) for field in shown} for t in found])
        return
    rows = [(t.name, t.role, t.tenant or "", t.node or "", _day(t.created), _day(t.expires)) for t in found]
    print_listing(count(len(found), "token"), ("name", "role", "tenant", "node", "created", "expires"), rows)


@token.command()
@click.argument("name")
@cluster_options
def revoke(name: str, client: "Client", as_json: bool) -> None:
    """Revoke token NAME at once."""
    client.call("DELETE", f"/v1/tokens/{quote(name, safe='')}", None, type(None))
    if as_json:
        print_json({"revoked": name})
    else:
        click.echo(f"revoked {name}")


def _day(moment: float | None) -> str:
    """Return the day of a Unix time."""
    return "" if moment is None else str(datetime.fromtimestamp(moment, UTC).date())
