"""Tables of measured figures, with the paper's statement about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and the format of its numbers, e.g. ``.2f`` or ``+.1%``."""

    name: str
    form: str = ".2f"


@dataclass(frozen=True, slots=True)
class Table:
    """Figures by row, whose first cell names it; ``paper`` is the paper's statement, if any, ``here`` what differs."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    paper: str
    here: str = ""

    def cells(self) -> list[list[str]]:
        """Return the rows as text, each number in its column's format, None and NaN as a dash."""
        return [[_text(cell, column.form) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def notes(self) -> list[str]:
        """Return the paper's statement and what differs here, one line each, if there are any."""
        return [f"{name}: {text}" for name, text in (("paper", self.paper), ("here", self.here)) if text]

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
        return {"title": self.title, "columns": names, "rows": rows, "paper": self.paper, "here": self.here}


def table(
    title: str, columns: Sequence[str | Column], rows: Sequence[Sequence[Cell]], paper: str = "", here: str = ""
) -> Table:
    """Make a table from plain sequences; a column given only by name has two decimals."""
    made = tuple(Column(column) if isinstance(column, str) else column for column in columns)
    return Table(title, made, tuple(tuple(row) for row in rows), paper, here)


def _text(cell: Cell, form: str) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return "–" if cell != cell else format(cell, form)  # noqa: PLR0124  NaN


def _plain(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not isfinite(cell) else cell
