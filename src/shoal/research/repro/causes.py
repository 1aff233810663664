"""The causes of `cause_rows` beside the tables that they explain."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.research.repro.cause_rows import CAUSES
from shoal.research.repro.table import Table, is_different


def explained(name: str, tables: Sequence[Table]) -> tuple[Table, ...]:
    """Return a reproduction's tables, each that differs from the paper with its causes."""
    return tuple(replace(table, why=_why(name, table)) if is_different(table.verdict) else table for table in tables)


def _why(name: str, table: Table) -> str:
    return " ".join(text for title, _, text in CAUSES.get(name, ()) if table.title.startswith(title))
