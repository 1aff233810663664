"""Tables and charts of measured figures, with the paper's statement about them and a verdict."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, TypeAlias

Cell: TypeAlias = str | float | int | None

REPRODUCES = "reproduces"


def differs(how: str) -> str:
    """Return the verdict that ours differs from the paper, and how."""
    return f"differs: {how}"


def is_different(verdict: str) -> bool:
    """Whether a verdict is that ours differs from the paper."""
    return verdict.startswith("differs")


def cannot_be_told(why: str) -> str:
    """Return the verdict that nothing can be concluded, and why: no numbers in the paper, too few draws, other data."""
    return f"cannot be told: {why}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and the format of its numbers, e.g. ``.2f`` or ``+.1%``."""

    name: str
    form: str = ".2f"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: points (x, y) in order of x, and the half-widths of their 95 % intervals, if known."""

    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure drawn again: the paper's lines from its printed numbers (may be none), and ours on the same axes.

    ``kind`` is ``lines``, ``steps`` (each y holds until the next x) or ``bars`` (x counts the ``labels``).
    """

    title: str
    x: str
    y: str
    theirs: tuple[Line, ...]
    ours: tuple[Line, ...]
    kind: str = "lines"
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Figures by row, whose first cell names it; ``paper`` is the paper's statement, if any, ``here`` our differences.

    ``verdict`` is ``REPRODUCES``, ``differs(…)`` or ``cannot_be_told(…)``, computed from the figures; empty where the
    table has no counterpart in a paper; ``why`` is the cause of a difference. ``charts`` draws the figure again.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    paper: str
    here: str = ""
    verdict: str = ""
    charts: tuple[Chart, ...] = ()
    why: str = ""

    def cells(self) -> list[list[str]]:
        """Return the rows as text, each number in its column's format, None and NaN as a dash."""
        return [[_text(cell, column.form) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def notes(self) -> list[str]:
        """Return the paper's statement, our differences from it, the verdict and its cause, one line each, if any."""
        named = (("paper", self.paper), ("here", self.here), ("verdict", self.verdict), ("why", self.why))
        return [f"{name}: {text}" for name, text in named if text]

    def markdown(self) -> str:
        """Return the table in Markdown, with its title and notes."""
        head = [column.name for column in self.columns]
        lines = [head, ["---"] * len(head), *self.cells()]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"**{self.title}**\n\n{body}\n\n" + "\n".join(f"- {note}" for note in self.notes()) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the table as plain JSON; numbers that are not finite become null."""
        names = [column.name for column in self.columns]
        rows = [dict(zip(names, map(_plain, row), strict=True)) for row in self.rows]
        texts = {"paper": self.paper, "here": self.here, "verdict": self.verdict, "why": self.why}
        charts = [asdict(chart) for chart in self.charts]
        return {"title": self.title, "columns": names, "rows": rows, **texts, "charts": charts}


def table(
    title: str,
    columns: Sequence[str | Column],
    rows: Sequence[Sequence[Cell]],
    paper: str = "",
    here: str = "",
    *,
    verdict: str = "",
    charts: Sequence[Chart] = (),
) -> Table:
    """Make a table from plain sequences; a column given only by name has two decimals."""
    made = tuple(Column(column) if isinstance(column, str) else column for column in columns)
    return Table(title, made, tuple(tuple(row) for row in rows), paper, here, verdict, tuple(charts))


def _text(cell: Cell, form: str) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return "–" if cell != cell else format(cell, form)  # noqa: PLR0124  NaN


def _plain(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not isfinite(cell) else cell
