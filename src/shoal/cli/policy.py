"""``shoal policy``: the policy of a live cluster, a switch to another, and a shadow policy."""

from typing import TYPE_CHECKING

import click

from shoal.cli.client import cluster_options
from shoal.cli.completion import complete_policy
from shoal.cli.output import print_json, print_listing
from shoal.wire.policy_messages import PolicyChoice, PolicyInForce, ShadowChoice, ShadowRow

if TYPE_CHECKING:
    from shoal.wire.client import Client


@click.group(invoke_without_command=True)
@click.pass_context
def policy(ctx: click.Context) -> None:
    """Show or switch the policy of the cluster, or start a shadow policy, which decides nothing."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@policy.command("show", short_help="Show the deciding and the shadow policy.")
@cluster_options
def show(client: "Client", as_json: bool) -> None:
    """Show the policy that decides, and how a shadow policy would have decided."""
    found = client.get("/v1/policy", PolicyInForce)
    if as_json:
        print_json(found)
        return
    click.echo(f"policy: {found.policy}")
    if found.shadow is not None:
        _print_shadow(found.shadow)


@policy.command("switch", short_help="Let another policy decide.")
@click.argument("name", shell_complete=complete_policy)
@cluster_options
def switch(name: str, client: "Client", as_json: bool) -> None:
    """Let policy NAME decide from now on, until the control plane restarts (for administrators)."""
    client.call("POST", "/v1/policy", PolicyChoice(name), type(None))
    if as_json:
        print_json({"policy": name})
    else:
        click.echo(f"{name} decides from now on")


@policy.command("shadow", short_help="Ask a policy that decides nothing.")
@click.argument("name", required=False, shell_complete=complete_policy)
@click.option("--stop", is_flag=True, help="Stop the shadow policy.")
@cluster_options
def shadow(name: str | None, stop: bool, client: "Client", as_json: bool) -> None:
    """Also ask policy NAME at every decision; its answers are compared and change nothing (for administrators).

    `shoal policy show` and the cluster's page say what it would have done differently.
    """
    if (name is None) is not stop:
        raise click.UsageError("name a policy, or give --stop")
    client.call("POST", "/v1/policy/shadow", ShadowChoice(name), type(None))
    if as_json:
        print_json({"shadow": name})
    else:
        click.echo("no policy is asked beside the deciding one" if name is None else f"{name} is asked from now on")


def _print_shadow(row: ShadowRow) -> None:
    click.echo(f"shadow: {row.policy}, {row.same:,} of {row.compared:,} decisions alike, {row.skipped:,} not compared")
    if row.failed:
        click.echo(f"it was stopped: {row.failed}")
    use = [(each.tenant, f"{each.granted / 3600:,.2f}", f"{each.would / 3600:,.2f}") for each in row.tenants]
    if use:
        print_listing("GPU-hours granted", ("tenant", "granted>", f"by {row.policy}>"), use)
    jobs = [
        (f"{decision.number:,}", job.job, str(job.granted), str(job.would), job.reason)
        for decision in row.decisions
        for job in decision.jobs
    ]
    if jobs:
        print_listing("differences", ("decision>", "job", "GPUs>", "would>", "reason"), jobs)
