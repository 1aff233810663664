"""``shoal web``: a link to the cluster's page that logs one browser in."""

from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from shoal.cli.client import cluster_options
from shoal.cli.output import print_json, warn
from shoal.wire.login_messages import LoginCode

if TYPE_CHECKING:
    from shoal.wire.client import Client


@click.command()
@cluster_options
def web(client: "Client", as_json: bool) -> None:
    """Print a link to the cluster's page; it logs one browser in as you, once."""
    made = client.post("/v1/login/code", None, LoginCode)
    link = f"{client.url.rstrip('/')}/#code={quote(made.code, safe='')}"
    if as_json:
        print_json({"url": link, "seconds": made.seconds})
        return
    click.echo(link)
    warn(f"the link works once, within {made.seconds / 60:.0f} minutes; `shoal web` prints another")
