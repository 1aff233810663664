"""Tables of reproductions in pages: in blocks that are there, else in new ones of their paper's section."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.research.repro.blocks import blocks, check_places, write_blocks
from shoal.research.repro.context import ReproContext
from shoal.research.repro.registry import Reproduction
from shoal.research.repro.table import Table, table


def _tables(context: ReproContext) -> Sequence[Table]:
    return [table("t", ["a"], [[1.0]])]


ONE, TWO = (Reproduction(name, "A (B '20)", f"what {name} shows", _tables) for name in ("a-1", "a-2"))


def test_a_block_is_replaced_where_it_is_and_a_new_one_goes_into_the_section(tmp_path: Path) -> None:
    pages = [tmp_path / "other.md", tmp_path / "page.md"]
    pages[0].write_text("x\n<!-- repro: a-1 -->\nold\n<!-- end -->\ny\n")
    pages[1].write_text("## A\n\n<!-- repro of: A (B '20) -->\nz\n")
    made = _tables(ReproContext(None))
    for one in (ONE, TWO, TWO):
        write_blocks(pages, one, made)
    assert pages[0].read_text() == f"x\n<!-- repro: a-1 -->\n{made[0].markdown()}<!-- end -->\ny\n"
    block = f"### `a-2`\n\nWhat a-2 shows.\n\n<!-- repro: a-2 -->\n{made[0].markdown()}<!-- end -->\n\n"
    assert pages[1].read_text() == f"## A\n\n{block}<!-- repro of: A (B '20) -->\nz\n"
    assert [blocks(page.read_text()) for page in pages] == [["a-1"], ["a-2"]]


def test_a_page_without_a_place_and_a_block_without_an_end_are_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(InputError, match="repro: a-1"):
        check_places([page], [ONE])
    page.write_text("<!-- repro: a-1 -->\n")
    check_places([page], [ONE, TWO])
    with pytest.raises(InputError, match="end"):
        write_blocks([page], ONE, _tables(ReproContext(None)))
