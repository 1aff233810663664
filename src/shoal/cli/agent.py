"""``shoal agent``: the agent of one node."""

import socket
import sys
from pathlib import Path
from typing import Any

import click

from shoal.cli.client import default_home
from shoal.core.errors import InputError
from shoal.wire.token_source import agent_token

USERS_HELP = (
    "System users of tenants' jobs, if run as root: off (all share one), auto (made where possible), a range of "
    "numbers FIRST-LAST, or a file with lines `tenant: user`."
)

LOG_LIMIT = click.option(
    "--log-limit",
    "log_mb",
    type=click.IntRange(1, 10**6),
    default=64,
    metavar="MB",
    help="Megabytes kept of a rank's log: its head and its tail.",
)


def agent_line(server: str, token_file: str | Path, node: str, devices: tuple[str, int], cafile: str | None) -> str:
    """Return the command that starts a node's agent; ``devices`` are the kind and the number of its GPUs."""
    trust = f"--cafile {cafile} " if cafile is not None and server.startswith("https:") else ""
    what = f"--node {node} --kind {devices[0]} --gpus {devices[1]}"
    return f"shoal agent --server {server} {trust}--token-file {token_file} {what}"


def agent_heading(what: str, cafile: str | None) -> str:
    """Return the line above commands of `agent_line`: which files they need copies of."""
    files = "a copy of its token file" if cafile is None else "copies of its token file and of the certificate"
    return f"Start {what}, with {files}:"


@click.command()
@click.option("--server", metavar="URL", envvar="SHOAL_SERVER", required=True, help="URL of the control plane.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the token of this node's agent.")
@click.option("--token-fd", type=int, metavar="FD", help="Open file descriptor to read the token from.")
@click.option(
    "--join-file",
    type=click.Path(path_type=Path),
    help="File with a join token: adds this node to the cluster if it is new.",
)
@click.option("--cafile", envvar="SHOAL_CAFILE", metavar="FILE", help="Certificates to trust for https.")
@click.option(
    "--node", default=socket.gethostname, show_default=False, help="Name of this node.  [default: the host's]"
)
@click.option("--kind", help="Kind of its GPUs.  [default: ask the driver]")
@click.option("--gpus", type=click.IntRange(1, 255), help="Number of its GPUs.  [default: ask the driver]")
@click.option("--address", default="127.0.0.1", help="Address at which ranks on other nodes reach this one.")
@click.option(
    "--home", type=click.Path(path_type=Path), help="Folder for jobs and logs.  [default: SHOAL_HOME or ~/.shoal]"
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder in which jobs may have their working folder; repeatable.  [default: any]",
)
@LOG_LIMIT
@click.option("--tenant-users", default="auto", metavar="USERS", help=USERS_HELP)
def agent(
    server: str,
    token_file: Path | None,
    token_fd: int | None,
    join_file: Path | None,
    home: Path | None,
    roots: tuple[Path, ...],
    log_mb: int,
    **options: Any,
) -> None:
    """Run the agent of one node until SIGINT or SIGTERM; it then warns its jobs and waits for their grace."""
    from shoal.agent.agent_settings import AgentSettings
    from shoal.agent.run_agent import main

    if join_file is not None:
        from shoal.agent.joining import join

        if token_file is not None or token_fd is not None:
            raise InputError("join-file", str(join_file), "give a join token or the agent's own token, not both")
        wanted = {name: options[name] for name in ("node", "kind", "gpus", "cafile")}
        token_file = join(server, join_file, home or default_home(), **wanted)
    token = agent_token(token_file, token_fd)
    settings = AgentSettings(
        server=server, token=token, home=home or default_home(), roots=roots, log_bytes=log_mb * 10**6, **options
    )
    sys.exit(main(settings))
