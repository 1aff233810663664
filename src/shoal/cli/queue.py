"""``shoal queue``: who runs, who waits, why, and until about when."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import click

from shoal.cli.client import cluster_options, patiently
from shoal.cli.live_tables import listing, span, spread, state
from shoal.cli.output import json_option, print_json, terminal
from shoal.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.wire.client import Client
    from shoal.wire.messages import ClusterRow, JobRow

_HEADERS = ("#>", "job", "tenant", "state", "GPUs>", "start>", "age>", "reason")

_REDRAW_SECONDS = 5.0
"""Ages go on without events."""

_POLL_SECONDS = 2.0
"""Between looks where the server tells of no events."""

_BREATH_SECONDS = 0.5
"""No picture follows another sooner."""


@click.command()
@click.option("--all", "with_ended", is_flag=True, help="Jobs that have ended as well.")
@click.option("--watch", is_flag=True, help="Draw it anew whenever something changes, until Ctrl-C.")
@click.option("--tenant", metavar="T", help="Only this tenant's jobs.")
@cluster_options
@json_option
def queue(with_ended: bool, watch: bool, tenant: str | None, client: "Client", as_json: bool) -> None:
    """Show position, state, GPUs held and wanted, reason and expected start of every job."""

    def look() -> tuple["ClusterRow", list["JobRow"]]:
        from shoal.wire.messages import ClusterRow, JobRow

        cluster = client.get("/v1/cluster", ClusterRow)
        rows = client.get("/v1/jobs" + ("?all=true" if with_ended else ""), list[JobRow])
        return cluster, in_order([row for row in rows if tenant in (None, row.tenant)])

    if watch and as_json:
        raise InputError("watch", True, "draws pictures without end; leave --watch or --json out")
    cluster, rows = look()
    if as_json:
        from msgspec import to_builtins

        print_json({"cluster": to_builtins(cluster), "jobs": to_builtins(rows)})
    elif watch:
        _watch(client, look, cluster, rows)
    else:
        terminal().print(picture(cluster, rows))


def in_order(rows: Sequence["JobRow"]) -> list["JobRow"]:
    """Jobs that hold GPUs by their start, then those that wait by their position, then those that ended."""

    def key(row: "JobRow") -> tuple[int, float]:
        if row.ended is not None:
            return 2, row.ended
        if row.position is not None:
            return 1, row.position
        return 0, row.submitted if row.started is None else row.started

    return sorted(rows, key=key)


def picture(cluster: "ClusterRow", rows: Sequence["JobRow"], remark: str = "") -> "RenderableType":
    """The queue as it is printed."""
    from rich.console import Group
    from rich.text import Text

    gpus = f"{cluster.used_gpus:,} of {cluster.up_gpus:,} GPUs in use"
    counts = f"{cluster.running:,} running, {cluster.waiting:,} waiting, {cluster.ended:,} ended"
    parts: list[RenderableType] = [Text(f"{cluster.policy} on {cluster.cluster}: {gpus}; {counts}", style="bold")]
    if rows:
        parts.append(listing(_HEADERS, [_cells(row, cluster.now) for row in rows]))
    else:
        parts.append(Text("no jobs; `shoal submit -- CMD` makes one", style="dim"))
    if remark:
        parts.append(Text(remark, style="yellow"))
    return Group(*parts)


def _cells(row: "JobRow", now: float) -> tuple[str, ...]:
    progress = f" {min(1.0, row.done / row.work):.0%}" if row.work and row.done and row.ended is None else ""
    return (
        "" if row.position is None else str(row.position),
        row.id,
        row.tenant,
        state(row) + progress,
        f"{row.gpus_held}/{row.gpus_wanted}",
        "" if row.start is None else spread(row.start),
        span(max(0.0, (row.ended or now) - row.submitted)),
        row.reason,
    )


# ── watching ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _watch(
    client: "Client",
    look: Callable[[], tuple["ClusterRow", list["JobRow"]]],
    cluster: "ClusterRow",
    rows: list["JobRow"],
) -> None:
    """Draw what was seen, and look again when something changed or some time has gone by."""
    changed, heard, over = threading.Event(), threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(client, changed, heard, over), daemon=True).start()
    with _screen() as draw, ExitStack() as leaving:
        leaving.callback(over.set)

        def away(text: str) -> None:
            draw(picture(cluster, rows, text))

        while True:
            draw(picture(cluster, rows))
            changed.wait(_REDRAW_SECONDS if heard.is_set() else _POLL_SECONDS)
            time.sleep(_BREATH_SECONDS)  # events come in flocks
            changed.clear()
            cluster, rows = patiently(look, told=away)


def _listen(client: "Client", changed: threading.Event, heard: threading.Event, over: threading.Event) -> None:
    """Say when the server tells of an event, and whether it tells of any; where not, one has to look now and then."""
    from shoal.core.errors import ShoalError

    while not over.is_set():
        with suppress(ShoalError):
            for line in client.lines("/v1/events"):
                heard.set()
                if line.startswith("data:"):
                    changed.set()
        heard.clear()
        over.wait(_POLL_SECONDS)


@contextmanager
def _screen() -> Iterator[Callable[["RenderableType"], None]]:
    """Somewhere to draw: one place on a terminal, one picture after the other anywhere else."""
    console = terminal()
    if not sys.stdout.isatty():
        yield console.print
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=True) as live:
        yield lambda shown: live.update(shown, refresh=True)
