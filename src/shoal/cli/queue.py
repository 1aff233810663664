"""``shoal queue``: running and waiting jobs, with reasons and expected starts."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

import click

from shoal.cli.client import cluster_options, list_jobs, retrying
from shoal.cli.live_tables import spread, state
from shoal.cli.output import listing, print_json, terminal
from shoal.core.errors import InputError
from shoal.core.printable import printable
from shoal.core.units import span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.wire.client import Client
    from shoal.wire.messages import ClusterRow, JobRow

    _Page: TypeAlias = tuple[ClusterRow, list[JobRow], str]
    """The cluster, the jobs to show, and how to see more; empty where there are none."""

_HEADERS = ("#>", "job", "tenant", "state", "GPUs>", "starts/ends>", "age>", "reason")

_REDRAW_SECONDS = 5.0
"""Seconds between redraws without events: ages change."""

_POLL_SECONDS = 2.0
"""Seconds between polls if the server streams no events."""

_GAP_SECONDS = 0.5
"""Least seconds between two redraws."""


@click.command()
@click.option("--all", "with_ended", is_flag=True, help="Include jobs that have ended.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, metavar="N", help="Most jobs to show.")
@click.option(
    "--page",
    type=click.IntRange(1, 1_000_000),
    default=1,
    metavar="K",
    help="Page of the list to show, with N jobs each.",
)
@click.option("--watch", is_flag=True, help="Redraw at each change, until Ctrl-C.")
@click.option("--tenant", metavar="T", help="Only this tenant's jobs.")
@cluster_options
def queue(
    with_ended: bool,
    limit: int,
    page: int,
    watch: bool,
    tenant: str | None,
    client: "Client",
    as_json: bool,
) -> None:
    """Show state, GPUs held and wanted, expected start or end, age and reason of jobs: running, waiting, ended."""
    first = (page - 1) * limit

    def fetch() -> "_Page":
        from shoal.wire.messages import ClusterRow

        cluster = client.get("/v1/cluster", ClusterRow)
        # One more than is shown tells whether there are more.
        rows = list_jobs(client, limit + 1, ended=with_ended, tenant=tenant, offset=first)
        more = f"more jobs: --page {page + 1} shows the next {limit:,}" if len(rows) > limit else ""
        return cluster, rows[:limit], more

    if watch and as_json:
        raise InputError("watch", True, "never ends; leave --watch or --json out")
    shown = fetch()
    if as_json:
        print_json({"cluster": shown[0], "jobs": shown[1], "more": bool(shown[2])})
    elif watch:
        _watch(client, fetch, shown)
    else:
        terminal().print(rendered(*shown))


def rendered(cluster: "ClusterRow", rows: Sequence["JobRow"], more: str = "", note: str = "") -> "RenderableType":
    """The queue as a table with a title; ``more`` is a line on how to see the rest, ``note`` one on a problem."""
    from rich.console import Group
    from rich.text import Text

    gpus = f"{cluster.used_gpus:,} of {cluster.up_gpus:,} GPUs in use"
    counts = f"{cluster.running:,} running, {cluster.waiting:,} waiting, {cluster.ended:,} ended"
    parts: list[RenderableType] = [
        Text(printable(f"{cluster.policy} on {cluster.cluster}: {gpus}; {counts}"), style="bold")
    ]
    if rows:
        parts.append(listing(_HEADERS, [_cells(row, cluster.now) for row in rows]))
    else:
        parts.append(Text("no jobs; `shoal submit -- CMD` makes one", style="dim"))
    if more:
        parts.append(Text(more, style="dim"))
    if cluster.short_of_disk:
        parts.append(Text(printable(cluster.short_of_disk), style="red"))
    if note:
        parts.append(Text(printable(note), style="yellow"))
    return Group(*parts)


def _cells(row: "JobRow", now: float) -> tuple[str, ...]:
    progress = f" {min(1.0, row.done / row.work):.0%}" if row.work and row.done and row.ended is None else ""
    return (
        "" if row.position is None else str(row.position),
        row.id,
        row.tenant,
        state(row) + progress,
        f"{row.gpus_held}/{row.gpus_wanted}",
        "" if (expected := row.start or row.end) is None else spread(expected),
        span(max(0.0, (row.ended or now) - row.submitted)),
        row.reason,
    )


def _watch(client: "Client", fetch: Callable[[], "_Page"], shown: "_Page") -> None:
    """Draw the queue; fetch and draw it again at each event, or after some seconds."""
    changed, streaming, stopped = threading.Event(), threading.Event(), threading.Event()
    threading.Thread(target=_listen, args=(client, changed, streaming, stopped), daemon=True).start()
    with _screen() as draw, ExitStack() as leaving:
        leaving.callback(stopped.set)

        def show_retry(text: str) -> None:
            draw(rendered(*shown, text))

        while True:
            draw(rendered(*shown))
            changed.wait(_REDRAW_SECONDS if streaming.is_set() else _POLL_SECONDS)
            time.sleep(_GAP_SECONDS)  # events come in bursts
            changed.clear()
            shown = retrying(fetch, on_retry=show_retry)


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
