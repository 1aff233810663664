"""What a reproduction comes to: a table of figures measured here, with the paper's word on them beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and how its numbers are written, e.g. ``.2f`` or ``+.1%``."""

    name: str
    form: str = ".2f"


@dataclass(frozen=True, slots=True)
class Table:
    """Figures by row, the first cell of each naming it; ``paper`` is what the paper has, ``here`` what differs."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    paper: str
    here: str = ""

    def cells(self) -> list[list[str]]:
        """The rows as text, each number in the form of its column; nothing is a dash."""
        return [[_text(cell, column.form) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def notes(self) -> list[str]:
        """The paper's word, and what differs here."""
        return [f"paper: {self.paper}", *([f"here: {self.here}"] if self.here else [])]

    def document(self) -> dict[str, Any]:
        """The same for machines: numbers as they are, what is not finite as null."""
        names = [column.name for column in self.columns]
        rows = [dict(zip(names, map(_plain, row), strict=True)) for row in self.rows]
        return {"title": self.title, "columns": names, "rows": rows, "paper": self.paper, "here": self.here}


def table(
    title: str, columns: Sequence[str | Column], rows: Sequence[Sequence[Cell]], paper: str, here: str = ""
) -> Table:
    """A table from plain sequences; a column that is only a name has two decimals."""
    made = tuple(Column(column) if isinstance(column, str) else column for column in columns)
    return Table(title, made, tuple(tuple(row) for row in rows), paper, here)


def _text(cell: Cell, form: str) -> str:
    if cell is None:
        return "–"
    return cell if isinstance(cell, str) else format(cell, form)


def _plain(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not isfinite(cell) else cell
