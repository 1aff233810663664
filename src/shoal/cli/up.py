"""Commands that run a cluster: `up` on this machine, `serve` the control plane of several, `agent` on each of them."""

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shoal.cli.output import warn
from shoal.core.errors import InputError
from shoal.wire.logs import log_json

DEFAULT_PORT = 7433

_POLICY = "las"
"""What a new cluster runs: it needs to know nothing of its jobs, and lets short ones through."""


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        [
            click.option("--policy", default=_POLICY, show_default=True, help="As `shoal policies` lists them."),
            click.option("--placement", default="packed", show_default=True, help="any, packed, rack or network."),
            click.option("--knowledge", metavar="K", help="What policies are told of speed; each its own by default."),
            click.option("--round", "round_seconds", type=float, help="Seconds between a policy's reviews."),
            click.option("--home", type=click.Path(path_type=Path), help="Where all is kept; SHOAL_HOME or ~/.shoal."),
            click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True),
            click.option("--lease", type=float, default=20.0, show_default=True, help="Seconds a silent node has."),
            click.option("--retry", type=float, default=10.0, show_default=True, help="Seconds after a first crash."),
            click.option("--root", "roots", multiple=True, help="A folder jobs may work in; repeatable."),
            click.option("--json", "as_json", is_flag=True, help="Print where it listens as JSON."),
        ]
    ):
        command = option(command)
    return command


@click.command()
@click.option("--nodes", metavar="NODESxGPUS", help="Virtual nodes, e.g. 2x2.  [default: this machine as it is]")
@click.option("--cluster", metavar="SPEC", help="Virtual nodes of several kinds, e.g. a100:1x4,v100:2x4.")
@_common
def up(nodes: str | None, cluster: str | None, port: int, as_json: bool, **options: Any) -> None:
    """Run a cluster on this machine until Ctrl-C: the control plane, and an agent for each node."""
    from shoal.provider.local import LocalNodes
    from shoal.serve.service import Address, run_service

    stop = _Stop()
    roots = tuple(options.pop("roots")) or (os.getcwd(), str(Path.home()))
    settings = _settings(_local_cluster(nodes, cluster), roots=roots, **options)
    _log_to(settings.home / "control.log")
    with run_service(settings, Address(port=port)) as made:
        local = LocalNodes.of(
            made.listening.url, made.agent_token, settings.scenario.cluster.nodes, settings.home, roots=settings.roots
        )
        local.ensure_running()
        _announce(made.listening.url, settings, as_json, local=True)
        while not stop.wait(0.5):
            local.ensure_running()
            _check(made.control_plane.failed)
        running = made.control_plane.cluster().running
        if running:
            warn(f"stopping {running} running job{'s' * (running > 1)}, each with its grace; Ctrl-C again kills them")
        local.stop(lambda: stop.again(0.05))


@click.command()
@click.option("--cluster", metavar="SPEC", required=True, help="The nodes there are: TYPE:NODESxGPUS[,…] or a file.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; other machines need another.")
@click.option("--certfile", help="A certificate for TLS.")
@click.option("--keyfile", help="Its key.")
@_common
def serve(
    cluster: str, host: str, port: int, certfile: str | None, keyfile: str | None, as_json: bool, **options: Any
) -> None:
    """Run the control plane of a cluster of several machines; each of them runs `shoal agent`."""
    from shoal.serve.service import Address, run_service

    stop = _Stop()
    settings = _settings(cluster, **options)
    log_json()
    with run_service(settings, Address(host, port, certfile, keyfile)) as made:
        _announce(made.listening.url, settings, as_json, local=False)
        while not stop.wait(0.5):
            _check(made.control_plane.failed)


@click.command()
@click.option("--server", metavar="URL", envvar="SHOAL_SERVER", required=True, help="The control plane.")
@click.option("--token-file", type=click.Path(path_type=Path), help="A file with an agent's token; SHOAL_TOKEN else.")
@click.option("--cafile", envvar="SHOAL_CAFILE", help="Certificates to trust for https.")
@click.option("--node", default=socket.gethostname, help="This node's name.  [default: the host's]")
@click.option("--kind", help="What its GPUs are called.  [default: ask the driver]")
@click.option("--gpus", type=click.IntRange(1, 255), help="How many it has.  [default: ask the driver]")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where ranks on other nodes reach this one.")
@click.option("--home", type=click.Path(path_type=Path), help="Where jobs and logs go; SHOAL_HOME or ~/.shoal.")
@click.option("--root", "roots", multiple=True, type=click.Path(path_type=Path), help="A folder jobs may work in.")
def agent(server: str, token_file: Path | None, home: Path | None, roots: tuple[Path, ...], **options: Any) -> None:
    """Run the agent of one node until it is told to end; jobs are then warned and given their grace."""
    from shoal.agent.node_agent import AgentSettings, main
    from shoal.live.home import home as default_home

    token = os.environ.get("SHOAL_TOKEN", "")
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise InputError("token-file", str(token_file), f"cannot be read: {error.strerror}") from error
    if not token:
        raise InputError("token", None, "name a --token-file, or set SHOAL_TOKEN (`shoal token create` makes one)")
    sys.exit(main(AgentSettings(server=server, token=token, home=home or default_home(), roots=roots, **options)))


def _settings(
    cluster: str,
    *,
    policy: str,
    placement: str,
    knowledge: str | None,
    round_seconds: float | None,
    home: Path | None,
    lease: float,
    retry: float,
    roots: tuple[str, ...],
) -> Any:
    from shoal.live.home import Settings
    from shoal.live.home import home as default_home
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.specs import read_cluster

    scenario = Scenario(read_cluster(cluster), policy, placement=placement, knowledge=knowledge, round=round_seconds)
    scenario.make_policy()
    scenario = replace(scenario, policy=policy)
    return Settings(
        (home or default_home()).resolve(), scenario, lease, retry, tuple(os.path.realpath(root) for root in roots)
    )


def _local_cluster(nodes: str | None, cluster: str | None) -> str:
    if nodes is not None and cluster is not None:
        raise InputError("nodes", nodes, "give --nodes or --cluster, not both")
    if cluster is not None:
        return cluster
    if nodes is not None:
        return f"gpu:{nodes}"
    from shoal.agent.devices import find

    try:
        found = find(None, None)
    except InputError:  # no driver: as many slots as there are processors
        return f"cpu:1x{min(os.cpu_count() or 1, 255)}"
    return f"{found.kind}:1x{found.count}"


def _announce(url: str, settings: Any, as_json: bool, *, local: bool) -> None:
    told = {
        "server": url,
        "policy": settings.scenario.policy,
        "cluster": settings.scenario.cluster.describe(),
        "home": str(settings.home),
    }
    if as_json:
        click.echo(json.dumps(told))
        return
    click.echo(f"Shoal is up at {url}: {told['cluster']}, policy {told['policy']}; all is kept in {settings.home}.")
    if local:
        click.echo("In another terminal: `shoal submit -- python train.py`, `shoal queue`, `shoal logs JOB -f`.")
        click.echo("Ctrl-C stops it; jobs that run are told to save, and go on when it is started again.")
    else:
        click.echo(f"On each node: `shoal agent --server {url} --token-file {settings.home / 'agent.token'}`.")


def _check(failed: str | None) -> None:
    if failed is not None:
        raise click.ClickException(f"{failed}; the journal is whole, see the log")


class _Stop:
    """Ctrl-C and SIGTERM as something to wait for; they are counted, for the second one is impatient."""

    def __init__(self) -> None:
        self._count = 0
        self._heeded = 0
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._told)

    def _told(self, *_: object) -> None:
        self._count += 1
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Whether it is time to stop, within so many seconds."""
        return self._event.wait(seconds)

    def again(self, seconds: float) -> bool:
        """Whether somebody has become impatient, within so many seconds."""
        self._event.clear()
        self._event.wait(seconds)
        self._heeded = max(self._heeded, 1)
        impatient = self._count > self._heeded
        self._heeded = max(self._heeded, self._count)
        return impatient


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    log_json(logging.FileHandler(path))
