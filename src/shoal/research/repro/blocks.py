"""Tables of reproductions in pages of the documentation, between ``<!-- repro: NAME -->`` and ``<!-- end -->``.

A reproduction without such lines gets them, with a heading, before the line ``<!-- repro of: PAPER -->`` of its paper.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from shoal.core.errors import InputError
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Table
from shoal.wire.files import replace_file

_END = "<!-- end -->"


def check_places(pages: Sequence[Path], wanted: Iterable[Reproduction]) -> None:
    """Raise ``InputError`` if a page has no place for any of these reproductions."""
    known = list(wanted)
    for page in pages:
        text = page.read_text()
        if not any(_begin(one) in text or _section(one) in text for one in known):
            raise InputError("page", str(page), f"has no line `{_begin(known[0]).strip()}` for the tables")


def write_blocks(pages: Sequence[Path], one: Reproduction, tables: Sequence[Table]) -> None:
    """Write the tables into each page that has a place for them; a section gets a block only if no page has one."""
    body = "\n".join(table.markdown() for table in tables)
    texts = {page: page.read_text() for page in pages}
    placed = [page for page, text in texts.items() if _begin(one) in text]
    for page in placed:
        before, _, rest = texts[page].partition(_begin(one))
        _, close, after = rest.partition(_END)
        if not close:
            raise InputError("page", str(page), f"has no line `{_END}` after `{_begin(one).strip()}`")
        replace_file(page, f"{before}{_begin(one)}{body}{_END}{after}".encode())
    if not placed:
        for page in [page for page, text in texts.items() if _section(one) in text]:
            block = f"### `{one.name}`\n\n{_sentence(one.what)}\n\n{_begin(one)}{body}{_END}\n\n{_section(one)}"
            replace_file(page, texts[page].replace(_section(one), block).encode())


def blocks(text: str) -> list[str]:
    """Return the names whose tables a page has."""
    return re.findall(r"^<!-- repro: (\S+) -->$", text, re.MULTILINE)


def _begin(one: Reproduction) -> str:
    return f"<!-- repro: {one.name} -->\n"


def _section(one: Reproduction) -> str:
    return f"<!-- repro of: {one.paper} -->\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
