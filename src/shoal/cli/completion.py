"""``shoal completion``: the script for a shell, and completion of policy names and job ids."""

from urllib.parse import urlencode

import click
from click.shell_completion import CompletionItem, get_completion_class

from shoal.core.errors import ShoalError

_JOBS_TIMEOUT_SECONDS = 1.0


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; evaluate it in the shell's startup file.

    Bash: eval "$(shoal completion bash)". Zsh: eval "$(shoal completion zsh)". Fish: shoal completion fish | source.
    """
    from shoal.cli import shoal

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(shoal, {}, "shoal", "_SHOAL_COMPLETE").source())


def complete_policy(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of policies that begin with the text; empty where the simulator is not installed."""
    try:
        from shoal.policy.registry import POLICIES
    except ImportError:
        return []
    return [CompletionItem(name, help=entry.summary) for name, entry in POLICIES.items() if name.startswith(incomplete)]


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of live jobs that begin with the text; empty where the cluster does not answer within a second."""
    from shoal.cli.client import connect
    from shoal.wire.messages import JobRow

    try:
        asked = f"/v1/jobs?{urlencode({'match': incomplete})}"
        rows = connect().get(asked, list[JobRow], timeout=_JOBS_TIMEOUT_SECONDS)
    except ShoalError:
        return []
    return [CompletionItem(row.id, help=row.state) for row in rows if row.id.startswith(incomplete)]
