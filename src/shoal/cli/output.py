"""Output shared by the commands: JSON, tables, messages and progress bars."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from shoal.core.printable import LogPrinter, printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from shoal.report.metrics import Summary
    from shoal.workload.schema import Workload


def print_json(document: object) -> None:
    """Print one JSON document on stdout; message structures in it become objects."""
    from msgspec import to_builtins

    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False, default=to_builtins)
    click.echo(printable_json(text))


def say(text: str) -> None:
    """Print lines on stdout, without control characters from users."""
    click.echo(printable(text, keep="\n\t"))


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


@contextmanager
def log_output(*, raw: bool) -> Iterator[Callable[[str], None]]:
    """A function that prints pieces of a job's output: as they are with ``raw`` and where stdout is no terminal.

    On a terminal only line breaks, tabs and colours act; other control characters are shown as escapes.
    """
    if raw or not on_terminal():
        yield lambda text: click.echo(text, nl=False, color=raw or None)
        return
    printer = LogPrinter()
    try:
        yield lambda text: click.echo(printer.feed(text), nl=False, color=True)
    finally:
        click.echo(printer.finish(), nl=False, color=True)


def duration(seconds: float | None) -> str:
    """Seconds in a readable unit; – for None."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.2f} h"
    return f"{seconds / 86400:.1f} d"


def terminal() -> "Console":
    """A console on stdout, 1,000 columns wide when it is not a terminal; prints plain text, never markup.

    Strings, also those in tables, are printed without control characters from users.
    """
    from rich.console import Console
    from rich.text import Text

    class SafeConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text, keep="\n"), **options)

    return SafeConsole(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False, emoji=False)


def listing(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> "RenderableType":
    """A table; columns whose header ends in ``>`` are aligned right and never broken over lines."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for header in headers:
        figures = header.endswith(">")
        justify: Literal["left", "right"] = "right" if figures else "left"
        table.add_column(header.removesuffix(">"), justify=justify, no_wrap=figures, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def print_listing(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """Print a title, a table if there are rows, and notes, on stdout."""
    console = terminal()
    console.print(title, style="bold")  # a table's own title would be folded to the table's width
    if rows:
        console.print(listing(headers, rows))
    for note in notes:
        console.print(note, style="dim")


def print_table(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = (), *, words: int = 1
) -> None:
    """Print a table whose first ``words`` columns are aligned left and the others right."""
    print_listing(title, [h if i < words else f"{h}>" for i, h in enumerate(headers)], rows, notes)


_HEADERS = ("policy", "seed", "done", "avg JCT", "median", "p99 JCT", "makespan", "util", "max ρ")


def print_summaries(title: str, summaries: Sequence["Summary"]) -> None:
    """Print a table with one row per run."""
    from shoal.report.metrics import UNFAIR_ABOVE

    rows = []
    for s in summaries:
        rho = s["rho"]["isolated"]
        rows.append(
            (
                str(s["policy"]),
                str(s["seed"]),
                f"{s['completed']}/{s['jobs']}",
                duration(s["avg_jct"]),
                duration(s["median_jct"]),
                duration(s["p99_jct"]),
                duration(s["makespan"]),
                "–" if s["utilization"] is None else f"{s['utilization']:.1%}",
                "–" if rho["max"] is None else f"{rho['max']:.2f}",
                "–" if (unfair := rho[f"unfair_{UNFAIR_ABOVE}"]) is None else f"{unfair:.1%}",
                f"{s['restarts']:,}",
            )
        )
    notes = ["ρ: completion time over that with 1/n of the cluster throughout (rho_isolated)."]
    for s in filter(lambda s: "rent" in s, summaries):
        rent = s["rent"]
        paid = "" if rent["cost"] is None else f" for ${rent['cost']:,.2f}"
        hours = f"{rent['node_hours']:.1f} node-hours"
        notes.append(f"{s['policy']}, seed {s['seed']}: rented {hours}{paid}, at most {rent['most_nodes']} nodes.")
    print_table(title, (*_HEADERS, f"ρ > {UNFAIR_ABOVE:g}", "restarts"), rows, notes)


def warn_skipped(workload: "Workload") -> None:
    """Warn about skipped rows: the first five, and their number."""
    for message in workload.skipped[:5]:
        warn(f"skipped {message}")
    if workload.skipped:
        count = len(workload.skipped)
        warn(f"skipped {count} broken row{'s' if count > 1 else ''} of {workload.source or workload.name}")


def warn_unfinished(summary: "Summary") -> None:
    """Warn about jobs that did not finish, with the first one's reason."""
    left = summary["jobs"] - summary["completed"]
    if left and summary.get("unfinished"):
        first = summary["unfinished"][0]
        warn(f"{summary['policy']}: {left} of {summary['jobs']} jobs did not finish; {first['id']} {first['reason']}")


def warn(text: str) -> None:
    """Print a message on stderr."""
    click.echo(f"shoal: {printable(text)}", err=True)


@contextmanager
def rows_read() -> Iterator[Callable[[int], None] | None]:
    """A function that shows the number of rows read so far on stderr; None where that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    yield lambda count: click.echo(f"\rshoal: read {count:,} rows", nl=False, err=True) if count else None
    click.echo("\r\x1b[K", nl=False, err=True)


@contextmanager
def progress_bars(names: Sequence[str], total: int | None) -> Iterator[Callable[[Mapping[int, int]], None] | None]:
    """A progress bar per run on stderr; None where that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        ids = [bars.add_task(name, total=total, start=True) for name in names]

        def update(completed: Mapping[int, int]) -> None:
            for i, count in completed.items():
                bars.update(ids[i], completed=count)

        yield update


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")(command)
