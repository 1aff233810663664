"""Lists of a live cluster as tables, and its times and amounts in words; made to be read at a width of 100."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from shoal.cli.output import terminal
from shoal.wire.messages import AcctRow, JobRow, StartForecast

if TYPE_CHECKING:
    from rich.console import RenderableType

_UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def listing(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> "RenderableType":
    """A table; figures, whose header ends in ``>``, are set to the right and never broken.

    Where the width is too small for all, the widest of the other columns go on over several lines.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for header in headers:
        figures = header.endswith(">")
        justify: Literal["left", "right"] = "right" if figures else "left"
        table.add_column(header.removesuffix(">"), justify=justify, no_wrap=figures, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def facts(pairs: Sequence[tuple[str, str]]) -> "RenderableType":
    """Names and what is to be said of them, one below the other; what has nothing said of it is left out."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, text in pairs:
        if text:
            table.add_row(name, text)
    return table


def print_listing(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """A title, a table if there are rows, and what is to be said of it, on stdout."""
    console = terminal()
    console.print(title, style="bold")
    if rows:
        console.print(listing(headers, rows))
    for note in notes:
        console.print(note, style="dim")


def span(seconds: float) -> str:
    """A length of time in its unit, to two figures or so."""
    name, unit = _unit(seconds)
    return f"{_figure(seconds / unit)} {name}"


def spread(expected: StartForecast) -> str:
    """When something is expected, and between what: ``in 4 min (2–9)``."""
    name, unit = _unit(expected.median)
    low, median, high = (_figure(max(0.0, t) / unit) for t in (expected.low, expected.median, expected.high))
    return f"in {median} {name}" + (f" ({low}–{high})" if low != high else "")


def _unit(seconds: float) -> tuple[str, float]:
    # 90 s is clearer than 1.5 min, and so on up: a unit begins where one has two of it.
    return next((unit for unit in _UNITS if abs(seconds) >= 2 * unit[1]), _UNITS[-1])


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or abs(value - round(value)) < 0.05 else f"{value:.1f}"


def state(row: JobRow | AcctRow) -> str:
    """A job's state as people say it: what is pending waits."""
    return "waiting" if row.state.lower() == "pending" else row.state.lower()


def hours(gpu_seconds: float) -> str:
    """GPU-hours, to a hundredth."""
    return f"{gpu_seconds / 3600:,.2f}"


def count(number: int, what: str) -> str:
    """A number of things, in the singular where there is one."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
