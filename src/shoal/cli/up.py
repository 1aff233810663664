"""Commands that run a cluster: `up` on this machine, `serve` the control plane of several."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from logging.handlers import RotatingFileHandler
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.agent import LOG_LIMIT, USERS_HELP, agent_heading, agent_line
from shoal.cli.client import default_home
from shoal.cli.completion import complete_policy
from shoal.cli.engine_nodes import engine_cluster
from shoal.cli.output import warn
from shoal.core.errors import InputError
from shoal.core.job import MOST_LOST
from shoal.wire.logs import log_json

if TYPE_CHECKING:
    from shoal.core.topology import Node, Topology
    from shoal.live.control_plane import ControlPlane
    from shoal.live.engine_allocations import EngineAllocations
    from shoal.live.home import Settings
    from shoal.provider.protocol import Abilities, AgentCall

DEFAULT_PORT = 7433

_LOG_BYTES = 16 * 2**20
"""Length of the control plane's log after which it is renamed and a new one begun."""

_POLICY = "shoal"
"""Default policy of a live cluster: it needs no knowledge of its jobs, and short jobs wait little."""

_CONNECT_SECONDS = 15.0
"""Seconds in which the agents of `up` should have connected."""

_MOST_LINES = 4
"""Agents' command lines that `serve` prints."""

_COMMON = (
    click.option(
        "--policy", default=_POLICY, help="Scheduling policy, see `shoal policies`.", shell_complete=complete_policy
    ),
    click.option("--placement", default="packed", help="How nodes are chosen: any, packed, rack or network."),
    click.option(
        "--knowledge",
        metavar="K",
        help="Speeds the policy may see: oracle, profiled, estimated or online.  [default: the policy's own]",
    ),
    click.option(
        "--round", "round_seconds", type=float, metavar="SECONDS", help="Length of a round, for policies with rounds."
    ),
    click.option(
        "--home",
        type=click.Path(path_type=Path),
        help="Folder for the journal, tokens and logs.  [default: SHOAL_HOME or ~/.shoal]",
    ),
    click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, help="Port; 0 for a free one."),
    click.option(
        "--lease",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="End a node's jobs after this many seconds without contact.",
    ),
    click.option(
        "--max-grace",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="Longest grace a job may ask for between its warning and its kill.",
    ),
    click.option(
        "--retry",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="Restart a job this many seconds after its first crash; later pauses double.",
    ),
    click.option(
        "--most-lost",
        type=float,
        default=MOST_LOST,
        metavar="SECONDS",
        help="Do not stop a job to make room if more of its run than this would be lost.",
    ),
    click.option(
        "--history",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Predict undeclared lengths from the runs in this file too: a journal, sacct output or a trace.",
    ),
    click.option(
        "--keep",
        default="30d",
        metavar="TIME",
        help="Keep ended jobs, their logs and closed parts of the journal this long, e.g. 12h or 30d.",
    ),
    click.option(
        "--root",
        "roots",
        multiple=True,
        metavar="DIR",
        help="Folder in which jobs may have their working folder; repeatable.  [default: any]",
    ),
    click.option(
        "--notify-allow",
        multiple=True,
        metavar="HOST[:PORT]|@DOMAIN",
        help="Host or mail domain to which notices of jobs' ends may be sent; repeatable.  [default: none]",
    ),
    click.option("--smtp", default="", metavar="HOST[:PORT]", help="Mail server for notices.", show_default="none"),
    click.option("--json", "as_json", is_flag=True, help="Print the address as JSON."),
)


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `up` and `serve`."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


@click.command()
@click.option("--nodes", metavar="NODESxGPUS", help="Virtual nodes, e.g. 2x2.  [default: this machine as it is]")
@click.option("--cluster", metavar="SPEC", help="Virtual nodes of several kinds, e.g. a100:1x4,v100:2x4.")
@LOG_LIMIT
@click.option("--tenant-users", default="off", metavar="USERS", help=USERS_HELP)
@_common
def up(
    nodes: str | None, cluster: str | None, log_mb: int, tenant_users: str, port: int, as_json: bool, **options: Any
) -> None:
    """Run a cluster on this machine until Ctrl-C: the control plane, and an agent for each node."""
    from shoal.agent.confinement import hide_memory, unconfined
    from shoal.agent.tenant_users import choose_users
    from shoal.live.engine_allocations import EngineAllocations
    from shoal.live.home import make_home
    from shoal.provider.local import LocalProvider, agent_call
    from shoal.serve.service import Address, run_service

    stop = _StopSignal()
    settings = _settings(_local_cluster(nodes, cluster), **options)
    make_home(settings.home)
    log_json(RotatingFileHandler(settings.home / "control.log", maxBytes=_LOG_BYTES, backupCount=1))
    users, why_shared = choose_users(tenant_users, settings.home)
    if users is not None:
        os.umask(0o077)  # tenants' users may pass through the home
    hide_memory()
    why_unconfined = unconfined()
    with run_service(settings, Address(port=port), embedded=True) as made:
        plane, url = made.control_plane, made.listening.url
        local = LocalProvider(lambda: plane.members.present.nodes, settings.home)
        call = partial(agent_call, url, made.agent_token, home=settings.home, roots=settings.roots)
        call = partial(call, log_bytes=log_mb * 10**6, tenant_users=tenant_users)
        allocations = EngineAllocations("this machine", local, plane, call, silence=inf)
        missing = _wait_for_agents(plane, allocations, stop)
        _announce(made.listening.url, settings, as_json, local=True)
        if missing:
            warn(f"not connected yet: {', '.join(missing)}; see nodes/NODE/agent.log in {settings.home}")
        if users is None:
            warn(f"jobs of all tenants run as user {os.geteuid()} and can read each other's files: {why_shared}")
        if why_unconfined:
            warn(f"jobs can signal and trace other processes of their user: {why_unconfined}")
        while not stop.wait(0.5):
            allocations.tick()
            made.renew_tokens()
            _check(made.control_plane.failed)
        running = made.control_plane.cluster().running
        if running:
            warn(f"stopping {running} running job{'s' * (running > 1)}, each with its grace; Ctrl-C again kills them")
        local.stop(lambda: stop.repeated(0.05))


@click.command()
@click.option("--cluster", metavar="SPEC", help="The cluster's nodes: TYPE:NODESxGPUS[,…] or a file.")
@click.option(
    "--on",
    metavar="ENGINE",
    help="Engine whose nodes are used and that starts their agents, NAME:key=value,…; in place of --cluster.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on; other machines cannot reach loopback.")
@click.option("--certfile", metavar="FILE", help="Certificate for TLS.")
@click.option("--keyfile", metavar="FILE", help="Key of the certificate.")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Another name of this server that callers may use in its URL; repeatable.",
)
@click.option(
    "--patience",
    type=click.FloatRange(1.0),
    default=300.0,
    metavar="SECONDS",
    help="Withdraw a run that an engine in native mode does not start within this time.",
)
@_common
def serve(
    cluster: str | None,
    on: str | None,
    patience: float,
    host: str,
    port: int,
    certfile: str | None,
    keyfile: str | None,
    names: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Run the control plane of a cluster of several machines; each of them runs `shoal agent`."""
    from shoal.serve.service import Address, run_service  # first: it names the extra that a plain install lacks

    stop = _StopSignal()
    from shoal.live.engine_allocations import EngineAllocations
    from shoal.provider.local import agent_call, call_for_run
    from shoal.provider.registry import make_provider

    home = (options["home"] or default_home()).resolve()
    engine, provider = make_provider(on or "manual", home)
    nodes = engine_cluster(on, cluster, provider, home, stop.wait)
    if nodes is None:
        return
    settings = _settings(nodes, abilities=provider.abilities, **options)
    os.umask(0o077)  # an agent of the same home may let tenants' users pass through it
    log_json()
    with run_service(settings, Address(host, port, certfile, keyfile, names)) as made:
        url = made.listening.url
        call = partial(agent_call, url, made.agent_token, home=settings.home, roots=settings.roots, cafile=certfile)

        def run_call(node: "Node", name: str, gpus: int) -> "AgentCall":
            return call_for_run(call(replace(node, gpus=gpus)), name, made.run_token)

        agents, plane = partial(call, tenant_users="auto"), made.control_plane
        allocations = EngineAllocations(
            engine, provider, plane, agents, run_call=run_call, patience=patience, home=settings.home
        )
        allocations.start()
        try:
            lines = [] if cluster is None else _agent_lines(url, settings, certfile)
            _announce(url, settings, as_json, local=False, agents=lines)
            while not stop.wait(0.5):
                _check(made.control_plane.failed)
        finally:
            allocations.stop()


def _settings(
    cluster: "str | Topology",
    *,
    policy: str,
    placement: str,
    knowledge: str | None,
    round_seconds: float | None,
    home: Path | None,
    lease: float,
    max_grace: float,
    retry: float,
    most_lost: float,
    history: Path | None,
    keep: str,
    roots: tuple[str, ...],
    notify_allow: tuple[str, ...],
    smtp: str,
    abilities: "Abilities | None" = None,
) -> "Settings":
    from shoal.jobspec.times import read_span
    from shoal.live.home import Settings
    from shoal.live.notice_targets import NoticeTargets
    from shoal.provider.protocol import Abilities
    from shoal.scenario.scenario import Scenario
    from shoal.scenario.specs import read_cluster

    nodes = read_cluster(cluster) if isinstance(cluster, str) else cluster
    scenario = Scenario(
        nodes, policy, placement=placement, knowledge=knowledge, round=round_seconds, most_lost=most_lost
    )
    made = scenario.make_policy()  # finds a misspelt policy before anything is written
    able = abilities or Abilities()
    if not able.sharing and getattr(made, "space_sharing", False):
        hint = "puts two jobs on one GPU (space_sharing), which the engine cannot in native mode; leave that option out"
        raise InputError("policy", policy, hint)
    folder = (home or default_home()).resolve()
    resolved = tuple(os.path.realpath(root) for root in roots)
    notices = NoticeTargets(notify_allow, smtp)
    kept = read_span("keep", keep)
    return Settings(folder, scenario, lease, retry, resolved, kept, max_grace, history, able, notices)


def _local_cluster(nodes: str | None, cluster: str | None) -> str:
    """Return the cluster of `up`: as the options say, else this machine's GPUs, else a slot per processor."""
    if nodes is not None and cluster is not None:
        raise InputError("nodes", nodes, "give --nodes or --cluster, not both")
    given = cluster if nodes is None else f"gpu:{nodes}"
    if given is not None:
        _check_local_size(given, "cluster" if nodes is None else "nodes")
        return given
    from shoal.agent.devices import find

    try:
        found = find(None, None, environ=os.environ)
    except InputError:  # no driver
        return f"cpu:1x{min(os.cpu_count() or 1, 255)}"
    return f"{found.kind}:1x{found.count}"


def _check_local_size(cluster: str, field: str) -> None:
    """Refuse more nodes than this machine can run agents for."""
    from shoal.provider.local import MOST_LOCAL_NODES
    from shoal.scenario.specs import read_cluster

    count = len(read_cluster(cluster).nodes)
    if count > MOST_LOCAL_NODES:
        hint = (
            f"has {count:,} nodes; `shoal up` runs an agent for each, at most {MOST_LOCAL_NODES}: give nodes more GPUs"
        )
        raise InputError(field, cluster.removeprefix("gpu:"), hint)


def _wait_for_agents(control_plane: "ControlPlane", allocations: "EngineAllocations", stop: "_StopSignal") -> list[str]:
    """Start the agents and wait some seconds for all to connect; return the nodes whose agents have not."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        allocations.tick()
        missing = [row.name for row in control_plane.nodes(None) if not row.up]
        if not missing or time.monotonic() > deadline or stop.wait(0.05):
            return missing


def _announce(url: str, settings: "Settings", as_json: bool, *, local: bool, agents: Sequence[str] = ()) -> None:
    scenario = settings.scenario
    shown = {"server": url, "policy": scenario.policy, "cluster": scenario.cluster.describe()}
    if as_json:
        click.echo(json.dumps({**shown, "home": str(settings.home)}))
        return
    ready = "is ready" if local else "listens"
    click.echo(f"Shoal {ready} at {url}: {shown['cluster']}, policy {shown['policy']}; files in {settings.home}.")
    prefix = "" if settings.home == Path(default_home()).resolve() else f"SHOAL_HOME={settings.home} "
    if local:
        click.echo(f"Type in another terminal: {prefix}shoal submit -- python train.py")
        click.echo(f"Then: {prefix}shoal queue, {prefix}shoal logs -f JOB, {prefix}shoal why JOB")
        click.echo(f"The cluster's page: {prefix}shoal web prints a link that logs your browser in")
        click.echo("Ctrl-C stops it; running jobs are warned to save, and resume from there when it is started again.")
        return
    for line in agents:
        click.echo(line)
    click.echo(f"Type in another terminal: {prefix}shoal submit -- python train.py")
    click.echo(f"Then: {prefix}shoal queue; {prefix}shoal nodes shows which agents have connected.")
    click.echo(f"The cluster's page: {prefix}shoal web prints a link that logs your browser in")


def _agent_lines(url: str, settings: "Settings", certfile: str | None) -> list[str]:
    nodes = settings.scenario.cluster.nodes
    cafile = None if certfile is None else str(Path(certfile).resolve())
    lines = [agent_heading("the agent of each node", cafile)]
    for node in nodes[:_MOST_LINES]:
        token = settings.home / "agents" / f"{node.name}.token"
        lines.append(f"  {agent_line(url, token, node.name, (node.kind, node.gpus), cafile)}")
    if len(nodes) > _MOST_LINES:
        lines.append(f"  … and so on, for {len(nodes):,} nodes")
    return lines


def _check(failed: str | None) -> None:
    if failed is not None:
        raise click.ClickException(f"{failed}; the journal is whole, see the log")


class _StopSignal:
    """Counts SIGINT and SIGTERM and lets the main thread wait for them."""

    def __init__(self) -> None:
        self._received = 0
        self._handled = 0
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, *_: object) -> None:
        self._received += 1
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Whether a signal has arrived, waiting up to ``seconds``."""
        return self._event.wait(seconds)

    def repeated(self, seconds: float) -> bool:
        """Whether another signal after the first has arrived since the last call, waiting up to ``seconds``."""
        self._event.clear()
        self._event.wait(seconds)
        handled = max(self._handled, 1)
        self._handled = max(handled, self._received)
        return self._received > handled
