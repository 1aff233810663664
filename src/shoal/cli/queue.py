"""``shoal queue``: running and waiting jobs, with reasons and expected starts."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import click

from shoal.cli.client import cluster_options, retrying
from shoal.cli.live_tables import span, spread, state
from shoal.cli.output import json_option, listing, print_json, terminal
from shoal.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.wire.client import Client
    from shoal.wire.messages import ClusterRow, JobRow

_HEADERS = ("#>", "job", "tenant", "state", "GPUs>", "start>", "age>", "reason")

_REDRAW_SECONDS = 5.0
"""Seconds between redraws without events: ages change."""

_POLL_SECONDS = 2.0
"""Seconds between polls if the server streams no events."""

_GAP_SECONDS = 0.5
"""Least seconds between two redraws."""


@click.command()
@click.option("--all", "with_ended", is_flag=True, help="Include jobs that have ended.")
@click.option("--watch", is_flag=True, help="Redraw at each change, until Ctrl-C.")
@click.option("--tenant", metavar="T", help="Only this tenant's jobs.")
@cluster_options
@json_option
def queue(with_ended: bool, watch: bool, tenant: str | None, client: "Client", as_json: bool) -> None:
    """Show position, state, GPUs held and wanted, expected start, age and reason of every job."""

    def fetch() -> tuple["ClusterRow", list["JobRow"]]:
        from shoal.wire.messages import ClusterRow, JobRow

        cluster = client.get("/v1/cluster", ClusterRow)
        rows = client.get("/v1/jobs" + ("?all=true" if with_ended else ""), list[JobRow])
        return cluster, in_order([row for row in rows if tenant in (None, row.tenant)])

    if watch and as_json:
        raise InputError("watch", True, "never ends; leave --watch or --json out")
    cluster, rows = fetch()
    if as_json:
        print_json({"cluster": cluster, "jobs": rows})
    elif watch:
        _watch(client, fetch, cluster, rows)
    else:
        terminal().print(rendered(cluster, rows))


def in_order(rows: Sequence["JobRow"]) -> list["JobRow"]:
    """Running jobs by start, then waiting ones by position, then ended ones by end."""

    def key(row: "JobRow") -> tuple[int, float]:
        if row.ended is not None:
            return 2, row.ended
        if row.position is not None:
            return 1, row.position
        return 0, row.submitted if row.started is None else row.started

    return sorted(rows, key=key)


def rendered(cluster: "ClusterRow", rows: Sequence["JobRow"], note: str = "") -> "RenderableType":
    """The queue as a table with a title."""
    from rich.console import Group
    from rich.text import Text

    gpus = f"{cluster.used_gpus:,} of {cluster.up_gpus:,} GPUs in use"
    counts = f"{cluster.running:,} running, {cluster.waiting:,} waiting, {cluster.ended:,} ended"
    parts: list[RenderableType] = [Text(f"{cluster.policy} on {cluster.cluster}: {gpus}; {counts}", style="bold")]
    if rows:
        parts.append(listing(_HEADERS, [_cells(row, cluster.now) for row in rows]))
    else:
        parts.append(Text("no jobs; `shoal submit -- CMD` makes one", style="dim"))
    if cluster.short_of_disk:
        parts.append(Text(cluster.short_of_disk, style="red"))
    if note:
        parts.append(Text(note, style="yellow"))
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


def _watch(
    client: "Client",
    fetch: Callable[[], tuple["ClusterRow", list["JobRow"]]],
    cluster: "ClusterRow",
    rows: list["JobRow"],
) -> None:
    """Draw the queue; fetch and draw it again at each event, or after some seconds."""
    changed, streaming, stopped = threading.Event(), threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(client, changed, streaming, stopped), daemon=True).start()
    with _screen() as draw, ExitStack() as leaving:
        leaving.callback(stopped.set)

        def show_retry(text: str) -> None:
            draw(rendered(cluster, rows, text))

        while True:
            draw(rendered(cluster, rows))
            changed.wait(_REDRAW_SECONDS if streaming.is_set() else _POLL_SECONDS)
            time.sleep(_GAP_SECONDS)  # events come in bursts
            changed.clear()
            cluster, rows = retrying(fetch, on_retry=show_retry)


def _listen(client: "Client", changed: threading.Event, streaming: threading.Event, stopped: threading.Event) -> None:
    """Set ``changed`` at each event of the server, and ``streaming`` while it streams any."""
    from shoal.core.errors import ShoalError

    while not stopped.is_set():
        with suppress(ShoalError):
            for line in client.lines("/v1/events"):
                streaming.set()
                if line.startswith("data:"):
                    changed.set()
        streaming.clear()
        stopped.wait(_POLL_SECONDS)


@contextmanager
def _screen() -> Iterator[Callable[["RenderableType"], None]]:
    """A function that draws: in place on a terminal, one after the other elsewhere."""
    console = terminal()
    if not sys.stdout.isatty():
        yield console.print
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=True) as live:
        yield lambda shown: live.update(shown, refresh=True)
