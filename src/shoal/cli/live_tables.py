"""Text for tables of a live cluster: spans, amounts and states in words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.core.printable import printable
from shoal.core.units import figure, span, unit_of
from shoal.wire.messages import AcctRow, JobRow, NodeRow, StartForecast

if TYPE_CHECKING:
    from rich.console import RenderableType


def facts(pairs: Sequence[tuple[str, str]]) -> "RenderableType":
    """Return names with their texts, one per line; empty texts are left out."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, text in pairs:
        if text:
            table.add_row(name, printable(text))
    return table


def spread(expected: StartForecast) -> str:
    """A forecast with its interval: ``in 4 min (2–9)``, or ``in 22 s (6 s – 12 min)`` if the units differ."""
    low, median, high = (max(0.0, t) for t in (expected.low, expected.median, expected.high))
    unit = unit_of(median)[1]
    if unit_of(low)[1] == unit == unit_of(high)[1]:
        first, last = figure(low / unit), figure(high / unit)
        return f"in {span(median)}" + (f" ({first}–{last})" if first != last else "")
    return f"in {span(median)} ({span(low)} – {span(high)})"


def state(row: JobRow | AcctRow) -> str:
    """A job's state in lower case; pending is shown as waiting."""
    return "waiting" if row.state.lower() == "pending" else row.state.lower()


def limit_notes(nodes: Sequence[NodeRow]) -> list[str]:
    """Return a line for each reason why nodes enforce no CPU and memory limits."""
    by_reason: dict[str, list[str]] = {}
    for node in nodes:
        if node.no_limits:
            by_reason.setdefault(node.no_limits, []).append(node.name)
    return [
        f"CPU and memory limits are not enforced on {', '.join(names[:3])}{', …' * (len(names) > 3)}: {reason}"
        for reason, names in by_reason.items()
    ]


def hours(gpu_seconds: float) -> str:
    """GPU-hours, to a hundredth."""
    return f"{gpu_seconds / 3600:,.2f}"


def count(number: int, what: str) -> str:
    """A number with its noun, in the singular for 1."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
