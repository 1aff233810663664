"""``shoal nodes``, ``share`` and ``acct``: nodes, tenants, and ended jobs."""

from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from shoal.cli.agent import agent_heading, agent_line
from shoal.cli.client import cluster_options
from shoal.cli.live_tables import count, hours, limit_notes, state
from shoal.cli.output import print_json, print_listing, say
from shoal.core.units import span
from shoal.wire.messages import AcctRow, ClusterRow, DrainNode, NewNode, NodeAdded, NodeRow, TenantRow

_LITTLE_DISK = 16 * 2**20
"""Free bytes of a node's disk below which `shoal nodes` says so."""

if TYPE_CHECKING:
    from shoal.wire.client import Client


@click.group(invoke_without_command=True)
@cluster_options
def nodes(client: "Client", as_json: bool) -> None:
    """List the nodes: kind, rack, state, GPUs used, last contact and jobs; or add, drain, resume or remove some."""
    _list(client, as_json)


@nodes.command(short_help="Start nothing more on nodes.")
@click.argument("names", nargs=-1, required=True, metavar="NODE…")
@click.option("--reason", default="no reason given", help="Why: shown by `shoal nodes` and `shoal why`.")
@cluster_options
def drain(names: tuple[str, ...], reason: str, client: "Client", as_json: bool) -> None:
    """Start nothing more on nodes until they are resumed; their running jobs continue (for administrators)."""
    for node in names:
        client.call("POST", f"/v1/nodes/{quote(node, safe='')}/drain", DrainNode(reason), type(None))
        if not as_json:
            say(f"drained {node}")
    if as_json:
        print_json({"drained": list(names), "reason": reason})


@nodes.command(short_help="Let drained nodes start jobs again.")
@click.argument("names", nargs=-1, required=True, metavar="NODE…")
@cluster_options
def resume(names: tuple[str, ...], client: "Client", as_json: bool) -> None:
    """Let drained nodes start jobs again, also those drained since starts failed there (for administrators)."""
    for node in names:
        client.call("POST", f"/v1/nodes/{quote(node, safe='')}/resume", None, type(None))
        if not as_json:
            say(f"resumed {node}")
    if as_json:
        print_json({"resumed": list(names)})


@nodes.command(short_help="Add a node to the running cluster.")
@click.argument("name")
@click.option("--kind", required=True, help="Kind of its GPUs.")
@click.option("--gpus", required=True, type=click.IntRange(1, 255), help="Number of its GPUs.")
@click.option("--rack", default="r0", help="Its rack.")
@cluster_options
def add(name: str, kind: str, gpus: int, rack: str, client: "Client", as_json: bool) -> None:
    """Add node NAME to the running cluster; it is down until its agent connects (for administrators)."""
    added = client.post("/v1/nodes", NewNode(name, kind, gpus, rack), NodeAdded)
    if as_json:
        print_json(added)
        return
    say(f"added {name}: {gpus} x {kind}")
    if added.token_file is not None:
        say(agent_heading("its agent there", client.cafile))
        say(f"  {agent_line(client.url, added.token_file, name, (kind, gpus), client.cafile)}")


@nodes.command(short_help="Remove nodes from the cluster.")
@click.argument("names", nargs=-1, required=True, metavar="NODE…")
@cluster_options
def remove(names: tuple[str, ...], client: "Client", as_json: bool) -> None:
    """Remove nodes that have left for good, or that no job runs on, from the cluster (for administrators)."""
    for node in names:
        client.call("DELETE", f"/v1/nodes/{quote(node, safe='')}", None, type(None))
        if not as_json:
            say(f"removed {node}")
    if as_json:
        print_json({"removed": list(names)})


def _list(client: "Client", as_json: bool) -> None:
    found = client.get("/v1/nodes", list[NodeRow])
    if as_json:
        print_json(found)
        return
    cluster = client.get("/v1/cluster", ClusterRow)
    now = cluster.now
    rows = [
        (
            node.name,
            node.kind,
            node.rack,
            "DOWN" if not node.up else "drained" if node.drained else "up",
            f"{node.used}/{node.gpus}",
            "never" if node.heard is None else f"{span(max(0.0, now - node.heard))} ago",
            ", ".join(node.jobs),
        )
        for node in found
    ]
    up = [node for node in found if node.up]
    title = (
        f"{len(up)} of {count(len(found), 'node')} up, {sum(n.used for n in up)} of {sum(n.gpus for n in up)} GPUs used"
    )
    headers = ("node", "kind", "rack", "state", "GPUs>", "last report>", "jobs")
    drained = [f"{node.name} is drained: {node.drained}." for node in found if node.drained]
    drained += [f"{node.name}: {node.engine}" for node in found if node.engine]
    print_listing(
        title, headers, rows, [*drained, *_disk_notes(cluster, found), *limit_notes(found), *_suspension_notes(found)]
    )


def _suspension_notes(nodes: list[NodeRow]) -> list[str]:
    """Sentences on how the nodes suspend jobs, one for each way, and on what is suspended."""
    ways: dict[str, list[str]] = {}
    for node in nodes:
        found = node.suspension
        if found is not None and node.up:
            able = f"yes ({found.how}), {found.memory / 1e9:,.0f} GB of host memory"
            ways.setdefault(f"no, {found.why_not}" if found.why_not else able, []).append(node.name)
    notes = [f"{_some(names)}: suspends jobs: {way}" for way, names in ways.items()]
    return [*notes, *(f"{node.name}: suspended there: {', '.join(node.suspended)}" for node in nodes if node.suspended)]


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"


def _disk_notes(cluster: ClusterRow, nodes: list[NodeRow]) -> list[str]:
    """Sentences on the disks that are almost full: the control plane's and those of nodes."""
    short = [node for node in nodes if node.up and node.disk_free is not None and node.disk_free < _LITTLE_DISK]
    notes = [f"{node.name}: its disk has {(node.disk_free or 0) / 2**20:.1f} MB free" for node in short]
    return [cluster.short_of_disk, *notes] if cluster.short_of_disk else notes


@click.command()
@cluster_options
def share(client: "Client", as_json: bool) -> None:
    """Show the GPUs each tenant holds and the GPU-hours it has used, with fractions of the total, and its quota."""
    found = client.get("/v1/share", list[TenantRow])
    if as_json:
        print_json(found)
        return
    rows = [
        (
            t.tenant,
            f"{t.live:,}",
            f"{t.held:,}",
            f"{t.part_now:.0%}",
            hours(t.gpu_seconds),
            f"{t.part_ever:.0%}",
            f"{t.guaranteed:,}" if t.guaranteed else "",
            "" if t.most is None else f"{t.most:,}",
        )
        for t in sorted(found, key=lambda t: (-t.held, -t.gpu_seconds, t.tenant))
    ]
    headers = ("tenant", "jobs>", "GPUs now>", "part>", "GPU-hours>", "part>", "guaranteed>", "at most>")
    columns = (
        8 if any(t.guaranteed or t.most is not None for t in found) else 6
    )  # without quotas their columns are empty
    print_listing(count(len(found), "tenant"), headers[:columns], [row[:columns] for row in rows])


@click.command()
@cluster_options
def acct(client: "Client", as_json: bool) -> None:
    """List ended jobs: how long they waited and ran, GPU-hours, restarts and cause."""
    found = sorted(client.get("/v1/acct", list[AcctRow]), key=lambda row: row.ended)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.id,
            row.tenant,
            state(row),
            f"{row.gpus:,}",
            span(row.waited),
            "–" if row.started is None else span(row.ended - row.started),
            hours(row.gpu_seconds),
            f"{row.restarts:,}",
            row.cause,
        )
        for row in found
    ]
    title = f"{count(len(found), 'job')} ended, {hours(sum(row.gpu_seconds for row in found))} GPU-hours"
    headers = ("job", "tenant", "state", "GPUs>", "waited>", "ran>", "GPU-h>", "restarts>", "cause")
    notes = ["ran: from the first start to the end, including waits between."] if found else []
    print_listing(title, headers, rows, notes)
